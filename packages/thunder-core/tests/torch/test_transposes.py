# SPDX-License-Identifier: Apache-2.0
"""Orders of dimensions and elements over random arguments."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

import thunder
from thunder.core.samples import SampleInput
from thunder.tests import running
from thunder.tests.opinfos import opinfo_of

SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=4)


def _agrees(name: str, *args: Any) -> None:
    sample = SampleInput(*args)
    trace = running.to_primitives(running.trace_sample(opinfo_of(name), sample))
    assert torch.equal(running.run_trace(running.execution_trace(trace, ()), sample), getattr(torch, name)(*args))


@settings(max_examples=60)
@given(SHAPES, st.data())
def test_movedim(shape: list[int], data: st.DataObject) -> None:
    """Several dimensions at once, counted from either end."""
    rank = len(shape)
    dims = st.lists(st.integers(0, rank - 1), unique=True, max_size=rank)
    source = data.draw(dims)
    destination = data.draw(st.permutations(range(rank)))[: len(source)]
    a = torch.arange(torch.Size(shape).numel()).reshape(shape)
    _agrees("movedim", a, tuple(d - rank for d in source), tuple(destination))


@settings(max_examples=60)
@given(SHAPES, st.data())
def test_roll(shape: list[int], data: st.DataObject) -> None:
    """By more than the length, backwards, along the same dimension twice, or through all elements."""
    a = torch.arange(torch.Size(shape).numel()).reshape(shape)
    if data.draw(st.booleans()):
        _agrees("roll", a, data.draw(st.integers(-9, 9)))
        return
    dims = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=3))
    _agrees("roll", a, tuple(data.draw(st.integers(-9, 9)) for _ in dims), tuple(dims))


def test_the_gradient_of_a_roll_is_a_roll() -> None:
    """In one operation, which fusers recognize, and exactly."""
    a = torch.randn(4, 5, requires_grad=True)
    for args in (((1, -2), (0, 1)), (3, -1), (7,)):
        jitted = thunder.jit(lambda x, args=args: x.roll(*args) * 2)
        g = torch.randn(4, 5)
        assert torch.equal(torch.autograd.grad(jitted(a), a, g)[0], torch.autograd.grad(a.roll(*args) * 2, a, g)[0])
        assert [op.sym.name for op in thunder.last_backward_traces(jitted)[0].bound_symbols].count("roll") == 1


@settings(max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=4), st.integers(-5, 5), st.data())
def test_rot90(shape: list[int], k: int, data: st.DataObject) -> None:
    """In every plane, either way."""
    a = torch.arange(torch.Size(shape).numel()).reshape(shape)
    _agrees("rot90", a, k, tuple(data.draw(st.permutations(range(len(shape))))[:2]))


def test_transposes_of_complex_matrices() -> None:
    """H and mH are conjugated, T and mT are not."""
    a = torch.randn(2, 3, dtype=torch.complex64)
    for fn in (lambda a: a.T, lambda a: a.mT, lambda a: a.H, lambda a: a.mH, lambda a: a.adjoint(), lambda a: a.t()):
        assert torch.equal(thunder.jit(fn)(a), fn(a))
