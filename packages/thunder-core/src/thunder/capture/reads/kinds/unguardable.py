# SPDX-License-Identifier: Apache-2.0
"""Values that no other kind matches, and the exceptions that are trusted without guards on their state.

The default is to refuse: if a program uses a value that no kind can guard, its trace is used for one call and is not
cached. A mention of the value's name alone does not count as a use. A library's values are not trusted merely because a
library defines them: each trusted class has an entry in `libraries.TRUSTED` with the reason.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from typing import Any

from thunder.capture.base.predicates import module_of
from thunder.capture.base.snapshots import variables
from thunder.capture.base.sources import Source
from thunder.capture.reads.guard_kinds import IsAlive, IsObject
from thunder.capture.reads.hooks import can_hook
from thunder.capture.reads.kinds.base import Holder, Kind, Rebuilder, Recorder
from thunder.capture.reads.libraries import is_library, is_trusted

__all__ = ["Trusted", "Unguardable", "is_pure_python"]


def is_pure_python(cls: type) -> bool:
    """Check whether a class's instances have no state except attributes, i.e. no base is written in C."""
    return all(c is object or (can_hook(c) and module_of(c) not in sys.builtin_module_names) for c in cls.__mro__)


class Trusted(Kind):
    """Instances of the classes in `libraries.TRUSTED`. They are only guarded to be the same object."""

    is_shared = False
    is_leaf = True

    def match(self, cls: type) -> bool:
        """Match a library class if it, its module or a package of it is listed."""
        return can_hook(cls) and is_trusted(cls)

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Guard that the value is the same object, and read user functions that it stores."""
        try:
            recorder.add(IsAlive(source, weakref.ref(value)))
        except TypeError:
            recorder.add(IsObject(source, value))
        for name, item in (variables(value) or {}).items():
            dispatches = isinstance(value, functools.singledispatchmethod)
            if isinstance(item, types.FunctionType) and (dispatches or not is_library(item.__code__.co_filename)):
                recorder.value(source.variable(name), item)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Build a new object with the same attributes."""
        return epilogue.new_object(value) if variables(value) is not None else epilogue.not_rebuilt(value)


class Unguardable(Kind):
    """Values that no other kind matches."""

    is_shared = False

    def match(self, cls: type) -> bool:
        """Match every class."""
        return True

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Let the recorder check whether the program uses the value."""
        recorder.unguardable_found(source, value)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Build a new object with the same attributes, if it has no other state."""
        rebuilt = is_pure_python(type(value)) and variables(value) is not None
        return epilogue.new_object(value) if rebuilt else epilogue.not_rebuilt(value)
