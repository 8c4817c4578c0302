# SPDX-License-Identifier: Apache-2.0
"""How reads are seen while a program runs: hooks on classes for attributes, and the interpreter's events for code.

Both act on the thread that traces only, and for the duration of the trace only.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import types
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Protocol

import torch

__all__ = [
    "ABSENT",
    "ClassHooks",
    "CodeWatch",
    "NewObjects",
    "Reader",
    "RecordingPaused",
    "pause_profile",
    "resume_profile",
]


class Reader(Protocol):
    """Who is told of reads, and of what is assigned."""

    seen: dict[tuple[int, str], None]
    assigned: set[tuple[int, str]]

    def read(self, obj: Any, name: str) -> bool:
        """`obj.name` was read for the first time; whether it has to be read again, as it is something else now."""

    def missing(self, obj: Any, name: str) -> Any:
        """`obj.name` was asked for in vain: what a module's tables hold under that name, or `ABSENT`."""

    def code_ran(self, code: CodeType, frame: FrameType) -> None:
        """A code object started to run for the first time."""


ABSENT = object()

# Since 3.13 Python gives each class a limited number of versions: hooked too often, it would be slow for ever after.
MAX_INSTALLS = 200 if sys.version_info >= (3, 13) else sys.maxsize
_installs: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()
_HEAP_TYPE, _IMMUTABLE = 1 << 9, 1 << 8
_NEVER = (functools.partial, threading.local, type, torch.Tensor, torch.jit.ScriptModule)


class _Active:
    """Who listens now. Hooks look here, so that nested traces share them."""

    reader: Reader | None = None
    thread: int = 0
    profile: Any = None  # the callback of the interpreter's profile, where that is how code is watched


def pause_profile() -> bool:
    """Stops watching code while the frontend itself works; True where `resume_profile` has to follow."""
    if _Active.profile is None or _Active.thread != threading.get_ident() or sys.getprofile() is None:
        return False
    sys.setprofile(None)
    return True


def resume_profile() -> None:
    """Watches code again."""
    sys.setprofile(_Active.profile)


class RecordingPaused:
    """Within it nothing is recorded: what the reader itself reads is no read of the program."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        hushed = pause_profile()
        self._before, _Active.thread = (hushed, _Active.thread), 0

    def __exit__(self, *exc: Any) -> None:
        hushed, _Active.thread = self._before
        if hushed:
            resume_profile()


def _hook(original: Callable[..., Any]) -> Callable[[Any, str], Any]:
    active, get_ident = _Active, threading.get_ident

    def __getattribute__(self: Any, name: str) -> Any:
        if active.thread != get_ident():
            return original(self, name)
        reader: Any = active.reader
        try:
            value = original(self, name)
        except AttributeError:
            with RecordingPaused():
                value = reader.missing(self, name)
            if value is ABSENT:
                raise
            return value
        if (id(self), name) not in reader.seen:
            with RecordingPaused():
                again = reader.read(self, name)
            if again:
                value = original(self, name)
        return value

    __getattribute__._thunder_hook = True  # type: ignore[attr-defined]
    return __getattribute__


def _assignment_hook(original: Callable[..., Any]) -> Callable[[Any, str, Any], None]:
    active, get_ident = _Active, threading.get_ident

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if active.thread == get_ident():
            active.reader.assigned.add((id(self), name))  # type: ignore[union-attr]
        original(self, name, value)

    __setattr__._thunder_hook = True  # type: ignore[attr-defined]
    return __setattr__


def can_hook(cls: type) -> bool:
    """Whether it is a class written in Python whose instances' attributes may be watched."""
    if not cls.__flags__ & _HEAP_TYPE or cls.__flags__ & _IMMUTABLE or issubclass(cls, _NEVER):
        return False
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    return file is None or file.endswith((".py", ".pyc"))


