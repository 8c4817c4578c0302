# SPDX-License-Identifier: Apache-2.0
"""The end of a trace whose program catches every exception, e.g. in a loop with a bare `except`.

The exception that ends a trace cannot leave `while True: try: f(x); break; except: continue`, however often it is
raised in `f`. After many attempts it is therefore raised at each line of the functions that have caught it, too: then
it arrives at the start of the loop, which no `try` of the loop covers.

It is raised neither in other functions nor while the program handles it (`finally`, `with`): there it would e.g. keep a
lock from being released.
"""

from __future__ import annotations

import ctypes
import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NoReturn, TypeVar

from thunder.capture.base.phase import active
from thunder.core.errors import TraceHasEnded
from thunder.core.locations import is_ours

__all__ = ["call_until_ended", "end_trace", "raises_at_lines"]

T = TypeVar("T")
# When the program has caught so many exceptions, they are raised at each line, too.
MAX_CAUGHT = 100
# When it has caught so many, they are raised while it handles one, too: it may try again there.
MAX_HANDLED = 300

# A trace function written in Python is removed when it raises an exception, one written in C is not. `bool()` is
# written in C, takes the object that is registered with it as its first argument, and ignores the other arguments.
_set_trace: Any = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.py_object)(("PyEval_SetTrace", ctypes.pythonapi))
_BOOL = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
# The instruction with which handling begins; -1 before Python 3.11, which has none.
_BEGINS_TO_HANDLE = dis.opmap.get("PUSH_EXC_INFO", -1)


class _Ending:
    """The end of one run of a program. Its `__bool__` is called for each line that this thread runs."""

    def __init__(self) -> None:
        self.caught = -1  # how many exceptions the program has caught
        self._raised: BaseException | None = None  # the newest exception
        self._catching: set[CodeType] = set()  # the functions that have caught one
        self.at_lines = False
        self._before: Any = None  # the trace function of a debugger, e.g. pdb

    def __bool__(self) -> bool:
        if not active.thread:
            return False  # thunder's own code runs
        if active.profile is not None and sys.getprofile() is not active.profile:
            sys.setprofile(active.profile)  # the interpreter removes it when it raises an exception
        frame = sys._getframe(1)
        if frame.f_code in self._catching and (self.caught > MAX_HANDLED or not self._is_handled(frame)):
            self.end()
        return False

    def _is_handled(self, frame: FrameType) -> bool:
        """Check whether a frame handles the newest exception, or is about to."""
        return sys.exc_info()[1] is self._raised or frame.f_code.co_code[frame.f_lasti] == _BEGINS_TO_HANDLE

    def end(self, cls: type[BaseException] = TraceHasEnded) -> NoReturn:
        """Raise a new exception of a class."""
        self.caught += 1
        if self._raised is not None and self._raised.__traceback__ is not None:
            code = self._raised.__traceback__.tb_frame.f_code  # the outermost function that it has reached
            if not is_ours(code.co_filename):
                self._catching.add(code)
        if self.caught >= MAX_CAUGHT and not self.at_lines:
            self.at_lines, self._before = True, sys.gettrace()
            _set_trace(_BOOL, self)
        self._raised = cls()
        raise self._raised

    def stop(self) -> None:
        """Raise nothing any more: the program has been left."""
        if self.at_lines:
            sys.settrace(self._before)
        self._raised = self._before = None
        self._catching.clear()


_runs: list[_Ending] = []  # the innermost run is the last one; only one thread traces at a time


def end_trace(cls: type[BaseException] = TraceHasEnded) -> NoReturn:
    """End a program that has caught the exception that ended its trace: raise a new exception of a class."""
    if not _runs:
        raise cls
    _runs[-1].end(cls)


def raises_at_lines() -> bool:
    """Check whether exceptions are raised at each line of the program."""
    return bool(_runs) and _runs[-1].at_lines


def call_until_ended(fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call the traced function. Nothing is raised at its lines any more when this function returns."""
    run = _Ending()
    _runs.append(run)
    try:
        return fn(*args, **kwargs)
    finally:
        _runs.remove(run)
        run.stop()
