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
from typing import Any

import torch

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.phase import Reader, TracerPhase, active
from thunder.capture.base.substitutions import Substitutions
from thunder.core.locations import is_ours

__all__ = ["ClassHooks", "CodeWatch", "can_hook", "new_objects", "watch_new_objects"]


# Since 3.13 Python gives each class a limited number of versions: hooked too often, it would be slow for ever after.
MAX_INSTALLS = 200 if sys.version_info >= (3, 13) else sys.maxsize
_installs: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()
_HEAP_TYPE, _IMMUTABLE = 1 << 9, 1 << 8
_NEVER = (functools.partial, threading.local, type, torch.Tensor, torch.jit.ScriptModule)


def _hook(original: Callable[..., Any]) -> Callable[[Any, str], Any]:
    get_ident = threading.get_ident

    def __getattribute__(self: Any, name: str) -> Any:
        if active.thread != get_ident():
            return original(self, name)
        reader: Any = active.reader
        try:
            value = original(self, name)
        except AttributeError:
            with TracerPhase():
                value = reader.missing(self, name)
            if value is ABSENT:
                raise
            return value
        if (id(self), name) not in reader.seen:
            with TracerPhase():
                again = reader.read(self, name)
            if again:
                value = original(self, name)
        return value

    __getattribute__._thunder_hook = True  # type: ignore[attr-defined]
    return __getattribute__


def _assignment_hook(original: Callable[..., Any]) -> Callable[[Any, str, Any], None]:
    get_ident = threading.get_ident

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if active.thread == get_ident():
            active.reader.assigned.add((id(self), name))  # type: ignore[union-attr]
        original(self, name, value)

    __setattr__._thunder_hook = True  # type: ignore[attr-defined]
    return __setattr__


def can_hook(cls: type) -> bool:
    """Check whether a class is written in Python, so that its instances' attributes may be watched."""
    if not cls.__flags__ & _HEAP_TYPE or cls.__flags__ & _IMMUTABLE or issubclass(cls, _NEVER):
        return False
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    return file is None or file.endswith((".py", ".pyc"))


class ClassHooks:
    """The hooks of one session."""

    def __init__(self, substitutions: Substitutions):
        self._substitutions = substitutions
        self._decided: dict[type, bool] = {}

    def watch(self, cls: type) -> bool:
        """Watch the attributes of a class's instances; return False where it cannot be watched."""
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
        self._substitutions.set(cls, "__getattribute__", _hook(original))
        self._substitutions.set(cls, "__setattr__", _assignment_hook(assign))
        return True


# -- code that runs ---------------------------------------------------------------------------------------------------
_monitoring: Any = getattr(sys, "monitoring", None)
_TOOLS = (3, 4)  # of the interpreter's monitoring: the ids that nobody claims by convention


class CodeWatch:
    """Has a reader record each code object that starts to run; `available` is False where a profiler is in the way."""

    def __init__(self, reader: Reader):
        self._reader = reader
        self._thread = threading.get_ident()
        self._seen: dict[int, CodeType] = {}
        if sys.version_info >= (3, 12):
            self.available = any(_monitoring.get_tool(tool) is None for tool in _TOOLS)
        else:
            self.available = sys.getprofile() is None

    def start(self, substitutions: Substitutions) -> None:
        """Watch code until the board is restored."""
        self._thread = threading.get_ident()
        if sys.version_info >= (3, 12):
            self._monitor(substitutions)
        elif self.available:
            substitutions.callback(sys.setprofile, None)
            substitutions.assign(active, profile=self._on_profile)
            sys.setprofile(active.profile)

    def _monitor(self, substitutions: Substitutions) -> None:
        monitoring = _monitoring
        name = f"thunder {id(self)}"  # a tool is given up only by whom it belongs to
        for tool in _TOOLS:
            substitutions.callback(_stop_monitoring, tool, name)
            try:
                monitoring.use_tool_id(tool, name)
            except ValueError:  # somebody else's
                continue
            monitoring.register_callback(tool, monitoring.events.PY_START, self._on_start)
            monitoring.set_events(tool, monitoring.events.PY_START)
            monitoring.restart_events()
            return

    def _on_start(self, code: CodeType, offset: int) -> Any:
        if threading.get_ident() != self._thread:
            return None  # it has not run on the thread that traces
        if not active.thread:  # nor for the program, for which thunder's own code makes no difference
            return _monitoring.DISABLE if is_ours(code.co_filename) else None
        with TracerPhase():
            self._reader.code_ran(code, sys._getframe(1))
        return _monitoring.DISABLE

    def _on_profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and active.thread:
            code = frame.f_code
            if id(code) not in self._seen:
                self._seen[id(code)] = code
                with TracerPhase():
                    self._reader.code_ran(code, frame)
                # Before Python 3.11 the interpreter now gives the frame's variables, those of outer functions too, what
                # it noted of them before this call, unless they are noted anew: the reader may have changed them.
                frame.f_locals  # noqa: B018


def _stop_monitoring(tool: int, name: str) -> None:
    if _monitoring.get_tool(tool) == name:
        _monitoring.set_events(tool, 0)
        _monitoring.register_callback(tool, _monitoring.events.PY_START, None)
        _monitoring.free_tool_id(tool)


# -- objects that the program makes -----------------------------------------------------------------------------------
def watch_new_objects(substitutions: Substitutions) -> None:
    """Keep the collector off until the board is restored, so that its generations tell new objects from older ones."""
    if gc.isenabled():
        substitutions.callback(gc.enable)
    gc.collect(0)  # what is young now grows older
    gc.disable()


def new_objects() -> set[int]:
    """Return the ids of what has been made since `watch_new_objects`."""
    return {id(x) for x in gc.get_objects(generation=0)}
