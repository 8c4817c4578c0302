# SPDX-License-Identifier: Apache-2.0
"""The record of what thunder does: an event for each compilation, failed guard, fallback and similar step.

`thunder.explain`, the loggers (`frontend/logs.py`) and the command line's `--json` are rendered from this record. Warm
calls append nothing, except for choices that are measured before a third call. Each jitted function has an `EventLog`, and `recent_events` returns the last events of all of
them. Events contain texts and numbers and no objects of the user's program. `details` contains JSON types:

| kind | recorded | `reason` | `details` |
|---|---|---|---|
| compile | after each compilation, also of a backward program | why it was necessary | `part` ("program" or "backward"), `operations`, `guards`, `executors` (operations by executor), `passes` (names and seconds) |
| guard | before a recompilation, for each cached program | the guard that failed | |
| decision | before the compilation of a path, for each of its branches on values | the question | `answer`, `random` |
| fallback | when a call runs eagerly, as a whole or in part | why thunder cannot compile it | `scope` ("call", "function", "modules") |
| graph | when a CUDA graph is captured, or cannot be | what happened | `captures` |
| kernel | when no executor has a kernel for an operation that should have one, so that its parts run | which executor rejects it, and why | |
| cache | when compiled programs are dropped | why | `dropped` |
| saved | when a program is read from the store of saved programs or written to it, or why not | "hit", "miss", "saved" or "not saved", and what | `name` |
| collective | when a collective is traced | its name | |
| choice | when measurements may decide something, and when it was measured | the choice | `operation`, `shape_class`, `device`, `default`, `chosen`, `state`, `times` (milliseconds), `failures` |
"""  # noqa: E501

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from thunder.core.state import SourceLine

__all__ = ["KINDS", "Event", "EventLog", "Kind", "current_log", "discarding", "listeners", "recent_events"]

Kind = Literal[
    "compile", "guard", "decision", "fallback", "graph", "kernel", "cache", "saved", "collective", "replicated",
    "choice",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)

MAX_EVENTS = 256  # of one jitted function
MAX_RECENT_EVENTS = 4096  # of the process


@dataclass(frozen=True)
class Event:
    """One step of thunder. `where` is the line of user code that caused it, if it is known."""

    kind: Kind
    program: str  # e.g. "thunder.jit(f)"
    reason: str
    where: SourceLine | None = None
    seconds: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)
    # Returns the final traces of a compilation, as long as its program exists: the program, its prologue and epilogue.
    traces: Callable[[], Sequence[Any]] = field(default=tuple, compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON types."""
        where = self.where and {"file": self.where.filename, "line": self.where.line, "module": self.where.module}
        found = {
            "kind": self.kind, "program": self.program, "reason": self.reason, "where": where,
            "seconds": self.seconds, "time": self.time, **self.details,
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}


#: Functions that are called with each new event.
listeners: list[Callable[[Event], None]] = []

# A deque is safe to append to and to copy from several threads, also if the process forks meanwhile.
_recent: deque[Event] = deque(maxlen=MAX_RECENT_EVENTS)


def recent_events() -> list[Event]:
    """Return the last events of this process, oldest first."""
    return list(_recent.copy())


class _Current(threading.local):
    log: EventLog | None = None


_current = _Current()


class EventLog:
    """The last events of one program."""

    def __init__(self, program: str):
        self.program = program
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def add(self, kind: Kind, reason: str, **fields: Any) -> Event:
        """Append an event. `fields` are further fields of `Event`."""
        event = Event(kind, self.program, reason, **fields)
        self._events.append(event)
        _recent.append(event)
        for listener in listeners:
            listener(event)
        return event

    def of(self, *kinds: Kind) -> list[Event]:
        """Return the events of these kinds, oldest first."""
        return [event for event in self._events.copy() if event.kind in kinds]

    def clear(self) -> None:
        """Drop the events of this program. `recent_events` keeps them."""
        self._events.clear()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this log the `current_log` of the thread."""
        before, _current.log = _current.log, self
        try:
            yield
        finally:
            _current.log = before


class _Discarding(EventLog):
    """Drops the events of what is compiled only to predict something."""

    def add(self, kind: Kind, reason: str, **fields: Any) -> Event:
        return Event(kind, self.program, reason, **fields)


discarding = _Discarding("thunder")
_without_program = EventLog("thunder")


def current_log() -> EventLog:
    """Return the log of the program that this thread compiles. Outside of compilations, return a common log."""
    return _current.log or _without_program
