# SPDX-License-Identifier: Apache-2.0
"""The objects that a program makes while it is traced: Python's garbage collector knows which objects are new."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Iterable
from typing import Any

from thunder.capture.base.substitutions import Substitutions

__all__ = ["collect_garbage", "functions_made", "new_objects", "watch_new_objects"]

# The ids of new objects that a collection has moved to an older generation. Only newer objects can have them, too.
_moved: set[int] = set()


def watch_new_objects(substitutions: Substitutions) -> None:
    """Turn the garbage collector off until the board is restored, so that generation 0 contains only new objects."""
    if gc.isenabled():
        substitutions.callback(gc.enable)
    gc.collect(0)  # moves existing young objects to an older generation
    gc.disable()
    _moved.clear()
    substitutions.callback(_moved.clear)


def new_objects() -> set[int]:
    """Return the ids of the objects created since `watch_new_objects`."""
    return _moved.union(map(id, gc.get_objects(generation=0)))


def functions_made(ran: Iterable[types.CodeType]) -> dict[int, weakref.ref[Any]]:
    """Return the functions that code has made since `watch_new_objects`, by their ids.

    A function that a collection has moved to an older generation is missing.
    """
    nested = (x for code in ran for x in code.co_consts if type(x) is types.CodeType)
    if all(code.co_name in _COMPREHENSIONS for code in nested):
        return {}
    return {id(x): weakref.ref(x) for x in gc.get_objects(generation=0) if type(x) is types.FunctionType}


_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


def collect_garbage() -> None:
    """Collect cycles, which may keep handles alive: e.g. the frames of an exception that a library has caught."""
    _moved.update(new_objects())
    gc.collect()
