# SPDX-License-Identifier: Apache-2.0
"""Norms that give their results in fp8: which are taken, what they give, and what their gradients are."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder.extend import FusionExecutor

RECIPES = ("Float8CurrentScaling", "DelayedScaling", "Float8BlockScaling")


class Gated(torch.nn.Module):
    """A norm and two layers that read it."""

    def __init__(self, norm: torch.nn.Module, dtype: torch.dtype):
        super().__init__()
        self.norm = norm
        self.gate, self.up = (torch.nn.Linear(64, 32, bias=False) for _ in range(2))
        self.to(dtype)

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        return F.silu(self.gate(x)) * self.up(x)


def _model(kind: str, device: str, dtype: torch.dtype = torch.bfloat16) -> Gated:
    torch.manual_seed(0)
    model = Gated(getattr(torch.nn, kind)(64), dtype).to(device)
    with torch.no_grad():
        for p in model.norm.parameters():
            p.uniform_(0.5, 2)
    return model


def _input(device: str, *shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def _step(f: Any, model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    out = f(x)
    out.float().square().sum().backward()
    found = [out.detach(), x.grad, *[p.grad for p in model.parameters()]]
    model.zero_grad()
    return found  # type: ignore[return-value]


def _alike(found: list[Any], others: list[Any], truth: list[Any]) -> None:
    """As near to the truth as without; the CPU's stand-in rounds results before they become fp8 as torch does."""
    for a, b, expected in zip(found, others, truth):
        assert (a is None) == (b is None)
        if a is None:
            continue
        assert a.shape == b.shape and a.dtype is b.dtype
        if not a.is_cuda and a.dtype is torch.bfloat16:
            assert torch.equal(a, b)
        else:
            assert _distance(a, expected) < 1.3 * _distance(b, expected) + 1e-3


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", ["RMSNorm", "LayerNorm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_as_without(recipe: str, kind: str, dtype: torch.dtype, device: str, recipes: Any) -> None:
    """Results and gradients of steps are those of a norm and of what quantizes its result."""
    model = _model(kind, device, dtype)
    one, other = (
        thunder.jit(model, te_recipe=getattr(recipes, recipe)(), te_fuse_norms=fuse) for fuse in (True, False)
    )
    exact = copy.deepcopy(model).double()
    for seed in range(3):
        x = _input(device, 2, 32, 64, dtype=dtype, seed=seed)
        truth = _step(exact, exact, x.double())
        _alike(_step(one, model, x), _step(other, model, x), truth)
        text = str(thunder.last_traces(one)[-1])
        assert text.count("te_quantize_norm(") == 1 and "norm_forward" not in text
        with torch.no_grad():
            _alike([one(x)], [other(x)], truth)
        text = str(thunder.last_traces(one)[-1])
        assert text.count("te_quantize_norm(") == 1 and text.count("columns=False") == 3
    if recipe == "DelayedScaling":
        for name, kept in other._extra_state["te"].items():
            for key, value in kept.items():
                # Where anything differs, the largest value of a gradient that was in fp8 is as near as fp8 is.
                near = 0.0 if device == "cpu" and dtype is torch.bfloat16 else 0.13
                torch.testing.assert_close(one._extra_state["te"][name][key], value, rtol=near, atol=0)


class _Fuser(FusionExecutor):
    """One that fuses nothing."""

    def fusion_pass(self, trace: Any) -> Any:
        return trace


def test_where_it_pays(device: str, recipes: Any) -> None:
    """Without being asked: in programs without gradients, and not beside a fuser."""
    model, x = _model("RMSNorm", device), _input(device, 32, 64)
    for executors, options, trained, called in (
        (["te"], {}, False, True),
        ([_Fuser("a fuser"), "te"], {}, False, False),
        ([_Fuser("a fuser"), "te"], {"te_fuse_norms": True}, True, True),
        (["te"], {"te_fuse_norms": False}, False, False),
    ):
        f = thunder.jit(model, executors=executors, te_recipe=recipes.Float8CurrentScaling(), **options)
        f(x)
        assert ("te_quantize_norm" in str(thunder.last_traces(f)[-1])) == trained
        with torch.no_grad():
            f(x)
        assert ("te_quantize_norm" in str(thunder.last_traces(f)[-1])) == called
    f = thunder.jit(model, te_fuse_norms=True)
    torch.testing.assert_close(f(x), model(x))


