# SPDX-License-Identifier: Apache-2.0
"""Backward operations of a program that calls `backward()` compute values again, which changes no bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.core import prims
from thunder.core.trace import Trace
from thunder.execution.regions import Region, partition


class Block(nn.Module):
    """A residual block with activations that are cheap to compute again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result."""
        return x + self.down(F.dropout(F.silu(self.up(self.norm(x))) * 2.0, 0.1, self.training))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), Block())


def once(net: nn.Module) -> Callable[..., Any]:
    def step(x: torch.Tensor) -> torch.Tensor:
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(p.grad, alpha=0.1)  # type: ignore[arg-type]
        return loss

    return step


def accumulated(net: nn.Module) -> Callable[..., Any]:
    def step(x: torch.Tensor) -> torch.Tensor:
        net.zero_grad()
        for part in x.chunk(2):
            loss = net(part).square().mean()
            loss.backward()
        return loss

    return step


def penalized(net: nn.Module) -> Callable[..., Any]:
    def step(x: torch.Tensor) -> torch.Tensor:
        net.zero_grad()
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(net(x).square().mean(), [x], create_graph=True)
        loss = g.square().sum()
        loss.backward()
        return loss

    return step


@pytest.mark.parametrize("remat", ["none", "auto", "all"])
@pytest.mark.parametrize("make", [once, accumulated, penalized])
def test_results(make: Callable[[nn.Module], Callable[..., Any]], remat: Any) -> None:
    nets = network(), network()
    fast, plain = thunder.jit(make(nets[0]), remat=remat, executors=["torch"]), make(nets[1])
    for seed in range(3):
        x = torch.randn(16, 8)
        results = []
        for step in (fast, plain):
            torch.manual_seed(seed)
            results.append(step(x))
        compare = torch.equal if make is not penalized else torch.allclose
        assert compare(*results)
        for p, q in zip(*[net.parameters() for net in nets]):
            assert compare(p, q) and compare(p.grad, q.grad)  # type: ignore[arg-type]


def test_memory() -> None:
    """Activations that are computed again are not kept."""
    peaks = {}
    for remat in ("none", "all"):
        net, x = copy.deepcopy(network()), torch.randn(4096, 8)
        step = thunder.jit(once(net), remat=remat, executors=["torch"])
        step(x)
        peaks[remat] = thunder.examine.memory(step, x).peak
    activation = 4096 * 64 * 4
    assert peaks["all"] <= peaks["none"] - activation


@torch.library.custom_op("recompute_tests::double", mutates_args={"x"})
def double(x: torch.Tensor) -> None:
    """Write to the argument, as a program's custom operation may do."""
    x.mul_(2)


def test_values_are_not_computed_again_from_memory_that_has_changed() -> None:
    """A write between forward and backward moves behind what is computed again."""

    def step(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        w.grad = None
        loss = ((x @ w).sin() * scale.exp()).sum()
        double(scale)
        loss.backward()
        return loss

    results = []
    for run in (thunder.jit(step, remat="all", executors=["torch"], sharp_edges="allow"), step):
        torch.manual_seed(0)
        x, w, scale = torch.randn(64, 64), torch.randn(64, 512, requires_grad=True), torch.randn(64, 512)
        for _ in range(3):
            loss = run(x, w, scale)
        results.append((loss.detach(), w.grad, scale))
    assert all(torch.equal(a, b) for a, b in zip(*results))  # type: ignore[arg-type]


def test_programs_without_backward_stay_as_they_are() -> None:
    jitted = thunder.jit(lambda x: x.sin() * x.cos())
    jitted(torch.ones(3, requires_grad=True)).sum().backward()
    names = [trace.provenance.name for trace in thunder.last_traces(jitted) if trace.provenance]
    assert "Recompute in Backward" not in names


def test_regions_do_not_join_forward_and_backward() -> None:
    """A value that is computed again in a fusion with forward operations would live as long as before."""
    net = network()
    step = thunder.jit(once(net), remat="all", executors=["torch"])
    step(torch.ones(4, 8))
    trace: Trace = next(t for t in thunder.last_traces(step) if t.provenance and "Recompute" in t.provenance.name)
    (backward,) = trace.info["backward"]
    regions = [
        part
        for part in partition(
            trace, lambda op: bool(op.out_names) and not op.sym.is_structural and op.sym is not prims.item
        )
        if isinstance(part, Region)
    ]
    kinds = [{not backward.isdisjoint(op.out_names) for op in region.operations} for region in regions]
    assert all(len(kind) == 1 for kind in kinds) and {True} in kinds and {False} in kinds


def test_all_that_is_computed_again_belongs_to_backward() -> None:
    """Also values inside of operations: a fusion executor would otherwise merge them with those of the forward part."""
    step = thunder.jit(once(network()), remat="all", executors=["torch"])
    step(torch.randn(16, 8))
    traces = thunder.last_traces(step)
    at = next(i for i, t in enumerate(traces) if t.provenance is not None and "Recompute" in str(t.provenance))

    def values(operations: Any) -> set[str]:
        return {name for op in operations for name in (*op.out_names, *values(op.subsymbols))}

    again = values(traces[at].bound_symbols) - values(traces[at - 1].bound_symbols)
    assert len(again) > 10
    assert again <= traces[at].info["backward"][0]


def test_no_unused_operations_remain() -> None:
    """A value that is computed again for all its uses is not computed before them."""

    def derivative(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(torch.sin(x))
        return torch.autograd.grad(y.sum(), x, create_graph=True)[0]

    jitted = thunder.jit(derivative, executors=["torch"])
    x = torch.linspace(-1, 1, 5, requires_grad=True)
    torch.testing.assert_close(jitted(x), derivative(x))
    (trace,) = [t for t in thunder.last_traces(jitted) if "Recompute in Backward" in str(t)]
    read = {name for op in trace.bound_symbols for name in op.arg_names}
    assert all(op.has_effect or not read.isdisjoint(op.out_names) for op in trace.bound_symbols)
