# SPDX-License-Identifier: Apache-2.0
"""Benchmark of apex's kernels through `thunder.jit` and autograd, beside eager: where they are faster.

    python benchmarks/apex.py [--markdown FILE] [--repetitions 5]

Times are GPU times by events of forward and backward, which include host time where it dominates: the median of
interleaved repetitions, each of which runs every contender. `thunder, torch` is thunder with the torch executor alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

import thunder
from thunder.toolkit.benchmarking import in_turns, parser, report, step, table

LOSSES = (
    (2048, 50257, torch.float32), (8192, 32000, torch.float32), (512, 50257, torch.float32),
    (2048, 1000, torch.float32), (16384, 32000, torch.float16), (65536, 1000, torch.float16),
    (2048, 32000, torch.float16), (512, 32000, torch.float16),
)  # fmt: skip
NORMS = (
    (16384, 4096, torch.bfloat16), (8192, 8192, torch.bfloat16), (2048, 1024, torch.bfloat16),
    (16384, 4096, torch.float32), (2048, 1024, torch.float32),
)  # fmt: skip


def contenders(f: Callable[..., Any], named: str, inputs: Any, leaves: Any, g: Any) -> dict[str, Callable[[], Any]]:
    """Return a training step of the function for each contender."""
    jitted = thunder.jit(f, executors=[named])
    out = {
        "apex": step(jitted, inputs, leaves, g),
        "thunder, torch": step(thunder.jit(f, executors=["torch"]), inputs, leaves, g),
        "eager": step(f, inputs, leaves, g),
    }
    out["apex"]()
    assert "apex_" in str(thunder.last_traces(jitted)[-1])
    return out


def losses(repetitions: int) -> list[tuple[str, dict[str, float]]]:
    """Measure cross-entropy; return the rows of the table."""
    rows = []
    for n, classes, dtype in LOSSES:
        x = torch.randn(n, classes, device="cuda", dtype=dtype, requires_grad=True)
        t = torch.randint(0, classes, (n,), device="cuda")
        g = torch.ones((), device="cuda", dtype=dtype)
        found = in_turns(contenders(F.cross_entropy, "apex", (x, t), (x,), g), repetitions)
        rows.append((f"cross-entropy {n}x{classes} {str(dtype)[6:]}", found))
        del x
    return rows


def norms(repetitions: int) -> list[tuple[str, dict[str, float]]]:
    """Measure norms; return the rows of the table."""
    rows = []
    for n, width, dtype in NORMS:
        x = torch.randn(n, width, device="cuda", dtype=dtype, requires_grad=True)
        w, b = (torch.randn(width, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2))
        g = torch.randn_like(x)
        layer = contenders(lambda x, w, b: F.layer_norm(x, (width,), w, b), "apex_norm", (x, w, b), (x, w, b), g)
        rows.append((f"layer norm {n}x{width} {str(dtype)[6:]}", in_turns(layer, repetitions)))
        rms = contenders(lambda x, w: F.rms_norm(x, (width,), w), "apex_norm", (x, w), (x, w), g)
        rows.append((f"RMS norm {n}x{width} {str(dtype)[6:]}", in_turns(rms, repetitions)))
    return rows


def main() -> None:
    """Run the benchmark and print its results."""
    options = parser(__doc__).parse_args()
    rows = losses(options.repetitions) + norms(options.repetitions)
    names = list(rows[0][1])
    cells = []
    for name, found in rows:
        best = min(time for other, time in found.items() if other != "apex")
        cells.append([name, *(f"{found[other]:.3f}" for other in names), f"{found['apex'] / best:.2f}"])
    text = table(["ms, forward and backward", *names, "apex / best"], cells)
    report(text, options)


if __name__ == "__main__":
    main()
