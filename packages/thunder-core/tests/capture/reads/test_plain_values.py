# SPDX-License-Identifier: Apache-2.0
"""A cached program is never used where a number, a string or bytes of a user's class has another value.

Also: keyword-only defaults that change, and numbers that the program replaces by equal ones.
"""

from __future__ import annotations

import collections
import decimal
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder

X = torch.linspace(-1, 1, 6)


class Int(int):
    extra = 1


class Float(float):
    extra = 1


class Complex(complex):
    extra = 1


class Str(str):
    extra = 1


class Bytes(bytes):
    extra = 1


VALUES: list[tuple[Any, Any, Callable[[Any], float]]] = [
    (Int(2), Int(5), float),
    (Float(2), Float(5), float),
    (Float(0.0), Float(-0.0), lambda v: float(str(v).startswith("-"))),
    (Complex(2j), Complex(5j), lambda v: float(v.imag)),
    (Str("a"), Str("b"), lambda v: float(v == "a")),
    (Bytes(b"a"), Bytes(b"b"), lambda v: float(v == b"a")),
]


class Holder:
    value: Any = None


@pytest.mark.parametrize(("one", "other", "use"), VALUES, ids=lambda v: type(v).__name__)
def test_the_value_of_a_subclass_is_guarded(watch: Any, one: Any, other: Any, use: Callable[[Any], float]) -> None:
    """In an attribute, an item, a closure, a default and an argument."""
    holder, items, entries = Holder(), [one], {"k": one}
    holder.value = cell = one

    def default(value: Any = one, *, named: Any = one) -> float:
        return use(value) + 2 * use(named)

    def fn(x: Any) -> Any:
        return x * (use(holder.value) + 10 * use(items[0]) + 100 * use(entries["k"]) + 1e3 * use(cell)) + default()

    w = watch(fn)
    holder.value = other
    w.changed()
    items[0] = other
    w.changed()
    entries["k"] = other
    w.changed()
    cell = other
    w.changed()
    default.__defaults__ = (other,)
    w.changed()
    default.__kwdefaults__["named"] = other
    w.changed()

    argument = watch(lambda x, v: x * use(v), X, one)
    argument.changed(X, other)
    argument.kept(X, one)
    argument.kept(X, type(other)(other))


@pytest.mark.parametrize(("one", "other", "use"), VALUES, ids=lambda v: type(v).__name__)
def test_attributes_of_a_subclass_are_guarded(watch: Any, one: Any, other: Any, use: Callable[[Any], float]) -> None:
    """An instance's own attribute, and one of the class."""
    value = type(one)(one)
    w = watch(lambda x: x * value.extra)
    value.extra = 5
    w.changed()
    value.unused = 5
    w.kept()


@pytest.mark.parametrize(("one", "other", "use"), VALUES, ids=lambda v: type(v).__name__)
def test_a_subclass_that_the_program_creates(one: Any, other: Any, use: Callable[[Any], float]) -> None:
    """The epilogue creates a new instance with its attributes at each call."""
    holder = Holder()

    def fn(x: Any) -> Any:
        holder.value = type(one)(one)
        holder.value.extra = x.shape[0]
        return x * 2

    jitted = thunder.jit(fn)
    for _ in range(3):
        holder.value = None
        jitted(X)
        assert type(holder.value) is type(one)
        assert holder.value == one
        assert holder.value.extra == 6
    assert thunder.cache_misses(jitted) == 1


def test_exceptions_and_immutable_objects(watch: Any) -> None:
    """The arguments of an exception, and attributes of a subclass of `Decimal`."""

    class Failed(Exception):
        pass

    class Money(decimal.Decimal):
        pass

    holder = Holder()
    holder.value, money = Failed(2.0), Money(3)
    money.rate = 1.0
    w = watch(lambda x: x * holder.value.args[0] * money.rate)
    holder.value.args = (5.0,)
    w.changed()
    money.rate = 3.0
    w.changed()


class OfC(bytearray):
    pass


def test_a_class_with_state_in_c_is_not_cached(never_cached: Any) -> None:
    """thunder does not know the state of this base class."""
    data = OfC(b"ab")
    assert "OfC" in never_cached(lambda x: x * data[0])


# -- numbers that are inputs ------------------------------------------------------------------------------------------
class Slotted:
    __slots__ = ("n",)


def _set_item(target: Any, key: Any) -> Callable[[Any], None]:
    return lambda value: target.__setitem__(key, value)


def _places() -> dict[str, tuple[Callable[[], Any], Callable[[Any], None]]]:
    """Return functions that read and write a number, by where it is."""
    obj, slotted, items, entries, ends = Holder(), Slotted(), [1], {"n": 1}, collections.deque([1])
    obj.value = slotted.n = 1
    return {
        "attribute": (lambda: obj.value, lambda v: setattr(obj, "value", v)),
        "past the hook": (lambda: obj.value, lambda v: object.__setattr__(obj, "value", v)),
        "slot": (lambda: slotted.n, lambda v: setattr(slotted, "n", v)),
        "list": (lambda: items[0], _set_item(items, 0)),
        "dict": (lambda: entries["n"], _set_item(entries, "n")),
        "deque": (lambda: ends[0], _set_item(ends, 0)),
    }


@pytest.mark.parametrize("place", list(_places()))
def test_an_equal_number_is_a_write(place: str) -> None:
    """A number that is an input is replaced by 3, and was 3 at the trace."""
    read, write = _places()[place]

    def fn(x: Any) -> Any:
        y = x * read()
        write(3)
        return y

    jitted = thunder.jit(fn)
    for value in (1, 2, 3, 4, 5, 3, 6):
        write(value)
        torch.testing.assert_close(jitted(X), X * value)
        assert read() == 3
    assert thunder.cache_misses(jitted) == 3


def test_an_equal_number_is_a_write_to_a_closure() -> None:
    """To a variable of the function that defines the program."""
    n = 1

    def fn(x: Any) -> Any:
        nonlocal n
        y = x * n
        n = 3
        return y

    jitted = thunder.jit(fn)
    for value in (1, 2, 3, 4, 5, 3, 6):
        n = value
        torch.testing.assert_close(jitted(X), X * value)
        assert n == 3
    assert thunder.cache_misses(jitted) == 3


def test_equal_elements_and_keys_are_written() -> None:
    """`True` replaces 1, which is equal to it, in a set and in a dict."""
    elements, entries = {1}, {1: 5}

    def fn(x: Any) -> Any:
        elements.clear()
        elements.add(True)
        entries.clear()
        entries[True] = 5
        return x * 2

    jitted = thunder.jit(fn)
    for _ in range(3):
        elements.clear()
        elements.add(1)
        entries.clear()
        entries[1] = 5
        jitted(X)
        assert repr((elements, entries)) == "({True}, {True: 5})"


def test_keyword_only_defaults_that_keep_changing() -> None:
    """The running code has been called with its defaults, so that they cannot become inputs."""

    def inner(x: Any, *, k: Any = 1, m: Any = 1) -> Any:
        return x * k * m

    def fn(x: Any, *, k: Any = 1) -> Any:
        return inner(x) * k

    jitted = thunder.jit(fn)
    for value in range(1, 6):
        inner.__kwdefaults__["k"] = fn.__kwdefaults__["k"] = value
        torch.testing.assert_close(jitted(X), X * value * value)
        torch.testing.assert_close(jitted(X), X * value * value)
    assert thunder.cache_hits(jitted) == 5
