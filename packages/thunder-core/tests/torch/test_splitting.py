# SPDX-License-Identifier: Apache-2.0
"""Taking tensors apart at random places, and positions that are tensors."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import thunder
from thunder.core.samples import SampleInput
from thunder.tests import running
from thunder.tests.opinfos import opinfo_of


@settings(max_examples=80)
@given(
    name=st.sampled_from(["split", "chunk", "tensor_split"]),
    length=st.integers(0, 7),
    where=st.integers(1, 9) | st.lists(st.integers(-3, 9), max_size=3),
)
def test_parts_are_torchs(name: str, length: int, where: Any) -> None:
    """Numbers and sizes of the parts, and what is in them; the same errors."""
    a = torch.arange(1.0, 1 + 2 * length).reshape(length, 2)
    sample = SampleInput(a, where)
    try:
        expected = getattr(torch, name)(a, where)
    except (RuntimeError, TypeError) as error:
        with pytest.raises(type(error)):
            running.trace_sample(opinfo_of(name), sample)
        return
    trace = running.to_primitives(running.trace_sample(opinfo_of(name), sample))
    actual = running.run_trace(running.execution_trace(trace, ()), sample)
    assert len(actual) == len(expected)
    assert all(torch.equal(x, y) for x, y in zip(actual, expected))


def test_positions_that_are_tensors() -> None:
    """select and narrow read them when the program runs: one trace serves all values."""
    jitted = thunder.jit(lambda a, i: (a.select(0, i), a.narrow(1, i, 2)))
    a = torch.randn(3, 4)
    for i in (torch.tensor(0), torch.tensor(2), torch.tensor(-2)):
        for actual, expected in zip(jitted(a, i), (a[i], a.narrow(1, i, 2))):
            assert torch.equal(actual, expected)
    assert thunder.cache_misses(jitted) == 1


def test_sizes_that_are_tensors() -> None:
    """The parts' shapes depend on them, so the program runs eagerly, with a warning that names the way out."""
    a, i = torch.randn(4), torch.tensor([1, 2])
    with pytest.warns(UserWarning, match="Pass the positions as a Python number, list or tuple"):
        found = thunder.jit(lambda a, i: a.tensor_split(i))(a, i)
    torch.testing.assert_close(found, a.tensor_split(i))


def test_writes_to_overlapping_windows() -> None:
    """Windows that share elements are written to eagerly, as torch does; those that do not are views like others."""

    def overlapping(x: torch.Tensor) -> torch.Tensor:
        return (x * 1).unfold(0, 3, 1).add_(1)

    with pytest.warns(UserWarning, match="more than one element of the written-to tensor"):
        found = thunder.jit(overlapping)(torch.arange(5.0))
    assert torch.equal(found, overlapping(torch.arange(5.0)))

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.unfold(0, 2, 3).mul_(10)
        return y

    x = torch.randn(8)
    assert torch.equal(thunder.jit(program)(x), program(x))
