# SPDX-License-Identifier: Apache-2.0
"""Positions of values: over random masks and sizes."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

import thunder
from thunder.core.samples import SampleInput
from thunder.tests import running
from thunder.tests.opinfos import opinfo_of


@settings(max_examples=80)
@given(st.lists(st.integers(0, 3), max_size=3), st.integers(0, 8), st.data())
def test_nonzero_static(shape: list[int], size: int, data: st.DataObject) -> None:
    """The first ones, and what fills the rest."""
    count = torch.Size(shape).numel()
    a = torch.tensor(data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)), dtype=torch.int64)
    sample = SampleInput(a.reshape(shape), size=size, fill_value=-7)
    trace = running.to_primitives(running.trace_sample(opinfo_of("nonzero_static"), sample))
    actual = running.run_trace(running.execution_trace(trace, ()), sample)
    assert torch.equal(actual, torch.nonzero_static(a.reshape(shape), size=size, fill_value=-7))


def test_numbers_instead_of_tensors() -> None:
    """As torch takes them."""
    line = torch.tensor([1.0, 3.0, 5.0])
    for fn in (
        lambda a: torch.searchsorted(a, 3),
        lambda a: torch.searchsorted(a, 2.5, right=True),
        lambda a: torch.bucketize(3, a, right=True),
    ):
        assert torch.equal(thunder.jit(fn)(line), fn(line))
