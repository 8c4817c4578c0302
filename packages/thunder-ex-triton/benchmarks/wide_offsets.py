# SPDX-License-Identifier: Apache-2.0
"""Benchmark of fusions of large tensors on a GPU: offsets of 32 bits and of 64 bits.

    python benchmarks/wide_offsets.py [--markdown FILE] [--repetitions 3]

Each program runs with tensors of 2^30 elements, and with larger ones than 32 bits can address. It needs 30 GiB.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton

import thunder
from thunder.toolkit.benchmarking import by_events, copy_bandwidth, in_turns, parser, report, table

COLUMNS = 4096
ROWS = {"32 bits": 1 << 18, "64 bits": (1 << 19) + 256}


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.float().softmax(-1).to(x.dtype)


def sums_of_columns(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sum(0)


def transposed(x: torch.Tensor) -> torch.Tensor:
    return (x.t() + 1).contiguous()


# The function, and how often it reads or writes the tensor.
PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], Any], int]] = {
    "x * 2 + 1": (lambda x: x * 2 + 1, 2), "softmax": (softmax, 2), "sums of columns": (sums_of_columns, 1),
    "(x.t() + 1).contiguous()": (transposed, 2),
}  # fmt: skip


def cell(milliseconds: float, moved: int) -> str:
    return f"{milliseconds:.2f} ms, {moved / milliseconds / 1e9:.2f} TB/s"


def rows(repetitions: int) -> list[list[str]]:
    found = []
    for name, (fn, times) in PROGRAMS.items():
        line = [name]
        for count in ROWS.values():
            x = torch.randn(count, COLUMNS, device="cuda", dtype=torch.bfloat16)
            ways = {"thunder": thunder.jit(fn, cuda_graphs="never"), "torch.compile": torch.compile(fn), "eager": fn}
            calls = {each: functools.partial(way, x) for each, way in ways.items()}
            measured = in_turns(calls, repetitions, lambda run: by_events(run, 5))
            line += [cell(measured[each], times * x.numel() * 2) for each in ways]
            torch.compiler.reset()
        found.append(line)
    return found


def main() -> None:
    options = parser(__doc__, 3).parse_args()
    head = ["bfloat16", *(f"{way}, {bits}" for bits in ROWS for way in ("thunder", "torch.compile", "eager"))]
    text = table(head, rows(options.repetitions))
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}"
    report(f"{text}\n\n{machine}; a copy runs at {copy_bandwidth() / 1e12:.2f} TB/s", options)


if __name__ == "__main__":
    main()
