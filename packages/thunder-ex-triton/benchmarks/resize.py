# SPDX-License-Identifier: Apache-2.0
"""Benchmark of bilinear interpolation on a GPU, forward and backward through autograd: thunder and eager.

    python benchmarks/resize.py [--markdown FILE] [--only TEXT] [--repetitions 5]

The images are those of SegFormer's training step in bfloat16. Times are milliseconds by events, of CUDA graphs that
contain the calls: the median of interleaved repetitions. The floor of a step is the minimal memory traffic (input,
output and their gradients once) at the bandwidth of a copy, measured in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch.nn import functional as F

import thunder
from thunder.toolkit.benchmarking import copy_bandwidth, in_turns, parser, replayed, report, step, table

# (batch, channels, input size, output size)
IMAGES = ((4, 256, 16, 128), (4, 256, 32, 128), (4, 256, 64, 128), (4, 150, 128, 512))
LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
CALLS = 20  # in a CUDA graph


def measured(
    name: str, batch: int, channels: int, size: int, end: int, layout: torch.memory_format, bandwidth: float,
    repetitions: int,
) -> list[str]:  # fmt: skip
    """Return a row: forward alone, and forward with backward, of each contender."""

    def enlarge(x: Any) -> Any:
        return F.interpolate(x, size=(end, end), mode="bilinear")

    def tensor(n: int) -> torch.Tensor:
        shape = (batch, channels, n, n)
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16).contiguous(memory_format=layout)

    x, g = tensor(size), tensor(end)
    leaf = x.clone().requires_grad_()
    contenders: dict[str, Callable[[], Any]] = {}
    for contender, fn in (("eager", enlarge), ("thunder", thunder.jit(enlarge))):
        contenders[f"{contender}, forward"] = lambda fn=fn: fn(x)  # type: ignore[misc]
        contenders[contender] = step(fn, (leaf,), (leaf,), g)
    for run in contenders.values():  # compile the kernels before the capture
        run()
    graphs = {each: replayed(run, CALLS) for each, run in contenders.items()}
    times = {each: found / CALLS for each, found in in_turns(graphs, repetitions).items()}
    floor = 2 * (x.numel() + g.numel()) * x.element_size() / bandwidth * 1e3
    ratio = times["eager"] / times["thunder"]
    return [name, f"{floor:.3f}", *(f"{times[each]:.3f}" for each in contenders), f"{ratio:.1f} x"]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="", help="measure only the rows whose name contains this")
    options = arguments.parse_args()
    bandwidth = copy_bandwidth()
    rows = []
    for batch, channels, size, end in IMAGES:
        for layout, memory_format in LAYOUTS.items():
            name = f"{batch}x{channels}x{size}x{size} → {end}x{end}, {layout}"
            if options.only in name:
                how = (batch, channels, size, end, memory_format)
                rows.append(measured(name, *how, bandwidth, options.repetitions))
                torch.cuda.empty_cache()
    head = ["ms", "floor", "eager, forward", "eager", "thunder, forward", "thunder", "eager / thunder"]
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}"
    report(f"{table(head, rows)}\n\n{machine}; a copy runs at {bandwidth / 1e12:.2f} TB/s", options)


if __name__ == "__main__":
    main()
