# SPDX-License-Identifier: Apache-2.0
"""Errors and the checks that raise them.

Every error that reaches a user carries where it happened in *their* source: the tracer adds the line when it records an
operation (see `core/symbol.py`), so a check here only says what was wrong and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.state import state

__all__ = [
    "AsksForText",
    "DataDependentError",
    "PluginLoadError",
    "ThunderError",
    "TraceVerificationError",
    "TracingError",
    "UnsupportedError",
    "check",
]


class ThunderError(RuntimeError):
    """The base of errors that are thunder's own and have no counterpart in torch.

    One that the program itself is given ends its trace: were it caught there, the trace would go where eager does not.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        note_refusal(self)


def note_refusal(error: ThunderError) -> None:
    """Says to whoever traces the program that is running that it is given this error."""
    if hasattr(state.frontend, "refusal"):
        state.frontend.refusal = error  # type: ignore[union-attr]


class TracingError(ThunderError):
    """The program does something that cannot be put into a trace; the message names the line and the way out."""


class DataDependentError(TracingError):
    """The program needs to know of a number what only running it tells.

    `asked` are the names of the values of its trace that it hangs on, where that is known.
    """

    def __init__(self, *args: Any, asked: tuple[str, ...] = ()) -> None:
        super().__init__(*args)
        self.asked = asked
        self.converts = self.tells = True  # whether tracing again in these ways may help (`frontend/jit.py`)


class AsksForText(DataDependentError):
    """The program writes a number as text that only running it tells."""


class UnsupportedError(ThunderError):
    """A feature that an operation, transform or executor does not have was asked for."""


class TraceVerificationError(ThunderError):
    """A trace is not a legal program; the message shows the lines around the fault."""


class PluginLoadError(ThunderError):
    """An executor plugin was named explicitly and cannot be used; the message has the recorded reason."""


def check(cond: Any, message: Callable[[], str], exception_type: type[Exception] = RuntimeError) -> None:
    """Raises `exception_type` with the text of `message()` unless `cond` is true."""
    if not cond:
        raise exception_type(message())


def name_source(error: Exception, what: str) -> None:
    """Adds to an error's message, once, whose code raised it: the error stays what it is."""
    if getattr(error, "_thunder_told_by", None) is None:
        try:
            error._thunder_told_by = what  # type: ignore[attr-defined]
            told = f"{error.args[0]}" if error.args and isinstance(error.args[0], str) else f"{error}"
            error.args = (f"{told}\n  in {what}", *error.args[1:])
        except Exception:  # an exception with attributes of its own stays as it is
            return
