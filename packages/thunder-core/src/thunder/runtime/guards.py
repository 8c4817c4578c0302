# SPDX-License-Identifier: Apache-2.0
"""The functions that prologues call. They compare values with those of the traced call, and raise if a guard fails."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any

import torch

from thunder.runtime.containers import dict_type
from thunder.runtime.messages import format_message
from thunder.runtime.tensor_check import overlap

__all__ = [
    "CLASS_INTERNALS",
    "GuardFailed",
    "TensorsDiffer",
    "call_memoized",
    "check_different",
    "check_distinct",
    "class_attributes",
    "flatten_call",
    "flatten_call_in_order",
    "plain_base",
    "plain_value",
    "referent",
    "same_attributes",
    "same_contents",
    "same_plain_value",
    "same_value",
]


class GuardFailed(Exception):
    """A guard of a specialization does not hold in this call: a cache miss, not an error.

    Its arguments alternate between texts and values, e.g. the guarded expression, the old value and the new value.
    """

    def __str__(self) -> str:
        return format_message(self.args)


class TensorsDiffer(GuardFailed):
    """The metadata of tensors differs. The message is computed lazily, because most lookups do not need it."""

    def __str__(self) -> str:
        check, tensors = self.args
        return check.explain(tensors)  # type: ignore[no-any-return]


_MEMOIZED = type(functools.lru_cache(lambda: None))


def call_memoized(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function under `functools.lru_cache`."""
    if type(fn) is not _MEMOIZED:
        raise GuardFailed("a memoized function no longer exists")
    return fn(*args, **kwargs)


# -- comparisons ------------------------------------------------------------------------------------------------------
def same_value(x: Any, expected: Any) -> bool:
    """Check whether a plain value has the expected type and value. Here -0.0 differs from 0.0, and NaN equals NaN."""
    if x is expected:
        return True
    kind = type(expected)
    if type(x) is not kind:
        return False
    if kind is tuple:
        return len(x) == len(expected) and all(map(same_value, x, expected))
    if kind is float or kind is complex:
        return repr(x) == repr(expected)
    if kind is slice or kind is range:
        return repr(x) == repr(expected)
    return bool(x == expected)


# The immutable built-in types that user classes may subclass, with the functions that return an instance's value
# without running the code of its class.
_PLAIN_BASES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__pos__,
    str: str.__str__,
    bytes: lambda x: bytes.__getitem__(x, slice(None)),
}


def plain_base(x: Any) -> type | None:
    """Return the built-in type of numbers, strings or bytes that a value is an instance of, or None."""
    return next((base for base in _PLAIN_BASES if base in type(x).__mro__), None)


def plain_value(x: Any) -> Any:
    """Return a number, a string or bytes as a value of the built-in type, given an instance of a subclass."""
    base = plain_base(x)
    assert base is not None
    return _PLAIN_BASES[base](x)


def referent(reference: Any) -> Any:
    """Return the object of a weak reference, or None if it no longer exists."""
    return weakref.ref.__call__(reference)


def same_plain_value(x: Any, expected: Any) -> bool:
    """Check whether an instance of a subclass of `type(expected)` has this value."""
    return same_value(_PLAIN_BASES[type(expected)](x), expected)


def same_contents(x: Any, expected: Any) -> bool:
    """Check whether a container has the expected plain values.

    `expected` is a dict, a frozenset, or a tuple of items. Large containers rarely change, so their items are first
    compared by identity, without running Python code for each item. The items are immutable.
    """
    if type(x) is not tuple and isinstance(x, tuple):  # a subclass, which may define other items or no length
        x = tuple.__getitem__(x, slice(None))
    elif type(x) is not list and isinstance(x, list):
        x = list.__getitem__(x, slice(None))
    if (dict.__len__(x) if isinstance(x, dict) else len(x)) != len(expected):
        return False
    if isinstance(expected, frozenset):
        return _same_elements(x, expected)
    if isinstance(expected, dict):
        base = dict_type(x)
        return _same_items(base.keys(x), expected.keys()) and _same_items(base.values(x), expected.values())
    return _same_items(x, expected)


def _same_items(x: Iterable[Any], expected: Iterable[Any]) -> bool:
    return all(map(is_, x, expected)) or all(map(same_value, x, expected))


def _same_elements(x: Any, expected: frozenset[Any]) -> bool:
    if all(map(is_, x, expected)) or {*map(id, x)} == {*map(id, expected)}:
        return True
    return same_value(tuple(sorted(map(_typed, x))), tuple(sorted(map(_typed, expected))))


def _typed(x: Any) -> str:
    return f"{type(x).__qualname__}:{x!r}"


# Attributes that the interpreter and thunder set on classes.
CLASS_INTERNALS = frozenset({"__getattribute__", "__setattr__", "__delattr__", "__dict__", "__weakref__", "__doc__",
                              "__static_attributes__", "__firstlineno__", "_abc_impl", "__abstractmethods__",
                              "__annotations_cache__"})  # fmt: skip


def class_attributes(attributes: Any) -> dict[str, Any]:
    """Return the attributes of a class, or a snapshot of them, without `CLASS_INTERNALS`."""
    return {name: value for name, value in attributes.items() if name not in CLASS_INTERNALS}


def same_attributes(cls: type, expected: dict[str, Any]) -> bool:
    """Check whether a class has exactly these attributes, with identical values."""
    found = cls.__dict__
    try:
        same = all(map(is_, map(found.__getitem__, expected), expected.values()))
    except KeyError:
        return False
    return same and len(found) == len(expected) + sum(map(found.__contains__, CLASS_INTERNALS))


# -- checks -----------------------------------------------------------------------------------------------------------
def check_different(objects: Sequence[Any]) -> None:
    """Raise if two of the objects are identical. The program changes or compares them, and they were distinct."""
    if len({*map(id, objects)}) != len(objects):
        raise GuardFailed(
            "objects that were different are the same object now, and the program changes or compares them"
        )


def check_distinct(tensors: Sequence[torch.Tensor], written: Sequence[int], arrays: bool = False) -> None:
    """Raise if an input that the program writes to overlaps another input in memory.

    With `arrays`, some inputs are NumPy arrays.
    """
    if overlap(tensors, written, arrays=arrays) is not None:
        raise GuardFailed("an input that is written in place overlaps another input in memory")


def flatten_call(args: tuple[Any, ...], kwargs: dict[str, Any], structure: Any) -> list[Any]:
    """Flatten the arguments of a call, and raise if their structure differs from `structure`.

    `structure` contains no OrderedDict.
    """
    return _flatten(_pytree().flatten_without_ordered_dicts, args, kwargs, structure)


def flatten_call_in_order(args: tuple[Any, ...], kwargs: dict[str, Any], structure: Any) -> list[Any]:
    """Flatten the arguments of a call, and raise if their structure differs from `structure`."""
    return _flatten(_pytree().tree_flatten, args, kwargs, structure)


@functools.cache
def _pytree() -> Any:
    # The import is local: most programs have flat arguments, and do not load optree.
    from thunder.core import pytree

    return pytree


def _flatten(flatten: Callable[[Any], Any], args: Any, kwargs: Any, structure: Any) -> list[Any]:
    try:
        leaves, spec = flatten((args, kwargs))
    except RecursionError:
        raise GuardFailed("an argument contains itself") from None
    if spec != structure:
        raise GuardFailed(f"the structure of the arguments was {structure} and is {spec}")
    return leaves  # type: ignore[no-any-return]