class ClassHooks:
    """The hooks of one trace."""

    def __init__(self, reader: Reader):
        self._reader = reader
        self._installed: list[tuple[type, str, Any]] = []
        self._decided: dict[type, bool] = {}
        self._before: tuple[Reader | None, int] = (None, 0)

    def watch(self, cls: type) -> bool:
        """Watches the attributes of a class's instances; False where it cannot be watched."""
        found = self._decided.get(cls)
        if found is None:
            found = self._decided[cls] = self._install(cls)
        return found

    def _install(self, cls: type) -> bool:
        if not can_hook(cls):
            return False
        original = cls.__getattribute__
        if getattr(original, "_thunder_hook", False):
            return True  # a base is watched, or a trace around this one watches it
        if isinstance(original, types.FunctionType):
            return False  # what one of the program's own looks up instead would not be seen
        if _installs.get(cls, 0) >= MAX_INSTALLS:
            return False
        _installs[cls] = _installs.get(cls, 0) + 1
        assign = cls.__setattr__  # looked up before the class changes, which is then one change to Python
        self._replace(cls, "__getattribute__", _hook(original))
        self._replace(cls, "__setattr__", _assignment_hook(assign))
        return True

    def _replace(self, cls: type, name: str, hook: Any) -> None:
        self._installed.append((cls, name, cls.__dict__.get(name)))
        type.__setattr__(cls, name, hook)

    def __enter__(self) -> ClassHooks:
        self._before = _Active.reader, _Active.thread
        _Active.reader, _Active.thread = self._reader, threading.get_ident()
        return self

    def __exit__(self, *exc: Any) -> None:
        for cls, name, own in reversed(self._installed):
            if own is None:
                type.__delattr__(cls, name)
            else:
                type.__setattr__(cls, name, own)
        self._installed.clear()
        self._decided.clear()
        _Active.reader, _Active.thread = self._before


# -- code that runs ---------------------------------------------------------------------------------------------------
_monitoring: Any = getattr(sys, "monitoring", None)
_TOOLS = (3, 4)  # of the interpreter's monitoring: the ids that nobody claims by convention


class CodeWatch:
    """Tells a reader of each code object that starts to run; `available` is False where a profiler is in the way."""

    def __init__(self, reader: Reader):
        self._reader = reader
        self._thread = threading.get_ident()
        self._tool: int | None = None
        self._profiling = False
        self._seen: dict[int, CodeType] = {}
        if sys.version_info >= (3, 12):
            self.available = any(_monitoring.get_tool(tool) is None for tool in _TOOLS)
        else:
            self.available = sys.getprofile() is None

    def __enter__(self) -> CodeWatch:
        self._thread = threading.get_ident()
        if sys.version_info >= (3, 12):
            self._monitor()
        elif self.available:
            self._profiling = True
            _Active.profile = self._on_profile
            sys.setprofile(_Active.profile)
        return self

    def _monitor(self) -> None:
        monitoring = _monitoring
        for tool in _TOOLS:
            try:
                monitoring.use_tool_id(tool, "thunder")
            except ValueError:  # somebody else's
                continue
            self._tool = tool
            monitoring.register_callback(tool, monitoring.events.PY_START, self._on_start)
            monitoring.set_events(tool, monitoring.events.PY_START)
            monitoring.restart_events()
            return

    def _on_start(self, code: CodeType, offset: int) -> Any:
        if threading.get_ident() != self._thread or not _Active.thread:
            return None  # it has not run on the thread that traces, or not for the program
        with RecordingPaused():
            self._reader.code_ran(code, sys._getframe(1))
        return _monitoring.DISABLE

    def _on_profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and _Active.thread:
            code = frame.f_code
            if id(code) not in self._seen:
                self._seen[id(code)] = code
                with RecordingPaused():
                    self._reader.code_ran(code, frame)
                # Before Python 3.11 the interpreter now gives the frame's variables, those of outer functions too, what
                # it noted of them before this call, unless they are noted anew: the reader may have changed them.
                frame.f_locals  # noqa: B018

    def __exit__(self, *exc: Any) -> None:
        if self._tool is not None:
            monitoring = _monitoring
            monitoring.set_events(self._tool, 0)
            monitoring.register_callback(self._tool, monitoring.events.PY_START, None)
            monitoring.free_tool_id(self._tool)
            self._tool = None
        elif self._profiling:
            sys.setprofile(None)
            _Active.profile = None
            self._profiling = False
        self._seen.clear()


class NewObjects:
    """Tells objects that were made within it from older ones, by the generations of the garbage collector."""

    def __init__(self) -> None:
        self._enabled = False

    def __enter__(self) -> NewObjects:
        self._enabled = gc.isenabled()
        gc.collect(0)  # what is young now grows older
        gc.disable()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._enabled:
            gc.enable()

    @staticmethod
    def ids() -> set[int]:
        """The ids of what has been made since. Meaningful within it."""
        return {id(x) for x in gc.get_objects(generation=0)}
