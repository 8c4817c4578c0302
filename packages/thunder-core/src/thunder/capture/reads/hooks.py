# SPDX-License-Identifier: Apache-2.0
"""Detection of reads while a program runs: hooks on classes for attributes, and interpreter events for code.

Both affect only the tracing thread, and only while it traces.
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


# Since 3.13 Python gives each class a limited number of versions; a class hooked too often would stay slow forever.
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
        new = (id(self), name) not in reader.seen
        if new and (type(self), name) not in reader.plain:
            with TracerPhase():
                reader.before_read(self, name)
        try:
            value = original(self, name)
        except AttributeError:
            with TracerPhase():
                value = reader.missing(self, name)
            if value is ABSENT:
                raise
            return value
        if new:
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
            reader: Any = active.reader
            reader.assigned.add((id(self), name))
            if (type(self), name) not in reader.plain or name == "__class__":
                with TracerPhase():
                    reader.before_read(self, name, assigned=True)
        original(self, name, value)

    __setattr__._thunder_hook = True  # type: ignore[attr-defined]
    return __setattr__


def can_hook(cls: type) -> bool:
    """Check whether a class is written in Python, so that hooks can watch the attributes of its instances."""
    if not cls.__flags__ & _HEAP_TYPE or cls.__flags__ & _IMMUTABLE or issubclass(cls, _NEVER):
        return False
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    return file is None or file.endswith((".py", ".pyc"))


class ClassHooks:
    """The class hooks of one session."""

    def __init__(self, substitutions: Substitutions):
        self._substitutions = substitutions
        self._decided: dict[type, bool] = {}

    def watch(self, cls: type) -> bool:
        """Watch attribute reads on a class's instances; return False if the class cannot be watched."""
        found = self._decided.get(cls)
        if found is None:
            found = self._decided[cls] = self._install(cls)
        return found

    def _install(self, cls: type) -> bool:
        if not can_hook(cls):
            return False
        original = cls.__getattribute__
        if getattr(original, "_thunder_hook", False):
            return True  # a base class is already watched, or an enclosing trace watches the class
        if isinstance(original, types.FunctionType):
            return False  # a hook would miss the lookups inside a user-defined __getattribute__
        if _installs.get(cls, 0) >= MAX_INSTALLS:
            return False
        _installs[cls] = _installs.get(cls, 0) + 1
        assign = cls.__setattr__  # looked up before the class changes, so that Python sees only one change
        self._substitutions.set(cls, "__getattribute__", _hook(original))
        self._substitutions.set(cls, "__setattr__", _assignment_hook(assign))
        return True


# -- code that runs ---------------------------------------------------------------------------------------------------
_monitoring: Any = getattr(sys, "monitoring", None)
_METHOD_DESCRIPTORS = (types.MethodDescriptorType, types.ClassMethodDescriptorType)
_TOOLS = (3, 4)  # ids of the interpreter's monitoring that no tool uses by convention


class CodeWatch:
    """Reports each code object that starts to run to a reader; `available` is False if a profiler prevents this."""

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
        name = f"thunder {id(self)}"  # lets `_stop_monitoring` check that the tool id is ours
        for tool in _TOOLS:
            substitutions.callback(_stop_monitoring, tool, name)
            try:
                monitoring.use_tool_id(tool, name)
            except ValueError:  # another tool uses the id
                continue
            events = monitoring.events
            monitoring.register_callback(tool, events.PY_START, self._on_start)
            monitoring.register_callback(tool, events.CALL, self._on_call)
            monitoring.set_events(tool, events.PY_START | events.CALL)
            monitoring.restart_events()
            return

    def _on_start(self, code: CodeType, offset: int) -> Any:
        if threading.get_ident() != self._thread:
            return None  # not the tracing thread
        if not active.thread:  # thunder's own code is running; its code objects need no further events
            return _monitoring.DISABLE if is_ours(code.co_filename) else None
        with TracerPhase():
            self._reader.code_ran(code, sys._getframe(1))
        return _monitoring.DISABLE

    def _on_call(self, code: CodeType, offset: int, fn: Any, first: Any) -> Any:
        if threading.get_ident() != self._thread or not active.thread:
            return None
        cls = type(fn)
        if cls is types.BuiltinFunctionType:
            owner = fn.__self__
        elif cls in _METHOD_DESCRIPTORS:
            owner = first
        else:
            return None
        if is_ours(code.co_filename):
            return _monitoring.DISABLE
        with TracerPhase():
            self._reader.c_function_called(fn, owner, sys._getframe(1))
        return None

    def _on_profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and active.thread and not is_ours(frame.f_code.co_filename):
            with TracerPhase():
                self._reader.c_function_called(arg, arg.__self__, frame)
        if event == "call" and active.thread:
            code = frame.f_code
            if id(code) not in self._seen:
                self._seen[id(code)] = code
                with TracerPhase():
                    self._reader.code_ran(code, frame)
                # Before Python 3.11, the interpreter writes its copy of the frame's variables (and closure variables)
                # back after this callback. The reader may have changed the variables, so refresh the copy here.
                frame.f_locals  # noqa: B018


def _stop_monitoring(tool: int, name: str) -> None:
    if _monitoring.get_tool(tool) == name:
        _monitoring.set_events(tool, 0)
        for event in (_monitoring.events.PY_START, _monitoring.events.CALL):
            _monitoring.register_callback(tool, event, None)
        _monitoring.free_tool_id(tool)


# -- objects that the program makes -----------------------------------------------------------------------------------
def watch_new_objects(substitutions: Substitutions) -> None:
    """Turn the garbage collector off until the board is restored, so that generation 0 contains only new objects."""
    if gc.isenabled():
        substitutions.callback(gc.enable)
    gc.collect(0)  # moves existing young objects to an older generation
    gc.disable()


def new_objects() -> set[int]:
    """Return the ids of the objects created since `watch_new_objects`."""
    return {id(x) for x in gc.get_objects(generation=0)}
