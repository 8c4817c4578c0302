# SPDX-License-Identifier: Apache-2.0
"""Branches on values of tensors in checkpoints, in transforms of functions, in custom backwards and on gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint
from value_branches import INPUTS, same, several

import thunder


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_decisions_in_a_checkpointed_region(use_reentrant: bool) -> None:
    def f(x: Any) -> Any:
        return checkpoint(several, x, use_reentrant=use_reentrant)

    jitted = thunder.jit(f)
    for values in (*INPUTS[:3], *INPUTS[:3]):
        grads = []
        for run in (f, jitted):
            x = values.clone().requires_grad_()
            run(x).square().sum().backward()
            grads.append(x.grad)
        same(grads[1], grads[0])


@pytest.mark.parametrize(
    "transform", [torch.func.grad, lambda g: lambda x: torch.func.vjp(g, x)[1](torch.ones(()))[0],
                  lambda g: lambda x: torch.func.jvp(g, (x,), (torch.ones_like(x),))[1]], ids=["grad", "vjp", "jvp"]
)  # fmt: skip
def test_decisions_in_transformed_functions(transform: Callable[..., Any]) -> None:
    def scalar(x: Any) -> Any:
        return several(x).square().sum()

    def eager(x: Any) -> Any:
        y = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(scalar(y), y)
        return g

    jitted = thunder.jit(lambda x: transform(scalar)(x))
    for x in (*INPUTS[:3], *INPUTS[:3]):
        found = jitted(x)
        torch.testing.assert_close(found, eager(x).sum() if found.ndim == 0 else eager(x))


def test_decisions_in_the_transforms_of_thunder() -> None:
    jitted = thunder.jit(thunder.grad(lambda x: several(x).square().sum()))
    for values in (*INPUTS[:3], *INPUTS[:3]):
        x = values.clone().requires_grad_()
        several(x).square().sum().backward()
        found = jitted(values)
        same(found[0] if isinstance(found, (tuple, list)) else found, x.grad)


class Branching(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x * 2 if x.sum() > 0 else x * 3
        ctx.save_for_backward(y)
        return y.sin()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (y,) = ctx.saved_tensors
        return g * y.cos() * 2


def test_decisions_in_an_autograd_function() -> None:
    jitted = thunder.jit(lambda x: Branching.apply(x * 1))
    for values in (*INPUTS[:3], *INPUTS[:3]):
        grads = []
        for run in (Branching.apply, jitted):
            x = values.clone().requires_grad_()
            run(x).sum().backward()
            grads.append(x.grad)
        same(grads[1], grads[0])
    assert thunder.cache_misses(jitted) == 2


class BranchesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y.sin()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        if y.sum() > 5:  # of the forward's own values
            return g * y
        return g * y.cos() if x[0] > 0 else -g * x.sum().item()


def test_decisions_in_a_custom_backward_precede_the_function() -> None:
    """They depend on values that the forward has saved, so the forward program makes them."""
    jitted = thunder.jit(lambda x: BranchesInBackward.apply(x.sin()).sum() * 2)
    for values in (*INPUTS[:2], INPUTS[4], *INPUTS[:2], INPUTS[4]):
        grads = []
        for run in (lambda x: BranchesInBackward.apply(x.sin()).sum() * 2, jitted):
            x = values.clone().requires_grad_()
            run(x).backward()
            grads.append(x.grad)
        same(grads[1], grads[0])
    assert 2 <= thunder.cache_misses(jitted) <= 3 and thunder.cache_hits(jitted) >= 3


def test_a_backward_that_is_not_needed_makes_no_decisions() -> None:
    jitted = thunder.jit(BranchesInBackward.apply)
    for values in (*INPUTS, *INPUTS):
        same(jitted(values), BranchesInBackward.apply(values))
    assert thunder.cache_misses(jitted) == 1 and "path" not in thunder.explain(jitted)


class BranchesOnGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2 if g.sum() > 0 else -g


def test_a_backward_that_branches_on_its_gradient_runs_eagerly() -> None:
    jitted = thunder.jit(BranchesOnGradient.apply)
    for weight in (1.0, -1.0, 2.0):
        grads = []
        for run in (BranchesOnGradient.apply, jitted):
            x = torch.ones(3, requires_grad=True)
            (run(x) * weight).sum().backward()
            grads.append(x.grad)
        same(grads[1], grads[0])
    assert "data-dependent" in thunder.explain(jitted)


def _written_copy(w: Any) -> Any:
    copy = w.clone()
    copy[0] = 5.0
    return copy


IN_VMAP: dict[str, Callable[[Any, Any], Any]] = {
    "a size": lambda x, w: vmap(lambda row: row.repeat(1 + int(w[0] > 0)))(x),
    "nested": lambda x, w: vmap(vmap(lambda y: y * 2 if (w * 2).max() > 1 else y - 1))(x),
    "a gradient inside": lambda x, w: vmap(grad(lambda y: (y**2).sum() if w.sum() > 1 else (y**3).sum()))(x),
    "inside a gradient": lambda x, w: grad(lambda v: vmap(lambda y: y * v.sum() if v.sum() > 1 else y)(x).sum())(w),
    "a write": lambda x, w: vmap(lambda y: y + 1 if _written_copy(w).sum() > 6 else y)(x),
}


@pytest.mark.parametrize("name", IN_VMAP)
def test_decisions_inside_vmap(name: str) -> None:
    """The value is the same for all examples, so it is decided before them."""
    fn = IN_VMAP[name]
    jitted = thunder.jit(fn, sharp_edges="error")
    x = torch.arange(6.0).reshape(3, 2)
    for scale in (1.0, -1.0, 3.0, -1.0, 3.0):
        w = torch.tensor([scale, 1.0])
        same(jitted(x, w), fn(x, w))
    assert thunder.cache_hits(jitted) >= 3


def test_a_branch_on_one_example_of_a_batch_raises_as_in_eager() -> None:
    def branches(x: Any) -> Any:
        return vmap(lambda y: y * 2 if y.sum() > 0 else y)(x)

    with pytest.raises(RuntimeError, match="data-dependent control flow"), warnings.catch_warnings():
        warnings.simplefilter("ignore", thunder.FallbackWarning)
        thunder.jit(branches)(torch.ones(3, 2))


def test_decisions_after_a_part_that_makes_some() -> None:
    """A composite operation with decisions has no effect that a restart would repeat."""

    def f(x: Any) -> Any:
        y = Branching.apply(x * 1)
        return y * 2 if y.sum() > 0 else y - 1

    jitted = thunder.jit(f)
    for values in (*INPUTS, *INPUTS):
        same(jitted(values), f(values))
    assert thunder.cache_hits(jitted) >= len(INPUTS)


def test_a_decision_on_a_gradient() -> None:
    """As in gradient clipping."""

    def f(x: Any) -> Any:
        (g,) = torch.autograd.grad((x * x).sum(), x)
        return g / g.norm() if g.norm() > 1 else g

    jitted = thunder.jit(f)
    for scale in (1.0, 0.1, 2.0, 0.01):
        x = torch.full((3,), scale, requires_grad=True)
        same(jitted(x), f(x))
    assert thunder.cache_misses(jitted) == 2
