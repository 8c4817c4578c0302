# SPDX-License-Identifier: Apache-2.0
"""Kinds of values that stand for others: classes, context variables, weak references."""

from __future__ import annotations

import contextvars
import weakref
from typing import Any

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.snapshots import Snapshot, VariableSnapshot
from thunder.capture.base.sources import ContextValue, Source
from thunder.capture.reads.guard_kinds import Equals, HasType, IsObject
from thunder.capture.reads.kinds.base import Kind, Rebuilder, Recorder, SavedName
from thunder.capture.reads.kinds.leaves import PLAIN

__all__ = ["ClassKind", "ContextVariable", "WeakReference"]


class ClassKind(Kind):
    """Classes: what a program reads of them is found by the recorder of classes."""

    def match(self, cls: type) -> bool:
        """Check for classes of classes."""
        return issubclass(cls, type)

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that it is this class."""
        recorder.add(IsObject(source, value))

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Let the recorder of classes know that the program may have it in a variable."""
        recorder.classes.is_value(value)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write the class itself."""
        return epilogue.kept(value)

    def name_in_saved(self, value: Any) -> SavedName | None:
        """Name it by its path, unless a function made it."""
        return None if "<" in value.__qualname__ else SavedName("class", f"{value.__module__}.{value.__qualname__}")


class ContextVariable(Kind):
    """Context variables: their value is what was set when they were reached."""

    def match(self, cls: type) -> bool:
        """Check for context variables."""
        return cls is contextvars.ContextVar

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that it is this variable."""
        recorder.add(IsObject(source, value))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return what it is set to."""
        return [VariableSnapshot(source, value, value.get(ABSENT), recorder.context)]

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read its value, which has to be plain."""
        inner = source.to(ContextValue)
        found = value.get(ABSENT)
        if found is ABSENT:
            recorder.add(Equals(inner, None))
        elif PLAIN.match(type(found)) or (type(found) is tuple and not found):
            recorder.value(inner, found)
        else:
            recorder.refuse(
                f"the context variable `{value.name}` holds a {type(found).__name__}, which thunder cannot guard"
            )


class WeakReference(Kind):
    """Weak references: what they refer to is read."""

    is_shared = False

    def match(self, cls: type) -> bool:
        """Check for references themselves, and not for classes built on them."""
        return cls is weakref.ref

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that it is a reference."""
        recorder.add(HasType(source, type(value)))

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read what it refers to."""
        found = value()
        if found is None:
            recorder.add(IsObject(source.call(), None))
        else:
            recorder.value(source.call(), found)
