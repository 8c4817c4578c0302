# SPDX-License-Identifier: Apache-2.0
"""Functions whose result depends on values say so, where in the user's file it was, and what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
from thunder.core.errors import TracingError

CALLS = {
    "nonzero": (lambda x: x.nonzero(), "torch.where"),
    "nonzero as tuple": (lambda x: torch.nonzero(x, as_tuple=True), "torch.where"),
    "argwhere": (torch.argwhere, "torch.where"),
    "masked_select": (lambda x: x.masked_select(x > 0), "masked_fill"),
    "where": (lambda x: torch.where(x > 0), "Choose between two values"),
    "unique": (lambda x: x.unique(), "torch.sort"),
    "unique with counts": (lambda x: torch.unique(x, return_counts=True), "torch.sort"),
    "unique_consecutive": (lambda x: x.unique_consecutive(), "torch.sort"),
    "repeat_interleave": (lambda x: x.repeat_interleave((x > 0).long()), "output_size="),
    "item": (lambda x: x[0].item(), "torch.where"),
    "tolist": (lambda x: x.tolist(), "torch.where"),
}


@pytest.mark.parametrize(("fn", "way_out"), CALLS.values(), ids=list(CALLS))
def test_they_name_the_way_out(fn: Any, way_out: str) -> None:
    """As an error of tracing."""

    def program(x: torch.Tensor) -> Any:
        return fn(x)

    with pytest.raises(TracingError, match=way_out) as raised:
        thunder.jit(program)(torch.randn(3))
    assert "test_data_dependent.py" in str(raised.value)


def test_of_nothing_the_answer_is_known() -> None:
    """A tensor without elements has none that are nonzero, different or selected."""
    x = torch.randn(0, 2)
    for fn in (lambda x: x.nonzero(), torch.argwhere, lambda x: x.masked_select(x > 0), torch.unique):
        assert thunder.jit(fn)(x).shape == fn(x).shape
    assert [t.shape for t in thunder.jit(lambda x: x.nonzero(as_tuple=True))(x)] == [(0,), (0,)]


def test_the_ways_out_work() -> None:
    """What the messages propose can be traced."""
    x = torch.tensor([1.0, -2.0, 3.0])
    for fn in (
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.masked_fill(x < 0, 0.0),
        lambda x: x.repeat_interleave((x > 0).long(), output_size=2),
        lambda x: torch.sort(x).values,
    ):
        assert torch.equal(thunder.jit(fn)(x), fn(x))
