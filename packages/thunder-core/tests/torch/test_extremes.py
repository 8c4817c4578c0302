# SPDX-License-Identifier: Apache-2.0
"""Largest, smallest and middle elements: who gets the gradient among equals and NaNs, and the overloads of `max`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.torch import private

TIES = [[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [0.0, -0.0, -1.0, 0.0]]


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min"])
def test_equals_share(as_eager: Any, name: str) -> None:
    """Over dimensions and over everything."""
    x = torch.tensor(TIES, dtype=torch.float64, requires_grad=True)
    fn = getattr(torch, name)
    as_eager(lambda x: fn(x), x)
    as_eager(lambda x: fn(x, 1), x)
    as_eager(lambda x: fn(x, 0, True), x)
    as_eager(lambda x: torch.aminmax(x, dim=1), x if private.VERSION >= (2, 13) else x.detach())  # has gradients since


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min", "median"])
def test_nan_wins(as_eager: Any, name: str) -> None:
    """A NaN is the largest and the smallest and the middle, and gets what gradient torch gives it."""
    x = torch.tensor([[1.0, math.nan, 2.0], [3.0, 4.0, 5.0]], dtype=torch.float64, requires_grad=True)
    fn = getattr(torch, name)
    as_eager(lambda x: fn(x), x)
    as_eager(lambda x: fn(x, 1), x)


def test_the_overloads_of_max(as_eager: Any, randn: Any) -> None:
    """Of everything, along a dimension with where, of two tensors; by position and by name; named results."""
    x, y = randn(3, 4), randn(4)
    as_eager(lambda x: x.max(), x)
    as_eager(lambda x: torch.max(x, 1), x)
    as_eager(lambda x: torch.max(x, dim=-1, keepdim=True), x)
    as_eager(lambda x: x.min(axis=0).values, x)
    as_eager(lambda x, y: torch.max(x, y), x, y)
    as_eager(lambda x, y: torch.min(x, other=y), x, y)
    result = thunder.jit(lambda x: torch.max(x, 1))(x.detach())
    assert type(result) is torch.return_types.max
    assert torch.equal(result.indices, x.argmax(1))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.bfloat16], ids=str)
def test_positions(by_primitives: Any, dtype: torch.dtype) -> None:
    """The first of equal elements, in every type that has an order."""
    x = torch.tensor([[1, 0, 1], [0, 0, 1]]).to(dtype)
    assert torch.equal(by_primitives(ltorch.max, x, 1)[1], torch.max(x, 1)[1])
    assert torch.equal(by_primitives(ltorch.min, x, 1)[0], torch.min(x, 1)[0])
    if dtype is not torch.bool:
        assert torch.equal(by_primitives(ltorch.argmax, x), torch.argmax(x))
        assert torch.equal(by_primitives(ltorch.argmin, x, 0, True), torch.argmin(x, 0, True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_medians(by_primitives: Any, dtype: torch.dtype) -> None:
    """The lower one of an even number, the same as torch's for numbers all different."""
    x = torch.randperm(24).reshape(4, 6).to(dtype)
    assert torch.equal(by_primitives(ltorch.median, x), torch.median(x))
    for dim in (0, 1):
        ours, theirs = by_primitives(ltorch.median, x, dim), torch.median(x, dim)
        assert torch.equal(ours.values, theirs.values)
        assert torch.equal(ours.indices, theirs.indices)


def test_nothing_to_choose_from(by_primitives: Any) -> None:
    """torch's types and texts."""
    x = torch.empty(0, 3)
    for op in (ltorch.amax, ltorch.max):
        with pytest.raises(RuntimeError, match=r"Expected reduction dim to be specified for input\.numel"):
            by_primitives(op, x)
        with pytest.raises(IndexError, match="Expected reduction dim 0 to have non-zero size"):
            by_primitives(op, x, 0)
    assert by_primitives(ltorch.amax, x, 1).shape == (0,)
    with pytest.raises(TypeError, match=r"max\(\) requires one dimension as an int or another tensor"):
        by_primitives(ltorch.max, torch.ones(2, 2), (0, 1))
    with pytest.raises(RuntimeError, match="does not support bool input"):
        by_primitives(ltorch.argmax, torch.ones(2, dtype=torch.bool))
    with pytest.raises(NotImplementedError, match="complex numbers have no order"):
        by_primitives(ltorch.amax, torch.ones(2, dtype=torch.complex64))
