# SPDX-License-Identifier: Apache-2.0
"""The phase of tracing: whether the program's code or thunder's code runs.

While the program's code runs (`Phase.USER`), reads and calls are recorded. While thunder's own code runs
(`Phase.TRACER`), hooks record nothing, operations are recorded unchanged, and the functions of torch that thunder
replaces behave as the originals. The hooks query `active` at every attribute read, so it has only plain attributes.
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
    """Which code is running."""

    USER = "the program's"
    TRACER = "thunder's, while it traces a program"
    OFF = "no program is traced"


class Reader(Protocol):
    """Records the reads and assignments of the program."""

    seen: dict[tuple[int, str], None]
    plain: set[tuple[type, str]]
    output: Any  # the recorder of the program's output
    assigned: set[tuple[int, str]]
    assigned_elsewhere: set[tuple[int, str]]  # by other threads
    raising: dict[int, frozenset[int]]  # positions in code, by its id; errors that it raises there are reported

    def holds(self, obj: Any) -> bool:
        """Check whether a read has found `obj`, so that it may contain handles and symbols."""

    def read(self, obj: Any, name: str) -> bool:
        """Record the first read of `obj.name`; return True if the value was replaced and has to be read again."""

    def before_read(self, obj: Any, name: str, *, assigned: bool = False) -> None:
        """Record the descriptor, if any, whose code the first read or an assignment of `obj.name` runs."""

    def value_read(self, x: Any, name: str) -> None:
        """Record the first read of an attribute of a class or a module, before it happens."""

    def special_method_read(self, cls: type, name: str) -> None:
        """Record that the program depends on whether a class has a special method."""

    def names_listed(self, x: Any) -> None:
        """Record that the program lists the names of an object's attributes (`dir`), before it does."""

    def value_assigned(self, x: Any, name: str, value: Any) -> None:
        """Record that an attribute of a class or a module is about to be assigned or deleted."""

    def missing(self, obj: Any, name: str) -> Any:
        """Record that `obj` has no `name`; return the entry of that name in a module's tables, or `ABSENT`."""

    def identified(self, obj: Any) -> Any:
        """Record that the program reads an object's `id`; return the object that has the `id` of eager mode."""

    def code_ran(self, code: CodeType, frame: FrameType) -> None:
        """Record that a code object runs for the first time."""

    def order_of_set_read(self) -> None:
        """Record that the program may depend on the order of a set."""

    def set_made(self, code: CodeType, kind: type, given: Any) -> None:
        """Record that code is about to make a set by the call `kind(given)`."""

    def c_function_called(self, fn: Any, owner: Any, frame: FrameType) -> bool:
        """Record that a function written in C is about to be called; `owner` is what a method is bound to.

        Return True if later calls of the function, or of this method of the class, need not be recorded.
        """
        return False


class _Active:
    """The active session, as its hooks see it. Only one thread traces at a time; a nested session replaces it."""

    __slots__ = ("intact", "profile", "reader", "readers", "thread", "tracing", "waits")

    def __init__(self) -> None:
        self.reader: Reader | None = None
        self.readers: tuple[Reader, ...] = ()  # of the active session and of those around it
        self.tracing = 0  # the thread that traces, during the run of the program
        self.thread = 0  # the thread that runs the program's code; 0 while thunder's code runs
        self.waits = True  # whether other threads wait for the program; False after one of them has waited for too long
        self.intact = True  # whether every hook finished, and none was replaced
        self.profile: Any = None  # the interpreter's profile callback, if profiling detects which code runs

    @property
    def effects(self) -> int:
        """The number of effects that the program has had, e.g. printed texts."""
        return 0 if self.reader is None else len(self.reader.output.effects)

    @property
    def phase(self) -> Phase:
        """Which code is running."""
        if self.reader is None:
            return Phase.OFF
        return Phase.USER if self.thread else Phase.TRACER


active = _Active()


def pause_reads() -> Any:
    """Begin `Phase.TRACER`; return the argument for `resume_reads`, None if reads on this thread are already paused."""
    thread, profile = active.thread, active.profile
    if not thread:
        return None
    if profile is not None and sys.getprofile() is profile:  # only the tracing thread has this profile callback
        sys.setprofile(None)
    elif thread != threading.get_ident():
        return None
    elif profile is not None:
        active.intact = False  # the program has replaced the profile callback
        sys.setprofile(None)
    active.thread = 0
    return thread, profile is not None


def resume_reads(paused: Any) -> None:
    """Return to `Phase.USER`."""
    if paused is not None:
        active.thread, profiling = paused
        if profiling:
            sys.setprofile(active.profile)


def begin_reads() -> Any:
    """Begin `Phase.USER` on this thread, even within `Phase.TRACER`; return the argument for `end_reads`."""
    before = active.thread, active.profile is not None and sys.getprofile() is not None
    active.thread = threading.get_ident()
    if active.profile is not None:
        sys.setprofile(active.profile)
    return before


def end_reads(before: Any) -> None:
    """Return to the phase in which `begin_reads` was called."""
    if active.thread != threading.get_ident():
        active.intact = False  # an exception left the reads of this context paused
    active.thread, profiling = before
    if active.profile is not None and not profiling:
        sys.setprofile(None)


class TracerPhase:
    """A context for thunder's own code, whose reads and calls are not recorded."""

    __slots__ = ("_frontend", "_paused")

    def __enter__(self) -> None:
        self._frontend = state.frontend
        self._paused = pause_reads()
        state.frontend = None

    def __exit__(self, exc: Any = None, *_: Any) -> None:
        if exc is not None:
            active.intact = False  # the program may catch the exception, although its read has not been recorded
        state.frontend = self._frontend
        resume_reads(self._paused)
