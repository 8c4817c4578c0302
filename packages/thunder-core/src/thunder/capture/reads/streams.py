# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for streams of text while a program is traced: the text that the program writes becomes an effect."""

from __future__ import annotations

import io
import threading
from typing import Any

from thunder.capture.base.phase import active
from thunder.capture.base.predicates import module_of
from thunder.capture.numbers.overrides import DISGUISED

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

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # `isinstance` and the program's `type` see the stream's class
        self._inspect("__class__")
        return type(self._thunder_stream)

    def __repr__(self) -> str:
        self._inspect("__repr__")
        return repr(self._thunder_stream)

    def __eq__(self, other: object) -> Any:
        self._inspect("__eq__")
        return self is other

    def __hash__(self) -> int:
        self._inspect("__hash__")
        return id(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            self._inspect(f"{name} = ...")
            setattr(self._thunder_stream, name, value)

    def _inspect(self, name: str) -> None:
        """Guard what the program reads of the stream, or end the trace."""
        output = running_output()
        if output is None:
            return
        if name not in _FIXED:
            output.deny(f"the program uses `{name}` of a {type(self._thunder_stream).__name__}")
        if self._thunder_name:
            output.standard_stream_read(self._thunder_name, self._thunder_stream)

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
        self._inspect(name)
        return getattr(self._thunder_stream, name)

    def __enter__(self) -> Any:
        return self.__getattr__("__enter__")()

    def __exit__(self, *error: Any) -> Any:
        return self._thunder_stream.__exit__(*error)

    def __iter__(self) -> Any:
        return self.__getattr__("__iter__")()


DISGUISED.add(Stream)
_OWN = ("_thunder_stream", "_thunder_name")
# Attributes of streams that do not change.
_FIXED = frozenset(
    {"isatty", "encoding", "errors", "newlines", "name", "mode", "fileno", "writable", "readable", "__class__"}
)
