# SPDX-License-Identifier: Apache-2.0
"""The output of a program: printed text, text written to streams, log records and warnings.

Output is an ordered effect. While a program is traced, functions of this file replace `print`, the standard streams,
`warnings.warn` and the methods of loggers. They record the output instead of producing it, and the epilogue produces it
at each call, the first call included. A trace that is given up has therefore printed nothing.

Plain values are converted to text while the program is traced, because their values are guarded. Tensors and symbolic
numbers are passed to the epilogue, which knows their values. Output that the program itself can read, e.g. in a
`StringIO` that it creates, is produced immediately.
"""

from __future__ import annotations

import builtins
import io
import logging
import sys
import types
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.new_objects import new_objects
from thunder.capture.base.phase import TracerPhase
from thunder.capture.base.predicates import is_tensor
from thunder.capture.base.snapshots import Effect
from thunder.capture.base.sources import Root, Source
from thunder.capture.base.substitutions import Substitutions
from thunder.capture.reads.guard_kinds import IsAlive
from thunder.capture.reads.libraries import is_library
from thunder.capture.reads.streams import Stream, is_stream, running_output
from thunder.capture.tensors.handle import FORMATTED, TEXT_OF_HANDLE, needs_grad
from thunder.core.locations import is_ours
from thunder.core.state import state
from thunder.core.symint.numbers import SymbolicNumber
from thunder.runtime.output import Location, Shown

if TYPE_CHECKING:
    from thunder.capture.reads.kinds.base import Recorder

__all__ = ["Output", "replacement_of"]

_PLAIN = frozenset({str, int, float, bool, type(None)})
_STREAMS = ("stdout", "stderr")


