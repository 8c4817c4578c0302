# SPDX-License-Identifier: Apache-2.0
"""What is being traced on this thread: the trace, who sits between user code and it, and the user's line."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

__all__ = ["ActiveTrace", "Frontend", "SourceLine", "current_trace", "registrations", "state", "tracectx"]

# Counts registrations of implementations and gradient rules, so that a compiled specialization can see that what it was
# compiled with has changed.
registrations = [0]


class SourceLine(NamedTuple):
    """A line of the user's program."""

    filename: str
    line: int

    def text(self) -> str:
        """The line's source, or an empty string where it cannot be read."""
        import linecache

        return linecache.getline(self.filename, self.line).strip()

    def __str__(self) -> str:
        text = self.text()
        return f"{self.filename}:{self.line}" + (f": {text}" if text else "")


class ActiveTrace(Protocol):
    """What those who record need of the trace (`core/trace.py`) that is recorded into."""

    names: set[str]
    info: dict[str, Any]
    scopes: list[list[Any]]

    def make_name(self, prefix: str = "t") -> str:
        """Return a name that nothing has, which begins with `prefix`."""

    def add_name(self, name: str) -> str:
        """Return `name`, or one like it that nothing has."""

    def record(self, bsym: Any) -> None:
        """Add a call of an operation."""

    def scope(self) -> AbstractContextManager[list[Any]]:
        """Record within it into a list of its own."""


class Frontend(Protocol):
    """Stands between user code and the trace while user code runs: it turns handles into proxies and back."""

    def call_symbol(self, sym: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `sym` for user code."""

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch for user code."""


class _State(threading.local):
    """One a thread. `frontend` is set while user code runs, and None while an operation is being evaluated."""

    def __init__(self) -> None:
        self.trace: ActiveTrace | None = None
        self.frontend: Frontend | None = None
        self.source: SourceLine | None = None


state = _State()


def current_trace() -> Any:
    """Return the `Trace` that operations are recorded into on this thread, or None."""
    return state.trace


T = TypeVar("T", bound="ActiveTrace | None")


@contextmanager
def tracectx(trace: T) -> Iterator[T]:
    """Within it, operations are recorded into `trace` (None: they run), with no frontend in between."""
    before = state.trace, state.frontend
    state.trace, state.frontend = trace, None
    try:
        yield trace
    finally:
        state.trace, state.frontend = before
