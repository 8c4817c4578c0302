# SPDX-License-Identifier: Apache-2.0
"""Whose code runs while a program is traced: the program's own, or thunder's.

Reads and calls are recorded while the program's code runs (`Phase.USER`). Whatever thunder itself does meanwhile runs
in `Phase.TRACER`: no hook records it, operations are recorded as they are, and replaced functions of torch are torch's
own. `active` is what the hooks ask, once for each attribute that is read, so it holds nothing but plain attributes.
"""

from __future__ import annotations

import enum
import sys
import threading
from types import CodeType, FrameType
from typing import Any, Protocol

from thunder.core.state import state

__all__ = ["Phase", "Reader", "TracerPhase", "active", "begin_reads", "end_reads", "pause_reads", "resume_reads"]


class Phase(enum.Enum):
    """Whose code runs."""

    USER = "the program's"
    TRACER = "thunder's, while it traces a program"
    OFF = "no program is traced"


class Reader(Protocol):
    """Records reads and assignments of the program."""

    seen: dict[tuple[int, str], None]
    assigned: set[tuple[int, str]]

    def read(self, obj: Any, name: str) -> bool:
        """Record the first read of `obj.name`; return whether it has to be read again, as its value was replaced."""

    def missing(self, obj: Any, name: str) -> Any:
        """Record that `obj` lacks `name`; return what a module's tables hold under that name, or `ABSENT`."""

    def code_ran(self, code: CodeType, frame: FrameType) -> None:
        """Record that a code object started to run for the first time."""


class _Active:
    """The session that runs, seen from its hooks. Only one thread traces at a time; a nested session replaces it."""

    __slots__ = ("profile", "reader", "thread")

    def __init__(self) -> None:
        self.reader: Reader | None = None
        self.thread = 0  # on which the program's code runs; 0 while thunder's does
        self.profile: Any = None  # the callback of the interpreter's profile, where that is how code is watched

    @property
    def phase(self) -> Phase:
        """Whose code runs."""
        if self.reader is None:
            return Phase.OFF
        return Phase.USER if self.thread else Phase.TRACER


active = _Active()


def pause_reads() -> Any:
    """Begin `Phase.TRACER`; return what `resume_reads` is to be given, None where this thread's reads are paused."""
    if active.thread != threading.get_ident():
        return None
    profiling = active.profile is not None and sys.getprofile() is not None
    if profiling:
        sys.setprofile(None)
    found = active.thread, profiling
    active.thread = 0
    return found


def resume_reads(paused: Any) -> None:
    """Go back to `Phase.USER`."""
    if paused is not None:
        active.thread, profiling = paused
        if profiling:
            sys.setprofile(active.profile)


def begin_reads() -> Any:
    """Begin `Phase.USER` on this thread, from within `Phase.TRACER` too; return what `end_reads` is to be given."""
    before = active.thread, active.profile is not None and sys.getprofile() is not None
    active.thread = threading.get_ident()
    if active.profile is not None:
        sys.setprofile(active.profile)
    return before


def end_reads(before: Any) -> None:
    """Go back to the phase in which `begin_reads` was called."""
    active.thread, profiling = before
    if active.profile is not None and not profiling:
        sys.setprofile(None)


class TracerPhase:
    """A context in which thunder's own code runs: nothing that it reads or calls is recorded."""

    __slots__ = ("_frontend", "_paused")

    def __enter__(self) -> None:
        self._frontend = state.frontend
        self._paused = pause_reads()
        state.frontend = None

    def __exit__(self, *exc: Any) -> None:
        state.frontend = self._frontend
        resume_reads(self._paused)