@pytest.mark.parametrize(
    ("norm", "why"),
    [
        (lambda x, w, b: (F.rms_norm(x, (64,), w), x), None),
        (lambda x, w, b: (F.rms_norm(x, (64,), w),) * 2, "it is a result too"),
        (lambda x, w, b: ((y := F.rms_norm(x, (64,), w)), y + 1), "something else reads it"),
        (lambda x, w, b: (F.rms_norm(x, (64,)), x), "no weight"),
        (lambda x, w, b: (F.layer_norm(x, (64,), w), x), "no bias"),
        (lambda x, w, b: (F.layer_norm(x, (64,), w, b), x), None),
        (lambda x, w, b: (F.rms_norm(x, (32, 64), w.expand(32, 64)), x), "two dimensions"),
        (lambda x, w, b: (F.rms_norm(x, (64,), w).relu(), x), "something in between"),
        (lambda x, w, b: (F.rms_norm(x, (64,), w, 1e-3), x), None),
    ],
)
@pytest.mark.parametrize("grad", [True, False])
def test_which_are_taken(norm: Any, why: str | None, grad: bool, device: str, recipes: Any) -> None:
    """A norm over the last dimension, with parameters, whose result only layers read."""

    def run(x: Any, w: Any, b: Any, weight: Any) -> Any:
        y, other = norm(x, w, b)
        return F.linear(y, weight), other

    x, w, b = _input(device, 32, 64), _input(device, 64, seed=1), _input(device, 64, seed=2)
    weight = _input(device, 16, 64, seed=3).requires_grad_(grad)
    f = thunder.jit(run, te_recipe=recipes.Float8CurrentScaling(), te_fuse_norms=True)
    out, other = f(x, w, b, weight)
    assert ("te_quantize_norm" in str(thunder.last_traces(f)[-1])) == (why is None)
    expected, other_expected = run(x, w, b, weight)
    assert float((out.detach() - expected.detach()).norm() / expected.detach().norm()) < 0.06
    torch.testing.assert_close(other, other_expected)


def test_a_layer_that_is_not_taken_reads_it(device: str, recipes: Any) -> None:
    """Then the norm is computed as it is, for all."""
    x, w = _input(device, 32, 64), _input(device, 64, seed=1)
    one, odd = _input(device, 16, 64, seed=2), _input(device, 10, 64, seed=3)

    def run(x: Any, w: Any, one: Any, odd: Any) -> Any:
        y = F.rms_norm(x, (64,), w)
        return F.linear(y, one), F.linear(y, odd)

    f = thunder.jit(run, te_recipe=recipes.Float8CurrentScaling(), te_fuse_norms=True)
    found = f(x, w, one, odd)
    text = str(thunder.last_traces(f)[-1])
    assert "te_quantize_norm" not in text and text.count("te_matmul") == 1
    torch.testing.assert_close(found[1], run(x, w, one, odd)[1])


@pytest.mark.parametrize("recipe", RECIPES)
def test_checkpointing(recipe: str, device: str, recipes: Any) -> None:
    """Computed again in backward, it is what it was."""
    found = []
    for again in (False, True):
        model = _model("RMSNorm", device)

        def run(x: Any, model: Any = model, again: bool = again) -> Any:
            return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False) if again else model(x)

        f = thunder.jit(run, te_recipe=getattr(recipes, recipe)(), te_fuse_norms=True)
        for _ in range(3):
            last = _step(f, model, _input(device, 32, 64))
        found.append(last)
        assert ("te_quantize_norm" in str(thunder.last_backward_traces(f)[-1])) == again
    for a, b in zip(*found):
        torch.testing.assert_close(a, b)


def test_frozen_layers(device: str, recipes: Any) -> None:
    """What backward needs of the norm are its statistics."""
    model = _model("LayerNorm", device)
    model.gate.requires_grad_(False)
    model.up.requires_grad_(False)
    one, other = (
        thunder.jit(model, te_recipe=recipes.Float8CurrentScaling(), te_fuse_norms=fuse) for fuse in (True, False)
    )
    x, exact = _input(device, 32, 64), copy.deepcopy(model).double()
    _alike(_step(one, model, x), _step(other, model, x), _step(exact, exact, x.double()))
