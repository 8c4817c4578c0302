# SPDX-License-Identifier: Apache-2.0
"""Kinds of values that refer to others: classes, context variables and weak references."""

from __future__ import annotations

import contextvars
import decimal
import weakref
from typing import Any

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.snapshots import Snapshot, VariableSnapshot
from thunder.capture.base.sources import ContextValue, Referent, Source
from thunder.capture.reads.guard_kinds import Equals, HasType, IsObject
from thunder.capture.reads.kinds.base import Holder, Kind, Rebuilder, Recorder

__all__ = ["ClassKind", "ContextVariable", "WeakReference"]


class ClassKind(Kind):
    """Classes. The recorder of classes records which of their attributes the program reads."""

    def match(self, cls: type) -> bool:
        """Match classes and metaclasses."""
        return issubclass(cls, type)

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that the value is the same class."""
        recorder.add(IsObject(source, value))

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Report a class that is not known yet, and record the settings of decimal numbers, which their class reads."""
        recorder.classes.is_value(value)
        if value is decimal.Decimal:
            recorder.decimals()

    def held(self, source: Source, value: Any, recorder: Recorder, holder: Holder | None) -> None:
        """Watch instances that the program may make, also if the class has been known before."""
        if not issubclass(value, tuple):  # arguments contain copies of named tuples, which no read would find again
            recorder.classes.makes_instances(value)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write the class itself."""
        return epilogue.kept(value)


class ContextVariable(Kind):
    """Context variables. The snapshot stores the value at the first read."""

    def match(self, cls: type) -> bool:
        """Match context variables."""
        return cls is contextvars.ContextVar

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that the value is the same context variable."""
        recorder.add(IsObject(source, value))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return a snapshot of its value."""
        return [VariableSnapshot(source, value, value.get(ABSENT), recorder.context)]

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read its value, and its default if it has no value."""
        inner = source.to(ContextValue)
        found = value.get(ABSENT)
        if found is not ABSENT:
            recorder.value(inner, found)
            return
        recorder.add(Equals(inner, None))
        try:
            default = value.get()
        except LookupError:
            return
        recorder.value(source.attr("get").call(), default)


class WeakReference(Kind):
    """Weak references. The referenced object is read."""

    is_shared = False

    def match(self, cls: type) -> bool:
        """Match `weakref.ref` itself, but not its subclasses."""
        return cls is weakref.ref

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that the value is a weak reference."""
        recorder.add(HasType(source, type(value)))

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read the referenced object."""
        found = value()
        if found is None:
            recorder.add(IsObject(source.to(Referent), None))
        else:
            recorder.value(source.to(Referent), found)
