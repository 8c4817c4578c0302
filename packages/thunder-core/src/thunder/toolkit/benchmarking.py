# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of executors on a GPU: three timers, interleaved measurements, CUDA graphs, tables, and a script's frame.

A script ends with

    if __name__ == "__main__":
        options = parser(__doc__).parse_args()
        report(table(head, rows), options)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from thunder.tests.measuring import Kernels, by_events, by_kernels, copy_bandwidth, in_turns, on_host, replayed, table

__all__ = [
    "Kernels",
    "by_events",
    "by_kernels",
    "copy_bandwidth",
    "in_turns",
    "on_host",
    "parser",
    "replayed",
    "report",
    "step",
    "table",
]


def parser(description: str | None, repetitions: int | None = 5) -> argparse.ArgumentParser:
    """Return a parser for the options of a benchmark: `--markdown`, and `--repetitions` if there is a default."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--markdown", type=Path, help="write the tables to this file too")
    if repetitions is not None:
        found.add_argument("--repetitions", type=int, default=repetitions, help="how often to measure each contender")
    return found


def report(text: str, options: argparse.Namespace) -> None:
    """Print the tables, and write them to the file given by the options."""
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n", encoding="utf-8")


def step(
    fn: Callable[..., Any], inputs: Sequence[Any], wanted: Sequence[torch.Tensor], gradient: Any = None
) -> Callable[[], Any]:
    """Return a function without arguments that runs `fn` forward and backward, with gradients of `wanted`."""
    return lambda: torch.autograd.grad(fn(*inputs), wanted, gradient)
