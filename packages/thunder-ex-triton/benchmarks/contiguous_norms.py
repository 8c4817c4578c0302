# SPDX-License-Identifier: Apache-2.0
"""Benchmark of norms of contiguous images on a GPU, forward and backward: eager, torch.compile and thunder.

    python benchmarks/contiguous_norms.py [--markdown FILE] [--only TEXT] [--repetitions 5] [--compile] [--rules]

A norm in training is followed by SiLU, in bfloat16. Times are milliseconds by events, of CUDA graphs that contain the
calls: the median of interleaved repetitions. "as torch" is thunder with the norm left to torch. The floor is the
minimal memory traffic at the bandwidth of a copy, measured in the same run: forward reads the image and writes the
result, and backward reads the image and the gradient and writes a gradient.

`--rules` shows how each rule that chooses a layout does, beside "thunder", which takes all of them:

- whole: rows of any length are held by one program.
- split: rows are split that the rule leaves whole, and none is held by one program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.toolkit.benchmarking import copy_bandwidth, in_turns, parser, replayed, report, step, table
from thunder_ex_triton import contiguous_norms

NORMS: dict[str, Callable[[int, int], nn.Module]] = {
    "batch": lambda channels, rank: (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 1](channels),
    "32 groups": lambda channels, rank: nn.GroupNorm(32, channels),
    "a group a channel": lambda channels, rank: nn.GroupNorm(channels, channels),
    "one group": lambda channels, rank: nn.GroupNorm(1, channels),
}
IMAGES = {  # what a norm's images are in networks that stay contiguous
    "batch": ((64, 64, 112, 112), (64, 256, 56, 56), (64, 512, 28, 28), (64, 2048, 7, 7), (8, 64, 512, 512),
              (16, 256, 16000), (2, 64, 16, 64, 64), (256, 1024)),
    "32 groups": ((4, 320, 64, 64), (16, 512, 32, 32), (1, 128, 512, 512), (2, 64, 16, 64, 64)),
    "a group a channel": ((8, 512, 15999),),
    "one group": ((8, 64, 16000),),
}  # fmt: skip
RULES = {
    "as torch": {"_layout_of": lambda op: None},
    "whole": {"_ROW_OF_CHANNEL": 1 << 40, "_LONG_ROW": 1 << 40},
    "split": {"_ROW_OF_CHANNEL": 0, "_LONG_ROW": 0},
}
CALLS = 20  # in a CUDA graph


@contextmanager
def replaced(values: dict[str, Any]) -> Iterator[None]:
    """Compile with other rules."""
    usual = {name: getattr(contiguous_norms, name) for name in values}
    for name, value in values.items():
        setattr(contiguous_norms, name, value)
    try:
        yield
    finally:
        for name, value in usual.items():
            setattr(contiguous_norms, name, value)


def measured(norm: str, shape: tuple[int, ...], rules: list[str], options: Any, bandwidth: float) -> dict[str, float]:
    """Return the times of all contenders in milliseconds, and the floor."""
    module = NORMS[norm](shape[1], max(1, len(shape) - 2)).to("cuda", torch.bfloat16)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    g = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    wanted = (x, *module.parameters())

    def fn(x: Any) -> Any:
        return F.silu(module(x))

    contenders: dict[str, Any] = {"eager": step(fn, (x,), wanted, g)}
    if options.compile:
        contenders["torch.compile"] = step(torch.compile(fn, dynamic=False), (x,), wanted, g)
    contenders["thunder"] = step(thunder.jit(fn), (x,), wanted, g)
    for rule in rules:
        contenders[rule] = step(thunder.jit(fn), (x,), wanted, g)
    for name, run in contenders.items():  # compile before the capture
        with replaced(RULES.get(name, {})):
            run()
            run()
    times = in_turns({name: replayed(run, CALLS) for name, run in contenders.items()}, options.repetitions)
    floor = 5 * x.numel() * x.element_size() / bandwidth * 1e3
    return {"floor": floor, **{name: found / CALLS for name, found in times.items()}}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="", help="measure only the rows whose name contains this")
    arguments.add_argument("--compile", action="store_true", help="measure torch.compile, too")
    arguments.add_argument("--rules", action="store_true", help="measure other rules, too")
    options = arguments.parse_args()
    bandwidth = copy_bandwidth()
    rules = list(RULES) if options.rules else ["as torch"]
    rows, head = [], []
    for norm, shapes in IMAGES.items():
        for shape in shapes:
            name = f"{norm}, {' x '.join(map(str, shape))}"
            if options.only in name:
                torch._dynamo.reset()
                found = measured(norm, shape, rules, options, bandwidth)
                head = ["ms", *found]
                rows.append([name, *(f"{time:.3f}" for time in found.values())])
                print(*rows[-1], flush=True)
                torch.cuda.empty_cache()
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}"
    report(f"{table(head, rows)}\n\n{machine}; a copy runs at {bandwidth / 1e12:.2f} TB/s", options)


if __name__ == "__main__":
    main()
