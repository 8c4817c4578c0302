# SPDX-License-Identifier: Apache-2.0
"""Chains of shape operations against torch: what one leaves behind is what the next one gets."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import thunder
from thunder import clang
from thunder.clang.shape import infer_shape
from thunder.core.proxies import TensorProxy
from thunder.core.samples import SampleInput
from thunder.core.state import tracectx
from thunder.core.symbol import Symbol
from thunder.core.trace import Trace
from thunder.tests import running
from thunder.tests.opinfo import OpInfo


# -- random chains ----------------------------------------------------------------------------------------------------
@st.composite
def _factors(draw: Any, count: int) -> tuple[int, ...]:
    """A shape of `count` elements."""
    if count == 0:
        return tuple(draw(st.permutations([0, *draw(st.lists(st.integers(1, 3), max_size=2))])))
    shape, rest = [], count
    for divisor in (2, 3, 2, 5):
        if rest % divisor == 0 and draw(st.booleans()):
            shape.append(divisor)
            rest //= divisor
    return tuple(draw(st.permutations([*shape, rest])))


def _permute(draw: Any, x: torch.Tensor) -> Any:
    order = draw(st.permutations(range(x.ndim)))
    return lambda a: a.permute(tuple(order))


def _reshape(draw: Any, x: torch.Tensor) -> Any:
    shape = list(draw(_factors(x.numel())))
    if x.numel() and draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return lambda a: a.reshape(shape)


def _expand(draw: Any, x: torch.Tensor) -> Any:
    sizes = [draw(st.sampled_from([n, -1])) if n != 1 else draw(st.integers(0, 3)) for n in x.shape]
    sizes = [*draw(st.lists(st.integers(1, 2), max_size=1)), *sizes]
    return lambda a: a.expand(*sizes) if sizes else a.expand(())


def _unsqueeze(draw: Any, x: torch.Tensor) -> Any:
    dim = draw(st.integers(-x.ndim - 1, x.ndim))
    return lambda a: a.unsqueeze(dim)


def _squeeze(draw: Any, x: torch.Tensor) -> Any:
    dim = draw(st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1))
    return (lambda a: a.squeeze()) if draw(st.booleans()) else (lambda a: a.squeeze(dim))


def _movedim(draw: Any, x: torch.Tensor) -> Any:
    dims = st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1)
    source, destination = draw(dims), draw(dims)
    return lambda a: a.movedim(source, destination)


def _flip(draw: Any, x: torch.Tensor) -> Any:
    dims = tuple(draw(st.lists(st.integers(0, x.ndim - 1), unique=True))) if x.ndim else ()
    return lambda a: a.flip(dims)


def _narrow(draw: Any, x: torch.Tensor) -> Any:
    if x.ndim == 0:
        return lambda a: a
    dim = draw(st.integers(-x.ndim, x.ndim - 1))
    start = draw(st.integers(0, x.shape[dim]))
    length = draw(st.integers(0, x.shape[dim] - start))
    return lambda a: a.narrow(dim, start, length)


def _flatten(draw: Any, x: torch.Tensor) -> Any:
    last = max(x.ndim, 1) - 1
    start = draw(st.integers(0, last))
    end = draw(st.integers(start, last))
    return lambda a: a.flatten(start, end)


_STEPS = (_permute, _reshape, _expand, _unsqueeze, _squeeze, _movedim, _flip, _narrow, _flatten)


@st.composite
def chains(draw: Any) -> tuple[torch.Tensor, list[Any]]:
    """A tensor and functions to apply to it one after the other."""
    shape = draw(st.sampled_from([(2, 3, 4), (6,), (), (1, 5), (0, 3), (4, 1, 3, 2)]))
    first = x = torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
    steps = []
    for _ in range(draw(st.integers(1, 5))):
        step = draw(st.sampled_from(_STEPS))(draw, x)
        steps.append(step)
        x = step(x)
        if x.numel() > 500:
            break
    return first, steps


@settings(max_examples=120)
@given(chains())
def test_chains_are_torchs(case: tuple[torch.Tensor, list[Any]]) -> None:
    """Results and gradients of a program, and the results of the primitives it comes down to."""
    x, steps = case

    def chain(a: Any) -> Any:
        for step in steps:
            a = step(a)
        return a * 1

    x.requires_grad_()
    expected = chain(x)
    actual = thunder.jit(chain)(x)
    assert torch.equal(actual, expected)
    g = torch.arange(1.0, 1 + expected.numel(), dtype=torch.float64).reshape(expected.shape)
    (grad,) = torch.autograd.grad(actual, x, g)
    torch.testing.assert_close(grad, torch.autograd.grad(expected, x, g)[0])

    info = OpInfo(Symbol("chain", chain), sample_input_generator=lambda *_: iter(()))
    trace = running.to_primitives(running.trace_sample(info, SampleInput(x.detach())))
    assert torch.equal(running.run_trace(running.execution_trace(trace, ()), SampleInput(x.detach())), expected)


# -- the parts --------------------------------------------------------------------------------------------------------
def test_inferring_a_shape() -> None:
    """At most one size is open, and it must come out even."""
    assert infer_shape((2, -1), 6) == (2, 3)
    assert infer_shape((), 1) == ()
    assert infer_shape((3, -1, 2), 0) == (3, 0, 2)
    for shape, count, message in (
        ((-1, -1), 6, "only one dimension can be inferred"),
        ((4, -1), 6, r"shape '\[4, -1\]' is invalid for input of size 6"),
        ((0, -1), 0, "is ambiguous"),
        ((-2, 3), 6, "invalid shape dimension -2"),
    ):
        with pytest.raises(RuntimeError, match=message):
            infer_shape(shape, count)


def test_what_changes_nothing_records_nothing() -> None:
    """The core language answers the input itself."""
    trace = Trace()
    with tracectx(trace):
        a = TensorProxy("a", shape=(2, 3), device="cpu", dtype=torch.float32)
        assert clang.reshape(a, (2, -1)) is a
        assert clang.transpose(a, (0, -1)) is a
        assert clang.squeeze(a, (0, 1)) is a
        assert clang.slice_in_dim(a, 0, 3, dim=1) is a
    assert not trace.bound_symbols


def test_unfold_says_what_is_wrong() -> None:
    """The wording that contributors' documents show."""
    with tracectx(Trace()):
        a = TensorProxy("a", shape=(8,), device="cpu", dtype=torch.float32)
        for args, error, message in (
            ((0, 10, 1), RuntimeError, "Maximum size for tensor at dimension 0 is 8 but size is 10"),
            ((0, 0, -1), RuntimeError, "Step is -1 but must be > 0"),
            ((0, -5, 1), RuntimeError, "Size is -5 but must be >= 0"),
            ((1, 2, 1), IndexError, r"Dimension out of range \(expected to be in range of \[-1, 0\], but got 1\)"),
        ):
            with pytest.raises(error, match=message):
                clang.unfold(a, *args)
