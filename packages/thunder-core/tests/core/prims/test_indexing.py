# SPDX-License-Identifier: Apache-2.0
"""Index primitives: where the picked dimensions stand, what positions in memory are, and what comes back."""

from __future__ import annotations

import itertools

import pytest
import torch

import thunder
from thunder.core import prims
from thunder.core.prims.indexing import indexed_shape
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace


def test_where_picked_dimensions_stand() -> None:
    """For every subset of dimensions: in their place if they are neighbours, else in front."""
    a = torch.zeros(4, 5, 6, 7)
    positions = torch.zeros(2, 3, dtype=torch.int64)
    with tracectx(Trace()):
        proxy = TensorProxy("a", shape=a.shape, device="cpu", dtype=a.dtype)
        index = TensorProxy("i", shape=positions.shape, device="cpu", dtype=torch.int64)
        for picked in itertools.product((False, True), repeat=4):
            if any(picked):
                expected = a[tuple(positions if p else slice(None) for p in picked)].shape
                found, _, common = indexed_shape(proxy, [index if p else None for p in picked])
                assert found == tuple(expected)
                assert common == (2, 3)


def test_positions_in_memory() -> None:
    """offset + i * stride, over all i in order: the elements that a strided view of 0, 1, 2 … shows."""
    memory = torch.arange(40)
    for size, stride, offset in (((2, 3), (7, 2), 1), ((), (), 4), ((0, 3), (1, 1), 0), ((5,), (3,), 2)):

        def fn(x: torch.Tensor, size: object = size, stride: object = stride, offset: int = offset) -> torch.Tensor:
            return thunder.torch.as_strided_scatter(x, x.as_strided(size, stride, offset) * 0 - 1, size, stride, offset)

        expected = memory.clone()
        expected.as_strided(size, stride, offset).fill_(-1)
        assert torch.equal(thunder.jit(fn)(memory), expected)


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_gives_gradients_to_both(accumulate: bool) -> None:
    """To what is kept, and to what is written."""

    def fn(a: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.index_put(a, (i,), v, accumulate)

    a = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    i = torch.tensor([2, 0])
    g = torch.randn(3, 2, dtype=torch.float64)
    for x, y in zip(
        torch.autograd.grad(thunder.jit(fn)(a, i, v), (a, v), g), torch.autograd.grad(fn(a, i, v), (a, v), g)
    ):
        assert torch.equal(x, y)


def test_windows_written_back() -> None:
    """slice_scatter is what slice reads, with strides too."""
    a, src = torch.zeros(4, 6), torch.ones(2, 3)
    out = thunder.jit(lambda a, s: prims.slice_scatter(a, s, (0, 1), (4, 6), (2, 2)) * 1)(a, src)
    expected = a.clone()
    expected[0:4:2, 1:6:2] = src
    assert torch.equal(out, expected)
