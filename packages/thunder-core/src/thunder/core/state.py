# SPDX-License-Identifier: Apache-2.0
"""What is being traced on this thread: the trace, who sits between user code and it, and the user's line."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from thunder.core.symbol import Symbol
    from thunder.core.trace import Trace

__all__ = ["Frontend", "SourceLine", "current_trace", "registrations", "state", "tracectx"]

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


class Frontend(Protocol):
    """Stands between user code and the trace while user code runs: it turns handles into proxies and back."""

    def call_symbol(self, sym: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `sym` for user code."""

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch for user code."""


class _State(threading.local):
    """One a thread. `frontend` is set while user code runs, and None while an operation is being evaluated."""

    def __init__(self) -> None:
        self.trace: Trace | None = None
        self.frontend: Frontend | None = None
        self.source: SourceLine | None = None


state = _State()


def current_trace() -> Trace | None:
    """The trace that operations are recorded into on this thread, or None."""
    return state.trace


@contextmanager
def tracectx(trace: Trace | None) -> Iterator[Trace | None]:
    """Within it, operations are recorded into `trace` (None: they run), with no frontend in between."""
    before = state.trace, state.frontend
    state.trace, state.frontend = trace, None
    try:
        yield trace
    finally:
        state.trace, state.frontend = before
