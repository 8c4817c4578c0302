# SPDX-License-Identifier: Apache-2.0
"""First and second derivatives where formulas divide by zero or have a choice: empty reductions, and equal elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "var": lambda x: x.var(0),
    "var of all": lambda x: x.var(),
    "std": lambda x: x.std(1),
    "std, biased": lambda x: x.std(0, unbiased=False),
    "prod": lambda x: x.prod(0),
    "prod of all": lambda x: x.prod(),
    "diff": lambda x: x.diff(dim=0),
    "diff twice": lambda x: x.diff(n=2, dim=1),
    "mean": lambda x: x.mean(1),
    "logsumexp": lambda x: x.logsumexp(0),
    "norm": lambda x: x.norm(dim=0),
    "cumprod": lambda x: x.cumprod(1),
    "var_mean": lambda x: torch.var_mean(x, 0)[0],
}
TIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "amax": lambda x: x.amax(1),
    "max": lambda x: x.max(),
    "max of rows": lambda x: x.max(1)[0],
    "median": lambda x: x.median(1)[0],
    "maximum": lambda x: torch.maximum(x, x.flip(1)),
    "fmin": lambda x: torch.fmin(x, x.flip(0)),
    "clamp": lambda x: x.clamp(0, 1),
    "clamp by tensors": lambda x: x.clamp(torch.zeros(3), torch.ones(3)),
    "abs": torch.abs,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "prod": lambda x: x.prod(1),
    "cumprod": lambda x: x.cumprod(1),
    "norm": lambda x: x.norm(2, dim=1),
    "norm of order inf": lambda x: x.norm(float("inf")),
    "sort": lambda x: x.sort(1)[0],
    "topk": lambda x: x.topk(2, 1)[0],
    "cummax": lambda x: x.cummax(1)[0],
    "max_pool": lambda x: F.max_pool1d(x[None], 2, 1),
    "std": lambda x: x.std(1),
}


def assert_as_eager(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    """Compare results, gradients and gradients of gradients of two calls with eager."""
    jitted = thunder.jit(fn)
    for _ in range(2):
        torch.testing.assert_close(derivatives(jitted, x), derivatives(fn, x), equal_nan=True)
    assert thunder.cache_hits(jitted) == 1


def derivatives(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[Any]:
    x = x.clone().requires_grad_()
    y = fn(x)
    (g,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad((g * g).sum(), x, allow_unused=True) if g.requires_grad else (None,)
    return [y.detach(), g.detach(), torch.zeros_like(x) if h is None else h]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 3)])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_empty_reductions(name: str, shape: tuple[int, int]) -> None:
    assert_as_eager(REDUCTIONS[name], torch.ones(shape))


@pytest.mark.parametrize("name", TIES)
def test_equal_elements(name: str) -> None:
    assert_as_eager(TIES[name], torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [2.0, 1.0, 2.0]]))


# -- gradients inside a program ---------------------------------------------------------------------------------------
def with_create_graph(x: torch.Tensor) -> torch.Tensor:
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return g**2


def with_retain_graph(x: torch.Tensor) -> torch.Tensor:
    y = x**3
    (g,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (h,) = torch.autograd.grad((y * 2).sum(), x)
    return g + h + x


def without_graph(x: torch.Tensor) -> torch.Tensor:
    (g,) = torch.autograd.grad((x**3).sum(), x)
    return g * x


@pytest.mark.parametrize("fn", [with_create_graph, with_retain_graph, without_graph])
def test_gradients_inside(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert_as_eager(fn, torch.arange(1.0, 4.0))
