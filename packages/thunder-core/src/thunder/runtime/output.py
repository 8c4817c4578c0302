# SPDX-License-Identifier: Apache-2.0
"""The functions that epilogues call to repeat a program's output: printed text, log records and warnings."""

from __future__ import annotations

import builtins
import sys
import warnings
from typing import Any

__all__ = ["EFFECTS", "Location", "Shown"]


class Location:
    """The line of user code that issued a warning or a log record. `registry` counts the warnings of its module."""

    def __init__(self, filename: str, lineno: int, name: str, registry: dict[Any, Any] | None = None):
        self.filename = filename
        self.lineno = lineno
        self.name = name  # of the module for a warning, of the function for a log record
        self.registry = registry


class Shown:
    """An argument of a log record, reduced to its texts at the call, because the program may change it later."""

    def __init__(self, text: str, representation: str):
        self.text = text
        self.representation = representation

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.representation


def _stream(stream: Any) -> Any:
    """Return the current standard stream of a name. Other streams are passed as they are."""
    return getattr(sys, stream) if isinstance(stream, str) else stream


def print_values(stream: Any, values: Any, sep: Any, end: Any, flush: Any) -> None:
    """Print values to a stream."""
    builtins.print(*values, sep=sep, end=end, file=_stream(stream), flush=flush)


def write_text(stream: Any, text: str) -> None:
    """Write a text to a stream."""
    found = _stream(stream)
    if found is not None:
        found.write(text)


def flush_stream(stream: Any) -> None:
    """Flush a stream."""
    found = _stream(stream)
    if found is not None:
        found.flush()


def log_record(logger: Any, level: Any, location: Location, message: Any, args: Any, extra: Any, info: Any) -> None:
    """Pass a new log record to the handlers of a logger."""
    file, line, name = location.filename, location.lineno, location.name
    logger.handle(logger.makeRecord(logger.name, level, file, line, message, args, info, name, extra, None))


def issue_warning(location: Location, category: Any, text: str) -> None:
    """Issue a warning as at a line of user code, to which the current filters apply."""
    warnings.warn_explicit(text, category, location.filename, location.lineno, location.name, location.registry)


EFFECTS = (print_values, write_text, flush_stream, log_record, issue_warning)
