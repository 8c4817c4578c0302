# SPDX-License-Identifier: Apache-2.0
"""Values that no kind claims: a program that uses one cannot be cached.

To name one is no use. Of an object whose class, and all its bases, are written in Python, every use reads an attribute,
be it in a method or a special method: a hook sees that. Of any other a use cannot be seen, so the code is asked: what a
global or a variable of a closure is only compared with by identity is not used. Found in another way (an argument, an
attribute that was read, an item of a container), it counts as used.
"""

from __future__ import annotations

import weakref
from types import CodeType
from typing import Any

from thunder.capture.base.sources import CellContents, Global, Source
from thunder.capture.reads import bytecode
from thunder.capture.reads.guard_kinds import IsAlive, IsObject
from thunder.capture.reads.kinds.base import Recorder
from thunder.capture.reads.kinds.unguardable import is_pure_python

__all__ = ["Unguardables"]


class Unguardables:
    """The unguardable values that one run of a program reached."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._watched: dict[int, tuple[Source, Any]] = {}
        self._named: list[tuple[Global | CellContents, Any]] = []

    def found(self, source: Source, value: Any) -> None:
        """Note a value that a read led to."""
        if is_pure_python(type(value)) and self._recorder.watch(type(value)):
            self._watched[id(value)] = source, value
            self._recorder.add(_is_same_object(source, value))
        elif isinstance(source, (Global, CellContents)):
            self._named.append((source, value))
        else:
            self._refuse(source, value)

    def used(self, obj: Any) -> bool:
        """Note that an attribute of an object was read, and return whether it is one of these."""
        found = self._watched.get(id(obj))
        if found is not None:
            self._refuse(*found)
        return found is not None

    def finish(self, ran: list[CodeType]) -> None:
        """Ask, at the end of the run, the code that ran what it does with those that have names."""
        for source, value in self._named:
            uses = {use for code in ran for use in bytecode.uses(code, bytecode.VARIABLE, source.name)}
            if uses <= {bytecode.IDENTITY}:
                self._recorder.add(_is_same_object(source, value))
            else:
                self._refuse(source, value)

    def release(self) -> None:
        """Let go of the user's objects."""
        self._watched.clear()
        self._named.clear()

    def _refuse(self, source: Source, value: Any) -> None:
        self._recorder.refuse(f"`{source}` is a {type(value).__qualname__}, which thunder cannot guard")


def _is_same_object(source: Source, value: Any) -> IsAlive | IsObject:
    """Return the guard that it is this object, kept alive only where it cannot be referred to weakly."""
    try:
        return IsAlive(source, weakref.ref(value))
    except TypeError:
        return IsObject(source, value)
