# SPDX-License-Identifier: Apache-2.0
"""Single guards: what they accept and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thunder
from thunder.capture.base.sources import Argument
from thunder.capture.reads.guard_kinds import Equals
from thunder.runtime.guards import GuardFailed, same_contents, same_value
from thunder.runtime.tensor_check import TensorCheck

PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=True, width=16), st.text("ab", max_size=2),
    st.complex_numbers(max_magnitude=2, width=64), st.binary(max_size=1),
    st.sampled_from([torch.float32, torch.device("cpu")]),
)  # fmt: skip
NESTED = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    ),
    max_leaves=8,
)


def typed(x: Any) -> Any:
    """A value with the types of everything in it: equal only for what Python cannot tell apart."""
    if isinstance(x, dict):
        return ("dict", [(k, typed(v)) for k, v in x.items()])
    if isinstance(x, (list, tuple)):
        return (type(x).__name__, [typed(i) for i in x])
    return (type(x).__name__, repr(x))


@given(PLAIN, PLAIN)
def test_same_value(a: Any, b: Any) -> None:
    assert same_value(a, a)
    assert same_value(a, b) == (typed(a) == typed(b))
    condition = Equals(Argument(0, "x"), a).condition().format("x", "y")
    assert eval(condition, {"x": b, "y": a, "same_value": same_value, "torch": torch}) == (typed(a) != typed(b))


@given(st.lists(PLAIN, max_size=4), st.lists(PLAIN, max_size=4))
def test_same_contents(a: list[Any], b: list[Any]) -> None:
    assert same_contents(b, tuple(a)) == (typed(a) == typed(b))


@settings(max_examples=40, deadline=None)
@given(st.lists(NESTED, min_size=1, max_size=5))
def test_values_that_a_program_reads(values: list[Any]) -> None:
    """Whatever a variable is changed to, the program sees it."""
    holder: dict[str, Any] = {"value": None}
    jitted = thunder.jit(lambda x: (x + 1, repr(holder)))
    x = torch.ones(2)
    for value in [*values, *values]:
        holder["value"] = value
        assert jitted(x)[1] == repr(holder)


@settings(max_examples=40, deadline=None)
@given(st.lists(NESTED, min_size=1, max_size=5))
def test_values_that_are_arguments(values: list[Any]) -> None:
    jitted = thunder.jit(lambda x, v: (x + 1, repr(v)))
    x = torch.ones(2)
    for value in [*values, *values]:
        assert jitted(x, value)[1] == repr(value)


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(3), torch.ones(2, 2), torch.ones(2, dtype=torch.int64), torch.ones(2, requires_grad=True),
        torch.ones(2, 2)[:, 0], torch.nn.Parameter(torch.ones(2), requires_grad=False), torch.ones(2, device="meta"), 3,
    ],
)  # fmt: skip
def test_metadata_of_tensors(other: Any) -> None:
    check = TensorCheck([torch.ones(2)])
    assert check([torch.zeros(2)])
    assert not check([other])
    assert check.explain([other])


def test_metadata_without_the_private_part_of_torch() -> None:
    check = TensorCheck([torch.ones(2), torch.ones(3)])
    check._fast = None
    assert check([torch.zeros(2), torch.zeros(3)])
    assert not check([torch.zeros(3), torch.zeros(3)])


def test_which_tensors_are_the_same() -> None:
    a, b = torch.ones(2), torch.ones(2)
    check = TensorCheck([a, b])
    assert check([b, a])
    assert not check([a, a])
    assert check([a, b])
    same = TensorCheck([a, a])
    assert same([b, b])
    assert not same([a, b])


def test_a_prologue_names_what_failed() -> None:
    jitted = thunder.jit(lambda x, n: x * n)
    jitted(torch.ones(2), 2)
    prologue = thunder.last_prologue_traces(jitted)[-1].python_callable(decorators=False)
    with pytest.raises(GuardFailed, match="n was 2 and is 3"):
        prologue(torch.ones(2), 3)
    with torch.no_grad(), pytest.raises(GuardFailed, match="grad mode was True and is False"):
        prologue(torch.ones(2), 2)
    with pytest.raises(GuardFailed, match="the shape of x was"):
        prologue(torch.ones(3), 2)
