# SPDX-License-Identifier: Apache-2.0
"""The loggers `thunder.recompiles`, `thunder.fallbacks` and so on. They render the record of events (`core/events.py`).

`THUNDER_LOGS=recompiles,fallbacks` prints these two logs on stderr. Programs that configure `logging` themselves set
the level of the logger `thunder`, or of one of its children, to INFO.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any

from thunder.core.events import Event, listeners

__all__ = ["LOGS", "enable_logs"]

LOGS = {
    "recompiles": "a line for each compilation, with its reason and duration, and for dropped programs",
    "fallbacks": "a line for each call that runs eagerly, with the reason and the line of user code",
    "guards": "the guards that failed, decisions on values, and the prologue of each new program",
    "executors": "which executors run operations, missing kernels, graphs, collectives, and measured choices",
    "timing": "the duration of each pass",
    "saved": "a line for each program that is read from the store of saved programs or written to it, or why not",
    "traces": "the text of each compiled program",
}
_OF_KIND = {
    "compile": "recompiles", "cache": "recompiles", "fallback": "fallbacks", "guard": "guards", "decision": "guards",
    "graph": "executors", "kernel": "executors", "collective": "executors", "choice": "executors",
    "replicated": "fallbacks", "saved": "saved",
}  # fmt: skip
_loggers = {name: logging.getLogger(f"thunder.{name}") for name in LOGS}


class _StandardError(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints on the current `sys.stderr`, which user code may have replaced."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("[%(name)s] %(message)s"))

    @property
    def stream(self) -> Any:
        return sys.stderr


_handler = _StandardError()


def enable_logs(names: Iterable[str]) -> None:
    """Print exactly these logs on stderr. Raise a ValueError for unknown names."""
    unknown = [name for name in names if name not in LOGS]
    if unknown:
        raise ValueError(
            f"THUNDER_LOGS contains {', '.join(map(repr, unknown))}, which is no log of thunder. The logs are "
            f"{', '.join(LOGS)}"
        )
    for name, logger in _loggers.items():
        if name in names:
            logger.setLevel(logging.INFO)
            logger.addHandler(_handler)
            logger.propagate = False  # otherwise a handler of the root logger would print the line again
        elif _handler in logger.handlers:
            logger.removeHandler(_handler)
            logger.setLevel(logging.NOTSET)
            logger.propagate = True


def log_event(event: Event) -> None:
    """Pass an event to its loggers."""
    _log(_OF_KIND[event.kind], lambda: line_of(event))
    if event.kind == "compile":
        _log("executors", lambda: f"{_title(event)}: {_executors(event)}")
        _log("timing", lambda: f"{_title(event)}: {_passes(event)}")
        program, *around = (*event.traces(), None)
        _log("guards", lambda: f"{_title(event)}: {around[0]}" if around and around[0] is not None else "")
        _log("traces", lambda: f"{_title(event)}:\n{program}" if program is not None else "")


def _log(name: str, text: Any) -> None:
    logger = _loggers[name]
    if logger.isEnabledFor(logging.INFO):
        message = text()
        if message:
            logger.info("%s", message)


def _title(event: Event) -> str:
    part = event.details.get("part", "program")
    return event.program if part == "program" else f"{event.program} ({part})"


def line_of(event: Event) -> str:
    """Return an event as one line, e.g. for a log."""
    where = f" (at {event.where})" if event.where is not None else ""
    if event.kind == "compile":
        seconds = "" if event.seconds is None else f" in {event.seconds:.2f} s"
        return f"{_title(event)}: compiled{seconds}, because {event.reason}{where}"
    if event.kind == "guard":
        return f"{event.program}: a guard failed: {event.reason}{where}"
    if event.kind == "fallback":
        return f"{event.program}: runs eagerly: {event.reason}{where}"
    if event.kind == "decision":
        answer = event.details.get("answer")
        return f"{event.program}: {event.reason} is {answer}{where}"
    return f"{event.program}: {event.kind}: {event.reason}{where}"


def _executors(event: Event) -> str:
    counts = event.details.get("executors", {})
    return ", ".join(f"{name} runs {_operations(count)}" for name, count in counts.items()) or "no operations"


def _operations(count: int) -> str:
    return f"{count} operation{'' if count == 1 else 's'}"


def _passes(event: Event) -> str:
    passes = event.details.get("passes", ())
    rest = (event.seconds or 0) - sum(seconds for _, seconds in passes)
    return ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in [*passes, ("tracing and guards", rest)])


listeners.append(log_event)
