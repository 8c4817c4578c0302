# SPDX-License-Identifier: Apache-2.0
"""Values that no kind can guard. A program that uses such a value cannot be cached.

A mention of the value's name alone does not count as a use. If the value's class and all its bases are written in
Python, every use reads an attribute (in a method or a special method), and a hook sees this read. For other classes no
hook sees the uses, so the bytecode is inspected: a global or a closure variable that is only compared by identity is
not used. Values found in any other way (an argument, an attribute that was read, an item of a container) count as used.
"""

from __future__ import annotations

import weakref
from types import CodeType
from typing import Any

import torch

from thunder.capture.base.sources import CellContents, Global, Source
from thunder.capture.reads import bytecode
from thunder.capture.reads.guard_kinds import IsAlive, IsObject
from thunder.capture.reads.kinds.base import Recorder
from thunder.capture.reads.kinds.unguardable import is_pure_python
from thunder.runtime.torch_private import SCRIPTED

__all__ = ["Unguardables"]


class Unguardables:
    """The unguardable values that one run of a program found."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._watched: dict[int, tuple[Source, Any]] = {}
        self._named: list[tuple[Global | CellContents, Any]] = []

    def found(self, source: Source, value: Any) -> None:
        """Record an unguardable value that a read found."""
        if is_pure_python(type(value)) and self._recorder.watch(type(value)):
            self._watched[id(value)] = source, value
            self._recorder.add(_is_same_object(source, value))
        elif isinstance(source, (Global, CellContents)):
            self._named.append((source, value))
        else:
            self._deny(source, value)

    def code_starts(self, code: CodeType) -> None:
        """End the trace before code runs that uses a value with a name: the program may change the value."""
        for source, value in self._named:
            if not bytecode.uses(code, bytecode.VARIABLE, source.name) <= {bytecode.IDENTITY}:
                self._deny(source, value)

    def used(self, obj: Any) -> bool:
        """End the trace if an unguardable value is used: the program may change it, which nothing could undo."""
        found = self._watched.get(id(obj))
        if found is not None:
            self._deny(*found)
        return found is not None

    def finish(self, ran: list[CodeType]) -> None:
        """Guard, at the end of the run, the values that were only compared by identity."""
        for source, value in self._named:
            uses = {use for code in ran for use in bytecode.uses(code, bytecode.VARIABLE, source.name)}
            if uses <= {bytecode.IDENTITY}:
                self._recorder.add(_is_same_object(source, value))
            else:  # by code that was not seen when it started
                self._recorder.refuse(_reason(source, value))

    def release(self) -> None:
        """Release references to the user's objects."""
        self._watched.clear()
        self._named.clear()

    def _deny(self, source: Source, value: Any) -> None:
        self._recorder.deny(_reason(source, value))


def _reason(source: Source, value: Any) -> str:
    if isinstance(value, (torch.jit.ScriptModule, *SCRIPTED)):
        return f"`{source}` is compiled by torch.jit, which thunder cannot trace"
    return f"`{source}` is a {type(value).__qualname__}, which thunder cannot guard"


def _is_same_object(source: Source, value: Any) -> IsAlive | IsObject:
    """Return a guard that the value is the same object. It stores a weak reference to the value where possible."""
    try:
        return IsAlive(source, weakref.ref(value))
    except TypeError:
        return IsObject(source, value)
