# SPDX-License-Identifier: Apache-2.0
"""Description of the object that keeps a leaked tensor alive, found with the garbage collector, for error messages."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Iterable
from typing import Any

from thunder.capture.base.predicates import module_of

__all__ = ["describe_referrer"]

_IN_THE_WAY = (types.FrameType, types.TracebackType)


def describe_referrer(thing: Any, besides: Iterable[Any] = ()) -> str:
    """Describe the object that keeps `thing` alive. Objects in `besides` do not count."""
    ignored = {id(x) for x in besides}
    named = _named(thing, ignored, 3)
    return named or "an unknown place"


def _named(thing: Any, ignored: set[int], depth: int) -> str | None:
    referrers = [_suspended(r) for r in gc.get_referrers(thing) if id(r) not in ignored]
    referrers = [r for r in referrers if id(r) not in ignored and not isinstance(r, _IN_THE_WAY)]
    ignored = ignored | {id(referrers), id(thing)}
    best: str | None = None
    for holder in referrers:
        found = _name(holder, thing, ignored, depth)
        if found is not None:
            return found
        best = best or (f"a {type(holder).__name__}" if depth == 3 and not _is_own(holder) else None)
    return best


def _suspended(holder: Any) -> Any:
    """Return the generator that owns a frame (before Python 3.11 it also owns the variables), else `holder`."""
    if not isinstance(holder, types.FrameType):
        return holder
    owners = (r for r in gc.get_referrers(holder) if isinstance(r, types.GeneratorType) and r.gi_frame is holder)
    return next(owners, holder)


def _is_by_thread(x: dict[Any, Any]) -> bool:
    """Check whether a dict is the internal dict in which `threading.local` stores one dict for each thread."""
    keys = [k() if isinstance(k, weakref.ref) else k for k in x]  # since Python 3.13 keys are not weak references
    return any(type(k).__name__ == "_localdummy" for k in keys)


def _is_own(holder: Any) -> bool:
    return module_of(type(holder)).partition(".")[0] == "thunder" or type(holder).__name__.endswith("iterator")


def _name(holder: Any, thing: Any, ignored: set[int], depth: int) -> str | None:
    """Return a description of a holder, if users know the holder by a name."""
    if isinstance(holder, types.ModuleType):
        return f"the module {holder.__name__}"
    if isinstance(holder, types.CellType):
        return _variable(holder, ignored)
    if isinstance(holder, types.GeneratorType):
        return f"a variable of the generator {holder.__qualname__}"
    if type(holder) is dict:
        key: Any = next((k for k, v in holder.items() if v is thing), None)
        name = str(dict.get(holder, "__name__"))
        if holder is getattr(sys.modules.get(name), "__dict__", None):
            return f"the global {key} of {name}"
        for owner in gc.get_referrers(holder):
            if getattr(owner, "__dict__", None) is holder and not isinstance(owner, _IN_THE_WAY):
                return None if _is_own(owner) else f"the attribute {key} of a {type(owner).__name__}"
        if any(isinstance(owner, dict) and _is_by_thread(owner) for owner in gc.get_referrers(holder)):
            return f"the attribute {key} of a threading.local"
    if not isinstance(holder, (dict, type)) and not _is_own(holder):
        # Python stores attributes inside the object until some code accesses its `__dict__`.
        for key, value in (getattr(holder, "__dict__", None) or {}).items():
            if value is thing:
                return f"the attribute {key} of a {type(holder).__name__}"
    if type(holder).__name__ in ("hamt", "hamt_bitmap_node", "Context"):
        return "a context variable"
    if depth > 0 and module_of(type(holder)) in ("builtins", "collections", "_collections"):
        outer = _named(holder, ignored | {id(holder)}, depth - 1)
        return f"a {type(holder).__name__} in {outer}" if outer is not None else None
    return None


def _variable(cell: Any, ignored: set[int]) -> str | None:
    for closure in gc.get_referrers(cell):
        if isinstance(closure, tuple) and id(closure) not in ignored:
            for fn in gc.get_referrers(closure):
                if isinstance(fn, types.FunctionType) and fn.__closure__ is closure:
                    position = next(i for i, c in enumerate(closure) if c is cell)  # `==` would compare the contents
                    return f"the variable {fn.__code__.co_freevars[position]} of {fn.__qualname__}"
    return "a variable of a function"
