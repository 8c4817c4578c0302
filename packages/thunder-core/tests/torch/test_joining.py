# SPDX-License-Identifier: Apache-2.0
"""Joining tensors of different types, and repeating by counts that are tensors."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from outcomes import message_and_notes

import thunder
from thunder.core.samples import SampleInput
from thunder.tests import running
from thunder.tests.opinfos import opinfo_of

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3), st.sampled_from(["cat", "stack", "hstack"]))
def test_types_are_promoted(dtypes: list[torch.dtype], name: str) -> None:
    """As torch promotes tensors of one rank."""
    tensors = [torch.ones(2, dtype=dtype) for dtype in dtypes]
    sample = SampleInput(tensors)
    trace = running.to_primitives(running.trace_sample(opinfo_of(name), sample))
    actual = running.run_trace(running.execution_trace(trace, ()), sample)
    expected = getattr(torch, name)(tensors)
    assert actual.dtype is expected.dtype
    assert torch.equal(actual, expected)


def test_gradients_come_back_in_each_ones_type() -> None:
    """Through the promotion."""
    a = torch.randn(2, requires_grad=True)
    b = torch.randn(3, dtype=torch.float64, requires_grad=True)
    g = torch.randn(5, dtype=torch.float64)
    actual = torch.autograd.grad(thunder.jit(lambda a, b: torch.cat([a, b]))(a, b), (a, b), g)
    for x, y in zip(actual, torch.autograd.grad(torch.cat([a, b]), (a, b), g)):
        assert x.dtype is y.dtype
        assert torch.equal(x, y)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), max_size=4))
def test_repeating_by_counts(counts: list[int]) -> None:
    """With the size of the result given, counts may be a tensor: one trace serves all counts that add up to it."""
    a = torch.arange(1.0, 1 + 2 * len(counts)).reshape(2, len(counts))
    repeats, total = torch.tensor(counts, dtype=torch.int64), sum(counts)
    sample = SampleInput(a, repeats, 1, output_size=total)
    trace = running.to_primitives(running.trace_sample(opinfo_of("repeat_interleave"), sample))
    actual = running.run_trace(running.execution_trace(trace, ()), sample)
    assert torch.equal(actual, torch.repeat_interleave(a, repeats, 1, output_size=total))


def test_meshgrids() -> None:
    """Given one by one or as a list."""
    a, b = torch.randn(2), torch.randn(3)
    for fn in (
        lambda a, b: torch.meshgrid(a, b, indexing="xy"),
        lambda a, b: torch.meshgrid([a, b], indexing="ij"),
    ):
        for x, y in zip(thunder.jit(fn)(a, b), fn(a, b)):
            assert torch.equal(x, y)


def test_errors_name_what_does_not_fit() -> None:
    """The tensor's number, the sizes, and the user's line."""
    with pytest.raises(RuntimeError, match="Expected size 3 but got size 4 for tensor number 1") as raised:
        thunder.jit(lambda a, b: torch.cat([a, b]))(torch.ones(2, 3), torch.ones(2, 4))
    assert "test_joining.py" in message_and_notes(raised.value)
