# SPDX-License-Identifier: Apache-2.0
"""The statistics of a jitted callable, which `thunder.compile_stats` returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from thunder.core.events import EventLog
from thunder.core.state import SourceLine
from thunder.frontend.cache import Cache, Refusal
from thunder.frontend.explain import explained, first_line
from thunder.frontend.progress import progress
from thunder.frontend.specialization import Specialization

if TYPE_CHECKING:
    from thunder.core.trace import Trace

__all__ = ["FIRST", "CompileStats"]

FIRST = "no program was cached"


class CompileStats:
    """The statistics of a jitted callable: calls, programs, events, and the specialization of the last call."""

    def __init__(self, name: str, cache: Cache) -> None:
        self.name = name
        self.cache = cache
        self.events = EventLog(name)
        self.slow_calls = 0  # the calls that no cached program served
        self.cache_misses = 0
        self.saved_hits = 0  # the calls that a program of another process served first
        self.compile_time = 0.0  # in seconds, of all compilations
        self.compiled_calls = 0  # the calls that compiled a program and ran it
        self.last: Specialization | None = None
        self.uncacheable: str | None = None
        # The failed guards of the cached specializations, newest first, in the last call that compiled.
        self.refused: list[str] = []
        self.eager: str | None = None  # why it falls back to eager
        self.error: str | None = None  # thunder's error that ended the last trace, which then ran eagerly
        self.constant: str | None = None  # why numbers that change are static although thunder tried symbolic ones
        self.partly_eager: str | None = None  # why only the modules that the function calls are compiled
        self.per_module: Any = None  # the `PerModule` that compiles them

    @property
    def cache_hits(self) -> int:
        """The number of calls that cached programs served."""
        return self.cache.hits

    @property
    def calls(self) -> int:
        """The number of calls."""
        return self.cache_hits + self.slow_calls

    @property
    def partly_eager_calls(self) -> int:
        """The number of calls that compiled the modules of the function one by one."""
        return 0 if self.per_module is None else self.per_module.calls  # type: ignore[no-any-return]

    @property
    def eager_calls(self) -> int:
        """The number of calls that ran eagerly as a whole, also if the program raised an error."""
        return max(0, self.slow_calls - self.compiled_calls - self.partly_eager_calls)

    @property
    def last_traces(self) -> list[Trace]:
        """The traces of the computation, from the captured trace to the trace that ran."""
        return list(self._last().traces)

    @property
    def last_prologue_traces(self) -> list[Trace]:
        """The prologue's traces."""
        return list(self._last().prologue_traces)

    @property
    def last_backward_traces(self) -> list[Trace]:
        """The traces of the backward program. The list is empty if no input required grad."""
        return list(self._last().backward_traces)

    @property
    def last_epilogue_traces(self) -> list[Trace]:
        """The traces of the epilogue. The list is empty if the program has no side effects and needs no epilogue."""
        return list(self._last().epilogue_traces)

    def explain(self) -> str:
        """Return a report in plain English: what ran how often, what was recompiled and why, and what ran eagerly."""
        return explained(self)

    def __str__(self) -> str:
        return f"{self.name}, {self.explain()}"

    def __repr__(self) -> str:
        return f"<{self.name}, {first_line(self)}>"

    def _last(self) -> Specialization:
        if self.last is None:
            if self.partly_eager is not None:
                raise RuntimeError(
                    f"no traces are available, because the function is partly eager: {self.partly_eager}"
                )
            if self.calls:
                why = self.eager or self.uncacheable or "see thunder.explain"
                raise RuntimeError(f"no traces are available, because all calls ran eagerly: {why}")
            raise RuntimeError("no traces are available, because the function has not been called yet. Call it once")
        return self.last

    # -- events -------------------------------------------------------------------------------------------------------
    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Return a context for a compilation: it owns the events of lower layers, and reports progress."""
        with self.events.active(), progress(self.name):
            yield

    def guards_failed(self, refused: Sequence[Refusal]) -> None:
        """Record the failed guards of a call that is compiled."""
        self.refused = [str(refusal) for refusal in refused]
        for refusal, reason in zip(refused, self.refused):
            self.events.add("guard", reason, details={"number": refusal.is_about_numbers})

    def fell_back(self, reason: str, where: SourceLine | None = None, *, scope: str = "call") -> None:
        """Record that a call, a function or everything but its modules runs eagerly."""
        self.events.add("fallback", reason, where=where, details={"scope": scope})
