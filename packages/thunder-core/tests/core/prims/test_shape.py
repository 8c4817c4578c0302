# SPDX-License-Identifier: Apache-2.0
"""Gradient rules of shape primitives at their edges, by finite differences of what they compute."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import thunder
from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace


def _is_adjoint(fn: Any, *shape: int) -> None:
    """A linear operation's gradient is its transpose: <fn(x), g> = <x, gradient of g>."""
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    out = thunder.jit(fn)(x)
    g = torch.randn_like(out)
    (grad,) = torch.autograd.grad(out, x, g)
    assert grad.shape == x.shape
    torch.testing.assert_close((out * g).sum(), (x * grad).sum())


@settings(max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 3), st.integers(-2, 3), st.integers(0, 2)), max_size=3))
def test_pad(dims: list[tuple[int, int, int, int]]) -> None:
    """Margins that add and take away, and gaps."""
    config = tuple((low, high, between) for _, low, high, between in dims)
    if any(low + n + max(0, n - 1) * between + high < 0 for n, low, high, between in dims):
        return
    _is_adjoint(lambda x: prims.pad(x, 0, config) * 1, *[n for n, *_ in dims])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 3), st.integers(0, 2)), max_size=3))
def test_slice(dims: list[tuple[int, int, int, int]]) -> None:
    """Starts, ends and strides."""
    starts = tuple(start for start, *_ in dims)
    ends = tuple(start + length for start, length, *_ in dims)
    strides = tuple(stride for _, _, stride, _ in dims)
    shape = [end + after for end, (*_, after) in zip(ends, dims)]
    _is_adjoint(lambda x: prims.slice(x, starts, ends, strides) * 1, *shape)


@settings(max_examples=60)
@given(st.integers(0, 7), st.integers(0, 4), st.integers(1, 4), st.integers(0, 1))
def test_unfold(length: int, size: int, step: int, dim: int) -> None:
    """Windows that overlap, touch and leave gaps."""
    if size > length:
        return
    shape = [3, 3]
    shape[dim] = length
    _is_adjoint(lambda x: prims.unfold(x, dim, size, step) * 1, *shape)


def test_broadcast_in_dim() -> None:
    """Dimensions that are spread and ones that are put in between."""
    for shape, new, dims in (
        ((2, 1), [2, 4, 3], (0, 2)),
        ((), [2, 3], ()),
        ((1, 3), [2, 1, 3], (1, 2)),
        ((2,), [2, 1], (0,)),
    ):
        _is_adjoint(lambda x, new=new, dims=dims: prims.broadcast_in_dim(x, new, dims) * 1, *shape)


def test_as_strided() -> None:
    """Elements that are read several times, and ones that are not."""
    for size, stride, offset in (((3, 2), (1, 1), 0), ((2, 2), (4, 1), 2), ((4,), (0,), 2), ((), (), 5)):
        _is_adjoint(lambda x, s=size, t=stride, o=offset: prims.as_strided(x, s, t, o) * 1, 2, 4)


def test_dimensions_keep_their_order() -> None:
    """broadcast_in_dim does not transpose: that is another primitive."""
    with tracectx(Trace()):
        a = TensorProxy("a", shape=(2, 3), device="cpu", dtype=torch.float32)
        with pytest.raises(RuntimeError, match="cannot be broadcast"):
            prims.broadcast_in_dim(a, (3, 2), (1, 0))
