# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for streams of text while a program is traced: the text that the program writes becomes an effect."""

from __future__ import annotations

import io
import threading
from typing import Any

from thunder.capture.base.phase import active
from thunder.capture.base.predicates import module_of

__all__ = ["Stream", "is_stream", "running_output"]


def running_output() -> Any:
    """Return the output of the program whose code runs on this thread, or None."""
    if active.thread != threading.get_ident():
        return None
    return active.reader.output  # type: ignore[union-attr]


def is_stream(cls: type) -> bool:
    """Check for streams of text that are written in C."""
    return issubclass(cls, io.TextIOBase) and module_of(cls) in ("_io", "io")


class Stream:
    """Replaces a stream while a program is traced: the program's text becomes effects."""

    def __init__(self, stream: Any, name: str = ""):
        self._thunder_stream = stream
        self._thunder_name = name  # of a standard stream

    def write(self, text: Any) -> Any:
        """Record the text, and return its length as a stream does."""
        output = running_output()
        stream = self._thunder_stream
        if output is None or type(text) is not str or (stream is not None and stream.closed):
            return stream.write(text)
        output.add("write_text", self._thunder_name or stream, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write each text."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Record that the program flushes the stream."""
        output = running_output()
        if output is None:
            self._thunder_stream.flush()
        else:
            output.add("flush_stream", self._thunder_name or self._thunder_stream)

    def __getattr__(self, name: str) -> Any:
        stream = self._thunder_stream
        if not self._thunder_name and running_output() is not None and name not in _FIXED:
            active.reader.output.deny(f"the program uses `{name}` of a {type(stream).__name__}")  # type: ignore[union-attr]
        return getattr(stream, name)

    def __enter__(self) -> Any:
        return self.__getattr__("__enter__")()

    def __exit__(self, *error: Any) -> Any:
        return self._thunder_stream.__exit__(*error)

    def __iter__(self) -> Any:
        return self.__getattr__("__iter__")()


# Attributes of streams that do not change.
_FIXED = frozenset({"isatty", "encoding", "errors", "newlines", "name", "mode", "fileno", "writable", "readable"})
