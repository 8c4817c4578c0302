# SPDX-License-Identifier: Apache-2.0
"""Replacements of built-in functions that read attributes of any object, e.g. `getattr`, `vars` and `dir`.

No hook sees the attributes of a class whose metaclass is `type`, nor those of functions. User code therefore calls
these functions while it is traced: they report reads of classes and functions before they call the built-in function.
"""

from __future__ import annotations

import builtins
import functools
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from thunder.capture.base.phase import TracerPhase, active

__all__ = ["BUILTIN_READERS"]

_get_ident = threading.get_ident
_FUNCTIONS = (types.FunctionType, types.MethodType)


def _report(x: Any, name: Any) -> None:
    if active.thread != _get_ident() or type(name) is not str:
        return
    reader: Any = active.reader
    if type(x) in _FUNCTIONS:
        with TracerPhase():
            reader.function_read(x, name)
    elif issubclass(type(x), type) and (id(x), name) not in reader.seen:
        with TracerPhase():
            reader.value_read(x, name)


@functools.wraps(builtins.getattr)
def _getattr(x: Any, name: Any, *default: Any) -> Any:
    _report(x, name)
    return builtins.getattr(x, name, *default)


@functools.wraps(builtins.hasattr)
def _hasattr(x: Any, name: Any) -> bool:
    _report(x, name)
    return builtins.hasattr(x, name)


@functools.wraps(builtins.vars)
def _vars(*x: Any) -> Any:
    if not x:  # the variables of the caller
        return sys._getframe(1).f_locals
    _report(x[0], "__dict__")
    return builtins.vars(*x)


@functools.wraps(builtins.dir)
def _dir(*x: Any) -> Any:
    if not x:  # the variables of the caller
        return sorted(sys._getframe(1).f_locals)
    if active.thread == _get_ident():
        reader: Any = active.reader
        with TracerPhase():
            reader.names_listed(x[0])
    return builtins.dir(*x)


@functools.wraps(builtins.callable)
def _callable(x: Any) -> bool:
    if active.thread == _get_ident():
        reader: Any = active.reader
        with TracerPhase():
            reader.special_method_read(type(x), "__call__")
    return builtins.callable(x)


# By the names of the built-in functions.
BUILTIN_READERS: dict[str, Callable[..., Any]] = {
    "getattr": _getattr, "hasattr": _hasattr, "vars": _vars, "callable": _callable, "dir": _dir,
}  # fmt: skip
