# SPDX-License-Identifier: Apache-2.0
"""The program that each rank of the tests of measured collectives runs: curves, and the profile of a program."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from processes import main

import thunder


def program(x: torch.Tensor) -> torch.Tensor:
    y = functional.all_reduce(x, "sum", dist.group.WORLD)
    return y @ y + functional.all_gather_tensor(x, 0, dist.group.WORLD)[:64]


def run(rank: int, size: int) -> Any:
    curves = thunder.examine.measure_collectives(sizes=(1 << 10, 1 << 16), rounds=2)
    machine = thunder.examine.HARDWARE["cpu"].with_curves(curves)
    x = torch.randn(64, 64)
    simulated = thunder.examine.distributed(program, x, hardware=machine)
    profile = thunder.examine.profile(program, x, rounds=2)
    return {
        "curves": [[curve.kind, curve.ranks, [n for n, _ in curve.points]] for curve in curves],
        "positive": all(seconds > 0 for curve in curves for _, seconds in curve.points),
        "simulated": [[line.kind, line.bytes, line.estimate.is_measured] for line in simulated.lines],
        "profiled": [[line.kind, line.bytes, line.estimate.is_measured] for line in profile.communication.lines],
        "is_profiled": profile.communication.is_profiled,
        "text": str(profile),
    }


if __name__ == "__main__":
    main(run, on_device=True)
