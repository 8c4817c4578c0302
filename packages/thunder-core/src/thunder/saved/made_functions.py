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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from thunder.saved.references import Stale, Unsavable, named_path

__all__ = ["TAG", "describe_function", "make_function"]

#: The tag of their constants.
TAG = "function"

_VALUES = (str, int, bool, float, complex, bytes, types.NoneType, torch.dtype, torch.device, types.FunctionType,
           types.BuiltinFunctionType, types.ModuleType)  # fmt: skip
_PAUSED = 0x20 | 0x80 | 0x200  # generators, coroutines and asynchronous generators, which may go on later


def describe_function(x: types.FunctionType, encode: Callable[[Any], Any], number: Callable[[Any], int]) -> list[Any]:
    """Return the constant of a function without its tag, or raise `Unsavable`. `number` numbers objects."""
    title = f"the function {x.__qualname__}, which the program makes"
    owner = _owner(x)
    steps = None if owner is None else _steps(owner.__code__, x.__code__)
    if steps is None:
        raise Unsavable(f"{title} in no function that a module has by name")
    if vars(x) or getattr(x, "__type_params__", None) or x.__module__ != x.__globals__.get("__name__"):
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
        _values([cell.cell_contents for cell in _cells(x, title)], encode, title),
        None if x.__defaults__ is None else [number(x.__defaults__), _values(x.__defaults__, encode, title)],
        *[[[*d], _values(d.values(), encode, title)] for d in (x.__kwdefaults__ or {}, _annotations(x, title))],
    ]


def make_function(
    decode: Callable[[Any], Any],
    made: dict[int, Any],
    owner: Any,
    steps: Sequence[int],
    names: Sequence[str],
    closure: Sequence[Any],
    defaults: tuple[int, Sequence[Any]] | None,
    *named: tuple[Sequence[str], Sequence[Any]],
) -> types.FunctionType:
    """Return a new function. Functions with the same tuple of defaults, e.g. a constant, share it, too."""
    function = decode(owner)
    if type(function) is not types.FunctionType:
        raise Stale("the owner of a function that the program makes is no function")
    code = [*_codes(function.__code__, steps)][-1]
    cells = tuple([types.CellType(decode(x)) for x in closure])
    found = types.FunctionType(code, function.__globals__, names[0], None, cells)
    found.__qualname__ = names[1]
    if defaults is not None:
        found.__defaults__ = made.setdefault(defaults[0], tuple(map(decode, defaults[1])))
    keywords, annotations = (dict(zip(keys, map(decode, values))) for keys, values in named)
    found.__kwdefaults__ = keywords or None
    if annotations:
        found.__annotations__ = annotations
    return found


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


def _values(values: Iterable[Any], encode: Callable[[Any], Any], title: str) -> list[Any]:
    values = [*values]
    for x in values:
        if not _is_constant(x):
            raise Unsavable(f"{title} with a {type(x).__qualname__}, which others may change")
    return [encode(x) for x in values]


def _is_constant(x: Any) -> bool:
    """Check whether a value never changes, or is the same object in all functions that refer to it."""
    if type(x) in (tuple, frozenset):
        return all(map(_is_constant, x))
    return type(x) in _VALUES or isinstance(x, (type, enum.Enum))
