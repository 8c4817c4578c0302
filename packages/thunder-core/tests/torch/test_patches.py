# SPDX-License-Identifier: Apache-2.0
"""Patches of images over random geometries, and that putting together is the transpose of taking apart."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

import thunder
from thunder.core.samples import SampleInput
from thunder.tests import running
from thunder.tests.opinfos import opinfo_of

PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=60)
@given(
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    PAIRS,
    PAIRS,
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    PAIRS,
)
def test_geometries(size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> None:
    """By primitives, both ways."""
    a = torch.arange(1.0, 1 + 2 * size[0] * size[1]).reshape(1, 2, *size)
    options = {"dilation": dilation, "padding": padding, "stride": stride}
    try:
        columns = torch.nn.functional.unfold(a, kernel, **options)
    except RuntimeError:
        return
    image = torch.nn.functional.fold(columns, size, kernel, **options)
    for name, sample, expected in (
        ("im2col", SampleInput(a, kernel, **options), columns),
        ("col2im", SampleInput(columns, size, kernel, **options), image),
    ):
        trace = running.to_primitives(running.trace_sample(opinfo_of(name), sample))
        assert torch.equal(running.run_trace(running.execution_trace(trace, ()), sample), expected)


def test_in_programs() -> None:
    """With gradients, through both."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        columns = torch.nn.functional.unfold(x, 3, padding=1, stride=2)
        return torch.nn.functional.fold(columns * columns, (5, 5), 3, padding=1, stride=2)

    x = torch.randn(2, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    actual, expected = thunder.jit(fn)(x), fn(x)
    torch.testing.assert_close(actual, expected)
    g = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(actual, x, g)[0], torch.autograd.grad(expected, x, g)[0])
