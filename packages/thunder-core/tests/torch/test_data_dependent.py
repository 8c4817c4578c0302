# SPDX-License-Identifier: Apache-2.0
"""Functions whose result depends on values: they run, and where Python has to know the value they say so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
from thunder.core.errors import TracingError

CALLS = {
    "nonzero": lambda x: x.nonzero(),
    "nonzero as tuple": lambda x: torch.nonzero(x, as_tuple=True),
    "argwhere": torch.argwhere,
    "masked_select": lambda x: x.masked_select(x > 0),
    "where": lambda x: torch.where(x > 0),
    "unique": lambda x: x.unique(),
    "unique with counts": lambda x: torch.unique(x, return_counts=True),
    "unique_consecutive": lambda x: x.unique_consecutive(),
    "repeat_interleave": lambda x: x.repeat_interleave((x > 0).long()),
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
}


@pytest.mark.parametrize("fn", CALLS.values(), ids=list(CALLS))
def test_they_run(fn: Any) -> None:
    """One program, whatever the values are."""
    jitted = thunder.jit(fn)
    for x in (torch.tensor([1.0, 0.0, -2.0]), torch.tensor([1.0, 1.0, 2.0]), torch.tensor([-1.0, -2.0, 0.0])):
        torch.testing.assert_close(jitted(x), fn(x))
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 2)


ASKED = {
    "a branch": lambda x: x if x[0].item() > 0 else -x,
    "a branch on a length": lambda x: x if len(x.nonzero()) > 1 else -x,
    "a loop": lambda x: [x + i for i in range(x.nonzero().shape[0])],
}


@pytest.mark.parametrize("fn", ASKED.values(), ids=list(ASKED))
def test_where_python_has_to_know(fn: Any) -> None:
    """A trace alone has an error that names the line and the way out; jit gives eager's result."""

    def program(x: torch.Tensor) -> Any:
        return fn(x)

    with pytest.raises(TracingError, match=r"torch\.where") as raised:
        thunder.trace()(program, torch.randn(3))
    assert "test_data_dependent.py" in str(raised.value)
    x = torch.randn(3)
    torch.testing.assert_close(thunder.jit(program)(x), program(x))


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