class Output:
    """The output of one run of a program."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.effects: list[Effect] = []
        self.reads_clocks = False
        self._roots: dict[int, Source] = {}
        self._warnings: Any = None

    def watch(self, substitutions: Substitutions) -> None:
        """Replace the functions that produce output, until the board is restored."""
        self._warnings = _state_of_warnings()
        for name in _STREAMS:
            substitutions.set(sys, name, Stream(getattr(sys, name), name))
        for owner, name, ours in _REPLACEMENTS:
            substitutions.set(owner, name, ours)

    def release(self) -> None:
        """Release references to the user's objects."""
        self.effects.clear()
        self._roots.clear()

    def add(self, operation: str, target: Any, *values: Any) -> None:
        """Record an effect. `target` is an object of the program, a constant of the effect, or a stream's name."""
        self.effects.append(Effect(operation, self._source_of(target), target, values))

    def _source_of(self, target: Any) -> Source | None:
        if isinstance(target, (str, Location)):
            return None
        reached = self._recorder.reached.get(id(target))
        if reached is not None:
            return reached.source
        found = self._roots.get(id(target))
        if found is None:
            found = self._roots[id(target)] = Root(target, type(target).__name__)
        return found

    # -- streams ------------------------------------------------------------------------------------------------------
    def print(self, values: tuple[Any, ...], sep: Any, end: Any, file: Any, flush: Any) -> None:
        """Record or do a call of `print`."""
        file = sys.stdout if file is None else file
        if file is None:
            return
        stream = self._stream(file)
        texts = tuple([_value(x) for x in values])
        if stream is None:
            _PRINT(*map(str, texts), sep=sep, end=end, file=file, flush=flush)
            return
        for text in (sep, end):
            if not isinstance(text, (str, type(None))):
                _PRINT(sep=sep, end=end, file=io.StringIO())  # raises the error of `print`
        self.add("print_values", stream, texts, sep, end, bool(flush))

    def _stream(self, file: Any) -> Any:
        """Return the name of a standard stream, or a stream from outside; None for a stream of the program."""
        if isinstance(file, Stream):
            return file._thunder_name or file._thunder_stream
        if not is_stream(type(file)):
            return None  # the `write` of a class written in Python is a part of the program
        if id(file) in self._recorder.reached:
            return file
        with TracerPhase():
            is_new = id(file) in new_objects()
        if not is_new:
            self._recorder.deny(f"the program writes to a {type(file).__name__} that no guard can find")
        return None

    def standard_stream_read(self, name: str, stream: Any) -> None:
        """Guard which stream `sys.stdout` or `sys.stderr` is."""
        with TracerPhase():
            self._recorder.add(IsAlive(Root(sys, "sys").attr(name), weakref.ref(stream)))

    # -- logging ------------------------------------------------------------------------------------------------------
    def is_enabled(self, logger: logging.Logger, level: Any) -> bool:
        """Return and guard whether a logger is enabled for a level."""
        with TracerPhase():
            found = _IS_ENABLED(logger, level)
            if type(level) is int:
                source = self._source_of(logger)
                assert source is not None
                self._recorder.value(source.attr("isEnabledFor").call((level,)), found)
            else:
                self._recorder.refuse("the program logs at a level that is not a number")
        return found

    def deny(self, reason: str) -> NoReturn:
        """End the trace."""
        self._recorder.deny(reason)

    def log(
        self, logger: logging.Logger, level: Any, message: Any, args: Any, exc_info: Any, extra: Any,
        stack_info: bool, stacklevel: int,
    ) -> None:  # fmt: skip
        """Record a log record with the line of user code that logs."""
        info = None
        if stack_info or exc_info:
            error = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1] if exc_info else None
            if stack_info or error is not None or isinstance(exc_info, tuple):
                self._recorder.deny("the program logs an exception or a stack")
            info = (None, None, None)
        texts: Any = tuple([_argument(x) for x in args])
        if len(args) == 1 and type(args[0]) is dict and args[0]:
            texts = {key: _argument(x) for key, x in args[0].items()}
        with TracerPhase():
            location = _line_that_logs(stacklevel)
        text = message if type(message) is str else _argument(message)
        self.add("log_record", logger, level, location, text, texts, extra, info)

    # -- warnings -----------------------------------------------------------------------------------------------------
    def warn(self, message: Any, category: Any, frame: types.FrameType | None) -> bool:
        """Record a warning at a frame's line, and return False if it has to be issued immediately."""
        if frame is None or is_library(frame.f_code.co_filename) or self._warnings != _state_of_warnings():
            return False
        is_warning = isinstance(message, Warning)
        category = type(message) if is_warning else UserWarning if category is None else category
        if not (isinstance(category, type) and issubclass(category, Warning)):
            return False
        text = str(message)
        scope = frame.f_globals
        name = scope.get("__name__") or "<string>"
        if _action(text, category, name, frame.f_lineno) == "error":
            return False
        registry = scope.setdefault("__warningregistry__", {})
        location = Location(frame.f_code.co_filename, frame.f_lineno, name, registry)
        self.add("issue_warning", location, category, text)
        return True


# -- the replacements -------------------------------------------------------------------------------------------------
_PRINT, _WARN = builtins.print, warnings.warn
_IS_ENABLED, _LOG = logging.Logger.isEnabledFor, logging.Logger._log


def _print(*values: Any, sep: Any = " ", end: Any = "\n", file: Any = None, flush: Any = False) -> None:
    output = running_output()
    if output is None:
        _PRINT(*values, sep=sep, end=end, file=file, flush=flush)
    else:
        output.print(values, sep, end, file, flush)


def _is_enabled(self: logging.Logger, level: Any) -> bool:
    output = running_output()
    return _IS_ENABLED(self, level) if output is None else output.is_enabled(self, level)


def _log(
    self: logging.Logger, level: Any, msg: Any, args: Any, exc_info: Any = None, extra: Any = None,
    stack_info: bool = False, stacklevel: int = 1,
) -> None:  # fmt: skip
    output = running_output()
    if output is None:
        # One frame more lies between the caller and `findCaller`, which counts it since Python 3.11.
        _LOG(self, level, msg, args, exc_info, extra, stack_info, stacklevel + (sys.version_info >= (3, 11)))
    else:
        output.log(self, level, msg, args, exc_info, extra, stack_info, stacklevel)


