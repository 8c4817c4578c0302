# SPDX-License-Identifier: Apache-2.0
"""The program that each rank of the tests of CUDA graphs in `DistributedDataParallel` runs.

DDP reduces the gradients that the graphs of a staged backward program hand over. The report contains for each case
whether losses, gradients and parameters are eager mode's, and how often the graphs of both programs were captured. On
the CPU, graphs are played.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from played_graphs import Played
from processes import DEVICE, main
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thunder

STEPS = 10


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(6)])


def jitted(module: nn.Module) -> Any:
    return thunder.jit(module, executors=["torch"], cuda_graphs="always", check_ranks=False)  # checks exclude graphs


def of_jitted(module: nn.Module, jit: Callable[[nn.Module], Any], **options: Any) -> tuple[Any, Any]:
    """Return DDP of a jitted module, and the jitted module."""
    inner = jit(module)
    return DistributedDataParallel(inner, **options), inner


def jit_of(module: nn.Module, jit: Callable[[nn.Module], Any], **options: Any) -> tuple[Any, Any]:
    """Return a jitted DDP module, twice."""
    run = jit(DistributedDataParallel(module, **options))
    return run, run


CASES: dict[str, tuple[Callable[..., tuple[Any, Any]], dict[str, Any]]] = {
    f"{build.__name__}{' with small buckets' if options else ''}": (build, options)
    for build in (of_jitted, jit_of)
    for options in ({}, {"bucket_cap_mb": 0.0001, "gradient_as_bucket_view": True})
}


def trained(rank: int, name: str, jit: Callable[[nn.Module], Any], accumulates: bool) -> tuple[list[Any], Any]:
    """Train, and return what is there after each step, and the jitted module."""
    build, options = CASES[name]
    run, inner = build(model(), jit, **options)
    optimizer = torch.optim.SGD(run.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(100 + rank)
    states = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        if accumulates:
            with run.no_sync() if hasattr(run, "no_sync") else contextlib.nullcontext():
                run(torch.randn(6, 8)).square().mean().backward()
        loss = run(torch.randn(6, 8)).square().mean()
        loss.backward()
        gradients = [p.grad for p in run.parameters()]
        states.append([x.detach().clone() for x in (loss, *gradients, *run.parameters())])
        optimizer.step()
    return states, inner


def captures(inner: Any) -> list[int]:
    """Return how often the graphs of the forward program, and of the backward program, were captured."""
    traces = thunder.last_traces(inner)[-1], thunder.last_backward_traces(inner)[-1]
    regions = [[op.sym.fn for op in t.bound_symbols if op.sym.name.startswith("CUDAGraph")] for t in traces]
    return [sum(region.captures for region in found) for found in regions]


def all_cases(rank: int, size: int) -> dict[str, Any]:
    patch = pytest.MonkeyPatch()
    patch.setattr("thunder.frontend.differentiable.MIN_BYTES_TO_PRUNE", 0)
    for limit in ("MIN_STAGE_BYTES", "MIN_STAGE_BYTES_CPU"):
        patch.setattr(f"thunder.frontend.differentiable.{limit}", 500)
    if DEVICE == "cpu":
        patch.setattr("thunder.transforms.cuda_graphs._GPU", "cpu")
        Played(patch)
    report: dict[str, Any] = {}
    for name in CASES:
        for accumulates in (False, True):
            expected, _ = trained(rank, name, lambda module: module, accumulates)
            found, inner = trained(rank, name, jitted, accumulates)
            close = [all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(*s)) for s in zip(found, expected)]
            report[f"{name}{', accumulating' if accumulates else ''}"] = {"close": close, "captures": captures(inner)}
    return report


if __name__ == "__main__":
    main(all_cases, on_device=True)
