# SPDX-License-Identifier: Apache-2.0
"""Errors and the checks that raise them.

The tracer adds the line of user code to each error when it records an operation (see `core/symbol.py`). A check
therefore states only the problem and how to fix it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from thunder.core.state import state

__all__ = [
    "DataDependentError",
    "DataDependentFormattingError",
    "FallbackWarning",
    "OnlyInTracesError",
    "PluginLoadError",
    "ResultVerificationError",
    "ThunderError",
    "TraceHasEnded",
    "TraceVerificationError",
    "TracingError",
    "UnsupportedError",
    "check",
    "is_of_extension",
    "mark_as_of_extension",
]


class TraceHasEnded(BaseException):
    """Raised instead of an error that has already ended the trace, if the program catches the error and goes on.

    It is no `Exception`: a program that catches exceptions in a loop and tries again would try forever.
    """


class ThunderError(RuntimeError):
    """The base class of thunder's own errors, which eager PyTorch does not raise.

    If such an error is raised into the traced program, tracing fails even if the program catches the error: the
    program's `except` block would not run in eager mode.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        note_refusal(self)


def note_refusal(error: ThunderError) -> None:
    """Record on the tracer that `error` was raised into the traced program, in case the program catches it."""
    tracer: Any = state.frontend
    if hasattr(tracer, "note_refusal"):
        tracer.note_refusal(error)


class TracingError(ThunderError):
    """The program does something that no trace can express; the message names the line and the workarounds."""


class DataDependentError(TracingError):
    """The program needs the value of a data-dependent number or condition while it is traced.

    `asked` contains the names of the trace's values that the needed value depends on, if they are known, and
    `condition` is the condition (a `Constraint`) if the program needs one.
    """

    def __init__(self, *args: Any, asked: tuple[str, ...] = (), condition: Any = None) -> None:
        self.asked = asked
        self.condition = condition
        # True if tracing again with overridden builtins, or with derived scalars, may succeed (`frontend/jit.py`).
        self.overrides_builtins = self.derives_scalars = True
        super().__init__(*args)


class ReplacedBuiltinError(DataDependentError):
    """The program would see that a built-in is another object while programs with data-dependent numbers are traced."""


class DataDependentFormattingError(DataDependentError):
    """The program formats a data-dependent number as text."""


class UnsupportedError(ThunderError):
    """An operation, transform or executor does not support the requested feature."""


class OnlyInTracesError(ThunderError):
    """Eager mode cannot run a program instead of its trace, because an operator has its gradient only in traces."""


class TraceVerificationError(ThunderError):
    """A trace is not a valid program; the message shows the invalid line and the lines around it."""


class RankMismatchError(ThunderError):
    """Raised if the programs of two ranks run different collectives (`thunder.jit(…, check_ranks=True)`)."""


class ResultVerificationError(ThunderError):
    """An executor returned a result that differs from the result of the operation's meta function, or from torch's."""


class FallbackWarning(UserWarning):
    """A jitted function runs eagerly, as a whole or but for the modules that it calls."""


class PluginLoadError(ThunderError):
    """An executor plugin that the user named explicitly cannot be used; the message contains the recorded reason."""


def check(cond: Any, message: Callable[[], str], exception_type: type[Exception] = RuntimeError) -> None:
    """Raise `exception_type` with the text of `message()` unless `cond` is true."""
    if not cond:
        raise exception_type(message())


def way_out(executor: Any) -> str:
    """Return the line of a message that says how to run without the plugin of an executor, or an empty string."""
    plugin = getattr(executor, "plugin", None)
    if plugin is None:
        return ""
    return f"\n  {executor.name!r} comes from the plugin {plugin!r}; THUNDER_DISABLE_PLUGINS={plugin} runs without it"


def name_source(error: Exception, what: str, executor: Any = None) -> None:
    """Append `what`, the code that raised `error`, to its message once; type and traceback do not change.

    If the code belongs to the executor of a plugin, the message also says how to run without the plugin.
    """
    if executor is not None and not executor.is_fallback:
        mark_as_of_extension(error)
    if getattr(error, "_thunder_raised_in", None) is None:
        try:
            error._thunder_raised_in = what  # type: ignore[attr-defined]
            message = f"{error.args[0]}" if error.args and isinstance(error.args[0], str) else f"{error}"
            error.args = (f"{message}\n  in {what}{way_out(executor)}", *error.args[1:])
        except Exception:  # an exception that does not allow the change keeps its message
            return


def mark_as_of_extension(error: BaseException) -> None:
    """Mark an error that an extension of thunder has raised, i.e. an executor or a transform."""
    with contextlib.suppress(Exception):  # an exception that does not allow new attributes
        error._thunder_of_extension = True  # type: ignore[attr-defined]


def is_of_extension(error: BaseException) -> bool:
    """Check whether `mark_as_of_extension` has marked an error."""
    return getattr(error, "_thunder_of_extension", False)
