# SPDX-License-Identifier: Apache-2.0
"""Functions that a program makes and stores or returns, e.g. hooks that a model registers in its first call.

Another process makes them anew: from the code in a named function, whose digest is checked, and from the values of
closure variables and defaults. A list of operations cannot check what such a function does when it is called later, so
they are read from signed entries only.
"""

from __future__ import annotations

import dis
import enum
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from thunder.saved.references import Stale, Unsavable, named_path

__all__ = ["TAG", "describe_function", "make_function"]

#: The tag of their constants.
TAG = "function"

_VALUES = (str, int, bool, float, complex, bytes, types.NoneType, torch.dtype, torch.device, types.FunctionType,
           types.BuiltinFunctionType, types.ModuleType)  # fmt: skip
_PAUSED = 0x20 | 0x80 | 0x200  # generators, coroutines and asynchronous generators, which may go on later


def describe_function(x: types.FunctionType, encode: Callable[[Any], Any]) -> list[Any]:
    """Return the constant of a function without its tag, or raise `Unsavable`."""
    title = f"the function {x.__qualname__}, which the program makes"
    owner = _owner(x)
    steps = None if owner is None else _steps(owner.__code__, x.__code__)
    if steps is None:
        raise Unsavable(f"{title} in no function that a module has by name")
    if vars(x) or getattr(x, "__type_params__", ()) or x.__module__ != x.__globals__.get("__name__"):
        raise Unsavable(f"{title} and gives attributes")
    codes = [*_codes(owner.__code__, steps)]
    if any(code.co_flags & _PAUSED for code in codes[:-1]):
        raise Unsavable(f"{title} in a generator")
    changed = {name for code in codes for nested in _nested(code) for name in _stored(nested)}
    if not changed.isdisjoint(x.__code__.co_freevars):
        raise Unsavable(f"{title} with a variable that functions share and assign")
    return [
        encode(owner),
        steps,
        [x.__name__, x.__qualname__],
        [_value(cell.cell_contents, encode, title) for cell in _cells(x, title)],
        [_value(v, encode, title) for v in x.__defaults__ or ()],
        [[k, _value(v, encode, title)] for k, v in (x.__kwdefaults__ or {}).items()],
        [[k, _value(v, encode, title)] for k, v in _annotations(x, title).items()],
    ]


def make_function(
    owner: Any,
    steps: Sequence[int],
    names: Sequence[str],
    closure: Sequence[Any],
    defaults: Sequence[Any],
    keywords: Sequence[tuple[str, Any]],
    annotations: Sequence[tuple[str, Any]],
) -> types.FunctionType:
    """Return a new function. Its owner has been checked."""
    if type(owner) is not types.FunctionType:
        raise Stale("the owner of a function that the program makes is no function")
    code = [*_codes(owner.__code__, steps)][-1]
    made = types.FunctionType(code, owner.__globals__, names[0], tuple(defaults) or None, tuple(map(_cell, closure)))
    made.__qualname__ = names[1]
    made.__kwdefaults__ = dict(keywords) or None
    if annotations:
        made.__annotations__ = dict(annotations)
    return made


def _owner(x: types.FunctionType) -> Any:
    """Return the function of a module or a class in whose code a function is defined, or None."""
    module = sys.modules.get(x.__globals__.get("__name__", ""))
    if module is None or module.__dict__ is not x.__globals__:
        return None
    found: Any = module
    for name in x.__qualname__.partition(".<locals>.")[0].split("."):
        found = vars(found).get(name) if isinstance(found, (types.ModuleType, type)) else None
        found = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
    is_function = type(found) is types.FunctionType and found.__globals__ is x.__globals__
    return found if is_function and named_path(found) is not None else None


def _steps(code: types.CodeType, searched: types.CodeType) -> list[int] | None:
    """Return the positions in constants that lead from code to code in it, or None."""
    for i, const in enumerate(code.co_consts):
        if const is searched:
            return [i]
        found = _steps(const, searched) if isinstance(const, types.CodeType) else None
        if found is not None:
            return [i, *found]
    return None


def _codes(code: types.CodeType, steps: Sequence[int]) -> Iterator[types.CodeType]:
    """Yield code and the nested code to which steps lead."""
    yield code
    for i in steps:
        code = code.co_consts[i]
        if not isinstance(code, types.CodeType):
            raise Stale("the code of a function that the program makes has changed")
        yield code


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield const
            yield from _nested(const)


def _stored(code: types.CodeType) -> Iterator[str]:
    """Yield the closure variables of other code that code assigns or deletes."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_DEREF", "DELETE_DEREF") and instruction.argval in code.co_freevars:
            yield instruction.argval


def _cell(x: Any) -> types.CellType:
    return types.CellType(x)


def _cells(x: types.FunctionType, title: str) -> Sequence[types.CellType]:
    cells = x.__closure__ or ()
    for cell in cells:
        try:
            cell.cell_contents  # noqa: B018
        except ValueError:
            raise Unsavable(f"{title} with a variable without a value") from None
    return cells


def _annotations(x: types.FunctionType, title: str) -> dict[str, Any]:
    try:
        return x.__annotations__
    except Exception as error:  # since Python 3.14, they are code that runs when they are read
        raise Unsavable(f"{title} with annotations that cannot be evaluated ({error})") from None


def _value(x: Any, encode: Callable[[Any], Any], title: str) -> Any:
    if not _is_constant(x):
        raise Unsavable(f"{title} with a {type(x).__qualname__}, which others may change")
    return encode(x)


def _is_constant(x: Any) -> bool:
    """Check whether a value never changes, or is the same object in all functions that refer to it."""
    if type(x) in (tuple, frozenset):
        return all(map(_is_constant, x))
    return type(x) in _VALUES or isinstance(x, (type, enum.Enum))
