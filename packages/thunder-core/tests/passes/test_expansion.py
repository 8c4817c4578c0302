# SPDX-License-Identifier: Apache-2.0
"""Expansion: what a fusion executor computes in parts is in parts before values are chosen for backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

import thunder
import thunder.torch as ltorch
from thunder import prims
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.extend import FusionExecutor

GROUPS, EPS = 2, 1e-5
FUSED = (prims.mul, prims.sub, prims.add, prims.exp, prims.div, prims.neg, prims.reciprocal, prims.reshape)


class Fuser(FusionExecutor):
    """Fuses the elementwise part of group normalization, and leaves everything to torch."""

    expands = True

    def fusion_pass(self, trace: Trace) -> Trace:
        return trace

    def expansion(self, trace: Trace) -> Callable[[BoundSymbol], Any] | None:
        return _parts if self.expands else None


def _parts(op: BoundSymbol) -> Any:
    if op.sym.id != "torch.group_norm_forward":
        return None
    x, groups, weight, bias, eps = op.args
    n, c, h, w = x.shape
    grouped = ltorch.reshape(x, (n, groups, -1))
    variance, mean = ltorch.var_mean(grouped, -1, correction=0)
    rstd = ltorch.rsqrt(variance + eps)
    shape = (n, groups, c // groups, h, w)
    distance = ltorch.reshape(x, shape) - mean[:, :, None, None, None]
    normal = ltorch.reshape(distance * rstd[:, :, None, None, None], (n, c, h, w))
    return normal * weight[:, None, None] + bias[:, None, None], mean, rstd


def fuser(expands: bool) -> Fuser:
    found = Fuser("expansion_test")
    found.expands = expands
    for sym in (
        prims.mul,
        prims.sub,
        prims.add,
        prims.exp,
        prims.div,
        prims.neg,
        prims.reciprocal,
        prims.reshape,
        prims.broadcast_in_dim,
    ):
        found.register_supported(sym)
    return found


def tensors() -> list[torch.Tensor]:
    shapes: list[tuple[int, ...]] = [(2, 4, 16, 16), (4,), (4,)]
    return [torch.rand(s, dtype=torch.float64, requires_grad=True) for s in shapes]


def f(x: Any, weight: Any, bias: Any) -> Any:
    return F.silu(F.group_norm(x.sin(), GROUPS, weight, bias, EPS))


def test_backward_computes_elementwise_parts_again() -> None:
    """The result of the normalization is saved as a whole, and not in parts; gradients are equal."""
    x, weight, bias = tensors()
    right = torch.autograd.grad(f(x, weight, bias).square().sum(), (x, weight, bias))
    images = []
    for expands in (False, True):
        jf = thunder.jit(f, executors=[fuser(expands)])
        out = jf(x, weight, bias)
        found = torch.autograd.grad(out.square().sum(), (x, weight, bias))
        torch.testing.assert_close(found, right)
        _, saved = thunder.last_traces(jf)[-1].output
        images.append(sum(p.shape == x.shape for p in saved if hasattr(p, "shape")))
        assert ("group_norm_forward" in str(thunder.last_traces(jf)[-1])) != expands
    assert images == [3, 2]  # x, its sine, and the result of the normalization


def test_programs_that_call_backward() -> None:
    """The parts are in a program that contains its backward operations, too."""
    x, weight, bias = tensors()

    def step(x: Any, weight: Any, bias: Any) -> Any:
        x.grad = None
        f(x, weight, bias).square().sum().backward()
        return x.grad

    right = step(x, weight, bias).clone()
    jf = thunder.jit(step, executors=[fuser(True)])
    torch.testing.assert_close(jf(x, weight, bias), right)
    assert "Expansion by expansion_test" in "".join(map(str, thunder.last_traces(jf)))


def test_higher_derivatives() -> None:
    """Gradients of gradients flow through the parts."""
    x, weight, bias = tensors()
    jf = thunder.jit(f, executors=[fuser(True)])

    def second(g: Callable[..., Any]) -> torch.Tensor:
        (first,) = torch.autograd.grad(g(x, weight, bias).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    torch.testing.assert_close(second(jf), second(f))
