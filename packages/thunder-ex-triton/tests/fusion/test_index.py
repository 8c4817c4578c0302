# SPDX-License-Identifier: Apache-2.0
"""Indices: the addresses that kernels compute, for random shapes, orders of iteration and strides."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder_ex_triton.fusion.index import Group, Index, address

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def offsets(index: Index, strides: tuple[int, ...], count: int) -> list[int]:
    """Return the offset for each value of the index variable."""
    text = address(index, strides)
    return [eval(text, {"x": x}) for x in range(count)]


@st.composite
def permuted(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Draw a shape, an order of iteration, and an order of memory."""
    shape = tuple(draw(SHAPES))
    orders = st.permutations(range(len(shape)))
    return shape, tuple(draw(orders)), tuple(draw(orders))


def strides_of(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Return dense strides; `order` goes from the outermost dimension to the innermost."""
    found, step = [0] * len(shape), 1
    for d in reversed(order):
        found[d] = step
        step *= shape[d]
    return tuple(found)


@given(permuted())
def test_any_order_of_iteration(of: Any) -> None:
    """Element x of the order of iteration has the address that its coordinates and strides give."""
    shape, order, memory = of
    index = Index([Group("x", tuple(shape[d] for d in order))]).transposed(order)
    assert index.shape == shape
    tensor = torch.arange(math.prod(shape)).as_strided(shape, strides_of(shape, memory))
    assert offsets(index, strides_of(shape, memory), math.prod(shape)) == tensor.permute(order).reshape(-1).tolist()


@given(permuted(), st.data())
def test_reshaped_and_broadcast(of: Any, data: Any) -> None:
    """The same after a reshape to one dimension and back to two, and for a tensor that is broadcast."""
    shape, order, _ = of
    count = math.prod(shape)
    index = Index([Group("x", tuple(shape[d] for d in order))]).transposed(order)
    whole = torch.arange(count).reshape(shape).permute(order).reshape(-1).tolist()
    assert offsets(index.reshaped((count,)), (1,), count) == whole
    for divisor in (d for d in range(1, count + 1) if count % d == 0):
        two = index.reshaped((divisor, count // divisor))
        assert offsets(two, (count // divisor, 1), count) == whole
    kept = sorted(data.draw(st.sets(st.sampled_from(range(len(shape))))))
    small = tuple(shape[d] for d in kept)
    expected = torch.arange(math.prod(small)).reshape([n if d in kept else 1 for d, n in enumerate(shape)])
    found = offsets(index.of_broadcast(small, kept), strides_of(small, tuple(range(len(small)))), count)
    assert found == expected.expand(shape).permute(order).reshape(-1).tolist()


@given(permuted(), st.data())
def test_sizes_that_change_before_a_reshape(of: Any, data: Any) -> None:
    """A dimension of another size, as of what is padded, in a tensor whose dimensions are then joined."""
    shape, order, _ = of
    inner = tuple([n + data.draw(st.integers(0, 2)) for n in shape])
    index = Index([Group("x", tuple(shape[d] for d in order))]).transposed(order)
    found = index.mapped(lambda i, e: e, inner).reshaped((math.prod(inner),))
    element = torch.arange(math.prod(inner)).view(inner)[tuple(map(slice, shape))].permute(order)
    assert offsets(found, (1,), math.prod(shape)) == element.flatten().tolist()


def test_memory_order_needs_no_division() -> None:
    """A channels-last tensor that is read in the order of its memory, and vectors along its dimensions."""
    n, c, h, w = shape = (2, 8, 4, 6)
    order = (0, 2, 3, 1)
    index = Index([Group("x", (n, h, w, c))]).transposed(order)
    assert address(index, strides_of(shape, order)) == "x"
    assert address(index.of_broadcast((c,), (1,)), (1,)) == f"(x % {c})"
    assert address(index, (c * h * w, 1, 0, 0)) == f"((x // {c * h * w}) * {c * h * w} + (x % {c}))"


def test_groups_that_were_joined_are_split_without_division() -> None:
    """Rows and columns in a shape that joins them, and in the shape before."""
    index = Index([Group("x", (12,)), Group("r", (4,))])
    joined = index.reshaped((3, 1, 16))
    assert joined.key == (("(x * 4 + r)", (3, 16)),)
    assert joined.reshaped((3, 4, 4)).of_broadcast((3, 4), (0, 1)).key == (("x", (3, 4)),)
