# SPDX-License-Identifier: Apache-2.0
"""Padding over random shapes and margins, negative ones too."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from thunder.core.samples import SampleInput
from thunder.tests import running
from thunder.tests.opinfos import opinfo_of

PAD = opinfo_of("pad")


@st.composite
def calls(draw: Any) -> tuple[torch.Tensor, tuple[int, ...], str]:
    """A tensor, margins and a mode."""
    mode = draw(st.sampled_from(["constant", "reflect", "replicate", "circular"]))
    padded = draw(st.integers(1, 2 if mode == "constant" else 3))
    rank = padded + (draw(st.integers(0, 2)) if mode == "constant" else draw(st.integers(1, 2)))
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank)))
    margins = tuple(draw(st.lists(st.integers(-2, 4), min_size=2 * padded, max_size=2 * padded)))
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape), margins, mode


def _has_an_answer(a: torch.Tensor, margins: tuple[int, ...], mode: str) -> bool:
    # Where negative margins leave nothing of a dimension, or less of it than is to be repeated, torch reads memory that
    # it has not written.
    for n, before, after in zip(reversed(a.shape), margins[::2], margins[1::2]):
        left = n + min(before, 0) + min(after, 0)
        if left <= 0 or (mode == "circular" and left < max(before, after) <= n):
            return False
    return True


@settings(max_examples=150)
@given(calls())
def test_padding_is_torchs(case: tuple[torch.Tensor, tuple[int, ...], str]) -> None:
    """The same elements, or an error where torch has one: by torch's function and by primitives."""
    a, margins, mode = case
    if not _has_an_answer(a, margins, mode):
        return
    try:
        expected = torch.nn.functional.pad(a, margins, mode)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            running.trace_sample(PAD, SampleInput(a, margins, mode))
        return
    sample = SampleInput(a, margins, mode)
    trace = running.trace_sample(PAD, sample)
    for program in (trace, running.to_primitives(trace)):
        assert torch.equal(running.run_trace(running.execution_trace(program, ()), sample), expected)


def test_the_value_takes_the_tensors_type() -> None:
    """As torch converts it: 1.5 is 1 among integers, and None is nothing."""
    for a, value in (
        (torch.arange(3), 1.5),
        (torch.tensor([True]), 2),
        (torch.ones(2, dtype=torch.complex64), 1.5),
        (torch.ones(2), None),
    ):
        sample = SampleInput(a, (1, 1), "constant", value)
        trace = running.to_primitives(running.trace_sample(PAD, sample))
        actual = running.run_trace(running.execution_trace(trace, ()), sample)
        assert torch.equal(actual, torch.nn.functional.pad(a, (1, 1), "constant", value))


@pytest.mark.parametrize("margins", [(), (0, 0), (0, 0, 0, 0)])
def test_padding_by_nothing_is_a_copy(margins: tuple[int, ...]) -> None:
    """In the memory order of the tensor, as torch's, and of its own memory."""
    a = torch.randn(3, 4).mT
    sample = SampleInput(a, margins, "constant", 2.0)
    trace = running.to_primitives(running.trace_sample(PAD, sample))
    assert [op.sym.name for op in trace.bound_symbols if op.out_names and not op.sym.is_structural] == ["clone"]
    actual = running.run_trace(running.execution_trace(trace, ()), sample)
    expected = torch.nn.functional.pad(a, margins, "constant", 2.0)
    assert torch.equal(actual, expected) and actual.stride() == expected.stride()
    assert actual.data_ptr() != a.data_ptr()
