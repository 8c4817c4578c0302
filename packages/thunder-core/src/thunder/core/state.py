# SPDX-License-Identifier: Apache-2.0
"""The tracing state of a thread: the trace, the frontend between user code and the trace, and the line of user code."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Container, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

__all__ = [
    "ActiveTrace",
    "Frontend",
    "SourceLine",
    "count_registration",
    "current_trace",
    "registrants",
    "registrations",
    "state",
    "tracectx",
]

# The number of registrations of implementations and gradient rules. A specialization that was compiled at another count
# is stale.
registrations = [0]

#: The packages and scripts whose code has registered something, besides thunder.
registrants: set[str] = set()


def count_registration() -> None:
    """Count a registration, and record the package that made it."""
    registrations[0] += 1
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if module.startswith("thunder.plugins.") or frame.f_code.co_filename.startswith("<frozen importlib"):
            return  # a module of thunder is loaded, or a plugin, which registers what belongs to it
        if package != "thunder":
            registrants.add(package)
            return
        frame = frame.f_back


class SourceLine(NamedTuple):
    """A line of the user's program, and the path of the module that ran it, e.g. `layers.2 (Linear)`."""

    filename: str
    line: int
    module: str = ""

    def text(self) -> str:
        """Return the line's source, or an empty string if the file cannot be read."""
        import linecache

        return linecache.getline(self.filename, self.line).strip()

    def __str__(self) -> str:
        text = self.text()
        return f"{self.filename}:{self.line}" + (f": {text}" if text else "")


class ActiveTrace(Protocol):
    """The methods of the current trace (`core/trace.py`) that recording uses."""

    names: set[str]
    info: dict[str, Any]
    scopes: list[list[Any]]

    def make_name(self, prefix: str = "t") -> str:
        """Return an unused name that begins with `prefix`."""

    def add_name(self, name: str) -> str:
        """Return `name`, or an unused name derived from it."""

    def record(self, bsym: Any) -> None:
        """Append an operation."""

    def scope(self) -> AbstractContextManager[list[Any]]:
        """Return a context manager; operations are recorded into the list that entering it returns."""


class Frontend(Protocol):
    """The layer between user code and the trace. While user code runs, it maps handles to proxies and back."""

    def call_symbol(self, sym: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `sym` for user code."""

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch for user code."""


class Parts(Protocol):
    """Receives the operations that the meta function of another operation calls."""

    def call_symbol(self, sym: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `sym` for the meta function."""


class _State(threading.local):
    """The state of one thread. `frontend` is set while user code runs; it is None while a meta function runs."""

    def __init__(self) -> None:
        self.trace: ActiveTrace | None = None
        self.frontend: Frontend | None = None
        self.parts: Parts | None = None  # receives the calls of the meta function of an operation that it watches
        self.source: SourceLine | None = None
        self.differentiated: Container[str] | None = None  # while a gradient rule runs: the values that need gradients
        self.replaces_trace = False  # whether a program runs eagerly because its trace was given up


state = _State()


def current_trace() -> Any:
    """Return the `Trace` into which this thread records operations, or None."""
    return state.trace


T = TypeVar("T", bound="ActiveTrace | None")


@contextmanager
def tracectx(trace: T) -> Iterator[T]:
    """Record operations into `trace` within a context, without a frontend; if `trace` is None, run the operations."""
    before = state.trace, state.frontend, state.parts
    state.trace, state.frontend, state.parts = trace, None, None
    try:
        yield trace
    finally:
        state.trace, state.frontend, state.parts = before
