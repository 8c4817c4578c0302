# SPDX-License-Identifier: Apache-2.0
"""Hooks on the attributes of classes and of Python modules, e.g. `C.k`, `type(x).__name__` and `getattr(m, "k")`.

A class or a module is watched by assigning its `__class__`: a subclass of its metaclass, or of its class of modules,
reports each attribute to the reader. Other threads, and thunder's own code, see the plain attributes.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from thunder.capture.base.phase import TracerPhase, active
from thunder.capture.base.substitutions import Substitutions
from thunder.capture.reads.libraries import is_library_class

__all__ = ["ValueHooks", "is_watchable_module", "is_watched", "unwatched_class"]

# The watching subclasses of classes of libraries, e.g. of `type` and `ModuleType`; they are made once.
_known: dict[type, type] = {}


def unwatched_class(x: Any) -> type:
    """Return the class that a class or module has outside tracing."""
    cls = type(x)
    return cls.__dict__.get("_thunder_watches", cls)


def is_watched(x: Any) -> bool:
    """Check whether a class or module is watched."""
    return "_thunder_watches" in type(x).__dict__


def _watching(base: Any) -> type:
    """Return a subclass of `base` that reports the attributes of its instances, which are classes or modules."""
    get_ident = threading.get_ident
    read: Callable[[Any, str], Any] = base.__getattribute__
    assign, delete, initialize = base.__setattr__, base.__delattr__, base.__init__

    def __getattribute__(self: Any, name: str) -> Any:
        if name == "__class__":
            return base if type(self) is watching else read(self, name)
        if active.thread == get_ident():
            reader: Any = active.reader
            if (id(self), name) not in reader.seen:
                with TracerPhase():
                    reader.value_read(self, name)
        return read(self, name)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if active.thread == get_ident():
            with TracerPhase():
                active.reader.value_assigned(self, name, value)  # type: ignore[union-attr]
        assign(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        if active.thread == get_ident():
            with TracerPhase():
                active.reader.value_assigned(self, name, None)  # type: ignore[union-attr]
        delete(self, name)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        if type(self) is watching:  # a class that the program defines, as a subclass of a watched class
            type.__setattr__(self, "__class__", base)

    members = {
        "__getattribute__": __getattribute__, "__setattr__": __setattr__, "__delattr__": __delattr__,
        "__init__": __init__, "__slots__": (), "__module__": base.__module__, "__qualname__": base.__qualname__,
        "__doc__": base.__doc__, "_thunder_watches": base,
    }  # fmt: skip
    watching: type = type(base)(base.__name__, (base,), members)
    return watching


class ValueHooks:
    """The classes and modules that one session watches."""

    def __init__(self, substitutions: Substitutions):
        self._substitutions = substitutions
        self._watching: dict[type, type | None] = {}

    def watch(self, x: Any) -> bool:
        """Watch the attributes of a class or a module, and return whether that is possible."""
        if is_watched(x):
            return True
        watching = self._subclass(type(x))
        if watching is None:
            return False
        try:
            self._substitutions.change_class(x, watching)
        except TypeError:  # the class is immutable, or has another layout
            return False
        return True

    def _subclass(self, base: type) -> type | None:
        known = _known if is_library_class(base) else self._watching
        found: Any = known.get(base, known)
        if found is known:
            try:
                found = _watching(base)
            except Exception:  # e.g. code that runs for each subclass of a metaclass
                found = None
            known[base] = found  # type: ignore[index]
        return found


def is_watchable_module(module: types.ModuleType) -> bool:
    """Check whether a module may be watched: thunder itself and torch read their own modules."""
    return module is not sys and module.__name__.partition(".")[0] not in ("torch", "thunder", "builtins")
