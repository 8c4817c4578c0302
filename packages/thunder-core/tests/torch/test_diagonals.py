# SPDX-License-Identifier: Apache-2.0
"""Diagonals and triangles over random sizes and offsets."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import thunder
from thunder.core.samples import SampleInput
from thunder.tests import running
from thunder.tests.opinfos import opinfo_of

SIZES = st.integers(0, 5)
OFFSETS = st.integers(-6, 6)


def _by_primitives(name: str, *args: object) -> torch.Tensor:
    sample = SampleInput(*args)
    trace = running.to_primitives(running.trace_sample(opinfo_of(name), sample))
    return running.run_trace(running.execution_trace(trace, ()), sample)


@pytest.mark.parametrize("name", ["tril_indices", "triu_indices"])
@settings(max_examples=40)
@given(row=SIZES, col=SIZES, offset=OFFSETS)
def test_indices(name: str, row: int, col: int, offset: int) -> None:
    """They are computed by primitives, not by torch's function."""
    assert torch.equal(_by_primitives(name, row, col, offset), getattr(torch, name)(row, col, offset))


@pytest.mark.parametrize("name", ["tril", "triu", "diagonal"])
@settings(max_examples=40)
@given(row=SIZES, col=SIZES, offset=OFFSETS)
def test_matrices(name: str, row: int, col: int, offset: int) -> None:
    """The triangles and diagonals of all sizes, empty ones too."""
    a = torch.arange(1.0, 1 + row * col).reshape(row, col)
    assert torch.equal(_by_primitives(name, a, offset), getattr(torch, name)(a, offset))


@settings(max_examples=60)
@given(shape=st.lists(st.integers(0, 3), min_size=1, max_size=3), offset=OFFSETS, data=st.data())
def test_diag_embed(shape: list[int], offset: int, data: st.DataObject) -> None:
    """Into any two dimensions, in either order."""
    rank = len(shape) + 1
    first, second = data.draw(st.permutations(range(rank)))[:2]
    a = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
    assert torch.equal(
        _by_primitives("diag_embed", a, offset, first, second), torch.diag_embed(a, offset, first, second)
    )


def test_special_numbers_outside_of_the_triangle() -> None:
    """They become zeros, forward and backward."""
    a = torch.full((3, 3), float("inf"), dtype=torch.float64, requires_grad=True)
    out = thunder.jit(torch.tril)(a)
    assert torch.equal(out, torch.tril(a))
    (grad,) = torch.autograd.grad(out, a, torch.ones(3, 3, dtype=torch.float64))
    assert torch.equal(grad, torch.ones(3, 3, dtype=torch.float64).tril())


def test_filling_a_diagonal_in_place() -> None:
    """torch has it in place only; tall matrices stop or start again."""
    for shape, wrap in (((3, 4), False), ((7, 2), False), ((7, 2), True), ((3, 3, 3), False), ((0, 2), False)):
        ours, theirs = torch.zeros(shape), torch.zeros(shape)
        thunder.jit(lambda x, wrap=wrap: x.fill_diagonal_(5, wrap) * 1)(ours)
        theirs.fill_diagonal_(5, wrap)
        assert torch.equal(ours, theirs)
