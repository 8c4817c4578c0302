# SPDX-License-Identifier: Apache-2.0
"""Clocks: while a program is traced, functions of this file replace those of `time`.

The compiled program reads the clock anew at each call. The result is a number that is not known while tracing, like the
result of `.item()`. The program can store, return, print or log it, and compute with it. If the program needs its value
while it is traced, e.g. in a branch, the call runs eagerly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from thunder.capture.base.substitutions import Substitutions
from thunder.capture.reads.streams import running_output
from thunder.core.proxies import NumberProxy
from thunder.core.state import state
from thunder.core.symbol import OpTags
from thunder.core.symint.symbols import symbols_of
from thunder.executors.pythonex import ex as python_executor

__all__ = ["clock_of", "replace_clocks"]

_NAMES = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
CLOCKS: dict[str, Callable[[], Any]] = {
    name: getattr(time, name) for base in _NAMES for name in (base, f"{base}_ns") if hasattr(time, name)
}


def _meta(name: str) -> NumberProxy:
    assert state.trace is not None
    return symbols_of(state.trace).unbacked(int if name.endswith("_ns") else float).proxy  # type: ignore[no-any-return]


def _read(name: str) -> Any:
    return CLOCKS[name]()


read_clock = python_executor.register_operator(
    "read_clock", meta=_meta, fn=_read, tags=(OpTags.SIDE_EFFECT, OpTags.NON_DIFFERENTIABLE)
)


def _clock(name: str) -> Callable[[], Any]:
    original = CLOCKS[name]

    def clock() -> Any:
        output = running_output()
        if output is None:
            return original()
        tracer: Any = state.frontend
        if getattr(tracer, "parts", ()):
            output.deny("a function that is transformed reads a clock")
        output.reads_clocks = True
        with tracer.recording():
            number = read_clock(name)
        return tracer.wrap(number)

    return clock


_CLOCKS = {name: _clock(name) for name in CLOCKS}
_BY_ORIGINAL = {id(fn): _CLOCKS[name] for name, fn in CLOCKS.items()}


def clock_of(x: Any) -> Any:
    """Return the replacement of a function that reads a clock, whatever its name; None for other values."""
    return _BY_ORIGINAL.get(id(x))


def replace_clocks(substitutions: Substitutions) -> None:
    """Replace the functions of `time` that read clocks, until the board is restored."""
    for name, ours in _CLOCKS.items():
        substitutions.set(time, name, ours)
