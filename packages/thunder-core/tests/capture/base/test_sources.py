# SPDX-License-Identifier: Apache-2.0
"""Sources: each step reads the value that its code says, under the name that messages give it."""

from __future__ import annotations

import collections
import contextvars
from typing import Any

import pytest
import torch

from thunder.capture.base.hook_sources import HasGradientHooks
from thunder.capture.base.sources import (
    Argument,
    Attr,
    BaseItem,
    Cell,
    CellContents,
    ContextValue,
    DictKeys,
    DictValues,
    Global,
    Item,
    Length,
    Root,
    Scope,
    Size,
    Source,
    Variables,
)

VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("VARIABLE")
GLOBAL = 5


def closed_over() -> Any:
    inside = 3
    return lambda: inside


class Names:
    """An object whose attributes are no names, a keyword or ordinary."""

    def __init__(self) -> None:
        self.plain = 1
        self.__dict__.update({"class": 2, "two words": 3})


class Deque(collections.deque):  # type: ignore[type-arg]
    """A container's subclass with code of its own."""

    def __getitem__(self, i: Any) -> Any:
        raise AssertionError


class Dict(dict):  # type: ignore[type-arg]
    """Another."""

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError


KEY = object()
# What a step starts from, the step, its value and what a message calls it.
STEPS: list[tuple[Any, tuple[Any, ...], Any, str]] = [
    (Names(), (Attr, "plain"), 1, "x.plain"),
    (Names(), (Attr, "class"), 2, "getattr(x, 'class')"),
    (Names(), (Attr, "two words"), 3, "getattr(x, 'two words')"),
    ({"{}": 1}, (Item, "{}"), 1, "x['{}']"),
    ({"a{1}'\"b": 1}, (Item, "a{1}'\"b"), 1, "x['a{1}\\'\"b']"),
    ([1, 2], (Item, 1), 2, "x[1]"),
    ({(1, "a"): 2}, (Item, (1, "a")), 2, "x[(1, 'a')]"),
    ({1: 2, KEY: 3}, (DictValues,), (2, 3), "tuple(dict.values(x))"),
    ({1: 2, KEY: 3}, (DictKeys,), (1, KEY), "tuple(dict.keys(x))"),
    (Deque([4, 5]), (BaseItem, collections.deque, 1), 5, "deque.__getitem__(x, 1)"),
    (Dict(a=4), (BaseItem, dict, "a"), 4, "dict.__getitem__(x, 'a')"),
    ([1, 2], (Length,), 2, "len(x)"),
    (torch.ones(2, 3), (Size, 1), 3, "x.shape[1]"),
    (torch.ones(2), (HasGradientHooks,), False, "(bool(x._backward_hooks) or x.retains_grad)"),
    (VARIABLE, (ContextValue,), None, "x.get(None)"),
]


@pytest.mark.parametrize(("start", "step", "value", "text"), STEPS, ids=[text for *_, text in STEPS])
def test_reading_and_code_agree(start: Any, step: tuple[Any, ...], value: Any, text: str) -> None:
    """Also where names and keys have in them what templates would take for something else."""
    source = Root(start, title="x").to(*step)
    assert source.find() == value
    assert source.code("x") == text
    assert str(source) == text
    assert eval(source.code("x"), {"x": start, **source.helpers}) == value
    assert source is source.parent.to(*step)  # type: ignore[union-attr]


def test_variables_of_functions() -> None:
    """Are called as in the code."""
    fn = closed_over()
    inside = Root(fn, title="fn").to(Cell, 0).to(CellContents, "inside")
    assert (inside.find(), str(inside), inside.label) == (3, "inside", "inside")
    assert inside.code(inside.parent.code("fn")) == "fn.__closure__[0].cell_contents"  # type: ignore[union-attr]
    scope = Root(test_variables_of_functions, title="f").to(Scope, "__globals__", "test_sources")
    found = scope.to(Global, "GLOBAL")
    assert (found.find(), str(found), found.label, str(scope)) == (5, "GLOBAL", "GLOBAL", "test_sources")


def test_calls() -> None:
    """Arguments are literals, tuples and other sources; equal literals of other types make other calls."""

    def fn(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    root, other = Root(fn, title="fn"), Root({"k": 7}, title="other")
    call = root.call((1, ("a", other.item("k")), float("inf")), {"key": (2.5,)}, "made")
    assert call.find() == ((1, ("a", 7), float("inf")), {"key": (2.5,)})
    assert str(call) == "fn(1, ('a', other['k'], ), float('inf'), key=(2.5, ))"
    assert call.operands == (other.item("k"),)
    assert root.call((1,)) is root.call((1,))
    assert len({root.call((1,)), root.call((True,)), root.call((1.0,)), root.call(("1",))}) == 4


def test_arguments() -> None:
    """Are given by the call."""
    source: Source = Argument(1, "batch").variable("x").item(0)
    batch = Names()
    batch.x = [8]  # type: ignore[attr-defined]
    assert source.find(lambda argument: [None, batch][argument.index]) == 8
    assert (str(source), source.label) == ("batch.x[0]", "batch_x_0")
    assert source.root is source.parent.parent.parent  # type: ignore[union-attr]
    assert isinstance(source.root.attr("__dict__"), Variables)