def _warn(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **rest: Any) -> None:
    output = running_output()
    if output is None or source is not None or rest:
        _WARN(message, category, stacklevel + 1, source, **rest)
        return
    frame: types.FrameType | None = sys._getframe(1)
    for _ in range(stacklevel - 1):
        frame = _outer(frame)
    if not output.warn(message, category, frame):
        _WARN(message, category, stacklevel + 1)


_REPLACEMENTS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (builtins, "print", _print),
    (warnings, "warn", _warn),
    (logging.Logger, "isEnabledFor", _is_enabled),
    (logging.Logger, "_log", _log),
)
_BY_ORIGINAL = {id(_PRINT): _print, id(_WARN): _warn}


def replacement_of(x: Any) -> Any:
    """Return the replacement of a function that produces output, whatever its name; None for other values."""
    return _BY_ORIGINAL.get(id(x))


# -- values and lines -------------------------------------------------------------------------------------------------
def _value(x: Any) -> Any:
    """Return what the epilogue prints for a value: a text, or a tensor or number that it gets from the program."""
    if isinstance(x, SymbolicNumber):
        return x
    return _tensor(x) if is_tensor(x) else _without_tensors(str(x))


def _argument(x: Any) -> Any:
    """Return what the epilogue logs for an argument. Numbers stay numbers, for formats such as `%d`."""
    if type(x) in _PLAIN or isinstance(x, SymbolicNumber):
        return x
    if is_tensor(x):
        return _tensor(x)
    return Shown(_without_tensors(str(x)), repr(x))


def _without_tensors(text: str) -> str:
    """Return a text. Fall back if it contains the text of a handle, e.g. of a list of tensors."""
    if TEXT_OF_HANDLE in text:
        fall_back(FORMATTED)
    return text


def _tensor(x: Any) -> Any:
    """Return a copy of a tensor, because the program may write to the tensor later."""
    tracer = state.frontend
    if needs_grad(x) or getattr(x, "_tracer", tracer) is not tracer or getattr(tracer, "parts", False):
        fall_back("the program formats a tensor that requires grad, or a tensor of a transform, as text")
    return torch.clone(x)


def _outer(frame: types.FrameType | None) -> types.FrameType | None:
    """Return the next outer frame that is not thunder's."""
    frame = None if frame is None else frame.f_back
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _line_that_logs(stacklevel: int) -> Location:
    """Return the line that calls a function of `logging`, or the line `stacklevel - 1` calls further out."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and (is_ours(frame.f_code.co_filename) or _is_of_logging(frame)):
        frame = frame.f_back
    for _ in range(stacklevel - 1):
        frame = _outer(frame)
        while frame is not None and _is_of_logging(frame):
            frame = frame.f_back
    if frame is None:
        return Location("(unknown file)", 0, "(unknown function)")
    return Location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _is_of_logging(frame: types.FrameType) -> bool:
    return frame.f_globals.get("__name__") == "logging"


def _state_of_warnings() -> Any:
    """Return the filters and the functions that show warnings. A program may replace them for a part of its code."""
    return [*warnings.filters], warnings.showwarning, getattr(warnings, "_showwarnmsg_impl", None)


def _action(text: str, category: type[Warning], name: str, lineno: int) -> str:
    """Return what the filters do with a warning."""
    for action, message, kind, module, line in warnings.filters:
        matches = message is None or (message == text if isinstance(message, str) else message.match(text))
        of_module = module is None or (module == name if isinstance(module, str) else module.match(name))
        if matches and of_module and issubclass(category, kind) and line in (0, lineno):
            return action
    return warnings.defaultaction  # type: ignore[attr-defined,no-any-return]
