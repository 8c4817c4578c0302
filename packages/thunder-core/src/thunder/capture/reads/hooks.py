# SPDX-License-Identifier: Apache-2.0
"""Detection of reads while a program runs: hooks on classes for attributes, and interpreter events for code.

Both record only what the tracing thread does, and only while it traces. While a program runs on handles, other threads
that read or assign attributes of an object that the program uses wait in the hooks until the run has ended. They find
the object as it was before the run, and what they assign is neither recorded nor undone.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
import threading
import types
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.ending import raises_at_lines
from thunder.capture.base.phase import Reader, TracerPhase, active
from thunder.capture.base.substitutions import Substitutions
from thunder.core.locations import OWN_FOLDER, is_ours
from thunder.runtime.lock import MAX_WAIT, runs

__all__ = ["PROFILED", "ClassHooks", "CodeWatch", "can_hook", "is_profiled"]

PROFILED = "another profiler runs, so thunder cannot see what the program calls. Call it before the profiler starts"


# A thread that has waited for a program waits for the next one, too, if it has begun by then, but not for ever.
MAX_PROGRAMS = 8
# Since 3.13 Python gives each class a limited number of versions; a class hooked too often would stay slow forever.
MAX_INSTALLS = 200 if sys.version_info >= (3, 13) else sys.maxsize
_installs: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()
_HEAP_TYPE, _IMMUTABLE = 1 << 9, 1 << 8
_EXTENSIONS = tuple(importlib.machinery.EXTENSION_SUFFIXES)
_NEVER = (functools.partial, threading.local, type, torch.Tensor, torch.jit.ScriptModule)


def _hook(original: Callable[..., Any]) -> Callable[[Any, str], Any]:
    get_ident = threading.get_ident

    def __getattribute__(self: Any, name: str) -> Any:
        thread = get_ident()
        if active.thread != thread:
            if active.tracing != thread:
                _wait_for_program(self)
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


def _observer(original: Callable[..., Any]) -> Callable[[Any, str], Any]:
    """Return a user's `__getattribute__` that reports which containers it returns to the program."""
    get_ident = threading.get_ident

    def __getattribute__(self: Any, name: str) -> Any:
        value = original(self, name)
        if issubclass(type(value), (set, frozenset, dict)) and active.thread == get_ident():
            reader: Any = active.reader
            reader.fetched.add(id(value))
        return value

    __getattribute__._thunder_hook = True  # type: ignore[attr-defined]
    __getattribute__._thunder_observed = original  # type: ignore[attr-defined]
    return __getattribute__


def _assignment_hook(original: Callable[..., Any]) -> Callable[[Any, str, Any], None]:
    get_ident = threading.get_ident

    def __setattr__(self: Any, name: str, value: Any) -> None:
        thread = get_ident()
        if active.thread == thread:
            reader: Any = active.reader
            reader.assigned.add((id(self), name))
            if (type(self), name) not in reader.plain or name == "__class__":
                with TracerPhase():
                    reader.before_read(self, name, assigned=True)
        elif active.tracing != thread:
            _wait_for_program(self)
            original(self, name, value)
            _assigned_elsewhere(self, name)
            return
        original(self, name, value)

    __setattr__._thunder_hook = True  # type: ignore[attr-defined]
    return __setattr__


def _deletion_hook(original: Callable[..., Any]) -> Callable[[Any, str], None]:
    get_ident = threading.get_ident

    def __delattr__(self: Any, name: str) -> None:
        if active.tracing != get_ident():
            _wait_for_program(self)
            original(self, name)
            _assigned_elsewhere(self, name)
            return
        original(self, name)

    __delattr__._thunder_hook = True  # type: ignore[attr-defined]
    return __delattr__


def _wait_for_program(obj: Any) -> None:
    """Wait on another thread until the traced program has ended, if the program uses `obj`.

    The program may itself wait for this thread, e.g. for a lock. The waiting time is therefore limited.
    """
    for _ in range(MAX_PROGRAMS):
        if not (active.waits and any(reader.holds(obj) for reader in active.readers)):
            return
        if not runs.wait(MAX_WAIT):
            active.waits = False


def _assigned_elsewhere(obj: Any, name: str) -> None:
    """Record that another thread assigned an attribute, in case it did not wait for the end of the program.

    It did not if the program found the object in the middle of the assignment, or if it waited for too long.
    """
    for reader in active.readers:
        if reader.holds(obj):
            reader.assigned_elsewhere.add((id(obj), name))


def can_hook(cls: type) -> bool:
    """Check whether a class is written in Python, so that hooks can watch the attributes of its instances."""
    if not cls.__flags__ & _HEAP_TYPE or cls.__flags__ & _IMMUTABLE or issubclass(cls, _NEVER):
        return False
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    return file is None or not file.endswith(_EXTENSIONS)  # a script may have any name, also "<stdin>"


def _may_install(cls: type) -> bool:
    """Count the hooks of a class, and check that they are not too many."""
    if _installs.get(cls, 0) >= MAX_INSTALLS:
        return False
    _installs[cls] = _installs.get(cls, 0) + 1
    return True


class ClassHooks:
    """The class hooks of one session."""

    def __init__(self, substitutions: Substitutions):
        self._substitutions = substitutions
        self._decided: dict[type, bool] = {}
        self._observed: set[type] = set()
        self.step: int | None = None  # the position of the steps that remove the hooks

    def watch(self, cls: type) -> bool:
        """Watch attribute reads on a class's instances; return False if the class cannot be watched."""
        found = self._decided.get(cls)
        if found is None:
            found = self._decided[cls] = self._install(cls)
        return found

    def observe(self, cls: type) -> bool:
        """Report what the `__getattribute__` of a class that cannot be watched returns, if that is possible."""
        original: Any = cls.__getattribute__
        if hasattr(original, "_thunder_observed"):
            return cls in self._observed  # else an enclosing trace or a base class is observed
        if not can_hook(cls) or not isinstance(original, types.FunctionType) or not _may_install(cls):
            return False
        self._observed.add(cls)
        self._substitutions.set(cls, "__getattribute__", _observer(original), step=self.step)
        return True

    def _install(self, cls: type) -> bool:
        if not can_hook(cls) or type(cls).__module__ == "pybind11_builtins":
            return False  # the metaclass of pybind11 allows no hooks
        original = cls.__getattribute__
        if hasattr(original, "_thunder_observed"):
            return False
        if getattr(original, "_thunder_hook", False):
            return True  # a base class is already watched, or an enclosing trace watches the class
        if isinstance(original, types.FunctionType):
            return False  # a hook would miss the lookups inside a user-defined __getattribute__
        if not _may_install(cls):
            return False
        assign, delete = cls.__setattr__, cls.__delattr__  # before the class changes, so that Python sees one change
        self._substitutions.set(cls, "__getattribute__", _hook(original), step=self.step)
        self._substitutions.set(cls, "__setattr__", _assignment_hook(assign), step=self.step)
        self._substitutions.set(cls, "__delattr__", _deletion_hook(delete), step=self.step)
        return True


# -- code that runs ---------------------------------------------------------------------------------------------------
_monitoring: Any = getattr(sys, "monitoring", None)
_METHOD_DESCRIPTORS = (types.MethodDescriptorType, types.ClassMethodDescriptorType)
_TOOLS = (3, 4)  # ids of the interpreter's monitoring that no tool uses by convention


class CodeWatch:
    """Reports each code object that starts to run, and each call of a C function, to a reader."""

    def __init__(self, reader: Reader):
        self._reader = reader
        self._thread = threading.get_ident()
        self._seen: dict[int, CodeType] = {}
        # Calls of C functions that need not be reported again, by `_key_of_call`; the values keep the ids valid.
        self._harmless: dict[Any, Any] = {}
        self._tool: int | None = None

    def start(self, substitutions: Substitutions) -> bool:
        """Watch code until the board is restored; return False if a profiler prevents this."""
        self._thread = threading.get_ident()
        if sys.version_info >= (3, 12):
            return self._monitor(substitutions)
        go_on = _suspension(sys.getprofile())
        if go_on is None:
            return False
        substitutions.callback(go_on)
        substitutions.assign(active, profile=self._on_profile)
        sys.setprofile(active.profile)
        return True

    def release(self) -> None:
        """Release references to the user's classes and functions."""
        self._seen.clear()
        self._harmless.clear()

    def report_again(self) -> None:
        """Report code and C functions again that were reported before."""
        self._seen.clear()
        self._harmless.clear()
        if self._tool is not None:
            _monitoring.restart_events()

    def is_intact(self) -> bool:
        """Check whether the interpreter still reports code. Call this in `Phase.TRACER`, which checks the profile."""
        if self._tool is None:
            return True
        events = _monitoring.get_events(self._tool)
        return _monitoring.get_tool(self._tool) == self._name and bool(events & _monitoring.events.PY_START)

    @property
    def _name(self) -> str:
        """The name of the monitoring tool, by which `_stop_monitoring` checks that the tool id is ours."""
        return f"thunder {id(self)}"

    def _monitor(self, substitutions: Substitutions) -> bool:
        monitoring = _monitoring
        name = self._name
        for tool in _TOOLS:
            substitutions.callback(_stop_monitoring, tool, name)
            try:
                monitoring.use_tool_id(tool, name)
            except ValueError:  # another tool uses the id
                continue
            events = monitoring.events
            monitoring.register_callback(tool, events.PY_START, self._on_start)
            monitoring.register_callback(tool, events.CALL, self._on_call)
            monitoring.register_callback(tool, events.PY_UNWIND, self._on_unwind)
            monitoring.set_events(tool, events.PY_START | events.CALL | events.PY_UNWIND)
            monitoring.restart_events()
            self._tool = tool
            return True
        return False

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
        if fn is set or fn is frozenset:
            with TracerPhase():
                self._reader.set_made(code, fn, first)
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
        if fn not in self._harmless and (id(type(owner)), fn.__name__) not in self._harmless:
            self._c_function_called(fn, owner, sys._getframe(1))
        return None

    def _on_unwind(self, code: CodeType, offset: int, error: BaseException | None) -> None:
        if offset in self._reader.raising.get(id(code), ()) and threading.get_ident() == self._thread:
            self._reader.order_of_set_read()

    def _on_profile(self, frame: FrameType, event: str, arg: Any) -> None:
        try:
            if event == "c_call":
                harmless = self._harmless
                if (
                    arg in harmless
                    or not active.thread
                    or (id(type(arg.__self__)), arg.__name__) in harmless
                    or frame.f_code.co_filename.startswith(OWN_FOLDER)
                ):
                    return
                self._c_function_called(arg, arg.__self__, frame)
            elif event == "call" and active.thread:
                code = frame.f_code
                if id(code) not in self._seen:
                    self._seen[id(code)] = code
                    with TracerPhase():
                        self._reader.code_ran(code, frame)
                    # Before Python 3.11, the interpreter writes its copy of the frame's variables (and closure
                    # variables) back after this callback. The reader may have changed the variables, so refresh the
                    # copy here.
                    frame.f_locals  # noqa: B018
            elif event == "return" and arg is None and id(frame.f_code) in self._reader.raising:
                self._on_unwind(frame.f_code, frame.f_lasti, None)
        except BaseException:
            if not raises_at_lines():  # otherwise the trace function restores the callback
                _profile_after_exception(frame, self._on_profile)
            raise

    def _c_function_called(self, fn: Any, owner: Any, frame: FrameType) -> None:
        with TracerPhase():
            if self._reader.c_function_called(fn, owner, frame):
                key = _key_of_call(fn, owner)
                if key is not None:
                    self._harmless[key] = type(owner)


def _profile_after_exception(frame: FrameType, profile: Any) -> None:
    """Restore a profile callback that is about to raise an exception, for which the interpreter removes it.

    The program may catch the exception, and what it calls then must be reported, too. The interpreter calls a trace
    function when the exception arrives in a frame of the program, before the program can catch it.
    """
    before = sys.gettrace()
    frames = [f for f in (frame, frame.f_back) if f is not None]
    own = [f.f_trace for f in frames]

    def arrived(*_: Any) -> None:
        sys.settrace(before)
        for f, trace in zip(frames, own):
            f.f_trace = trace
        if active.profile is not None:
            sys.setprofile(profile)

    for f in frames:
        f.f_trace = arrived
    sys.settrace(arrived)


def _key_of_call(fn: Any, owner: Any) -> Any:
    """Return a key that is equal for calls with the same verdict: the function, or the class and name of a method.

    Neither is compared or hashed by code of a user's class.
    """
    is_descriptor = type(fn) is not types.BuiltinFunctionType
    if issubclass(type(owner), (types.ModuleType, type)):
        return None if is_descriptor else fn
    if is_descriptor or (owner is not None and fn.__module__ is None):
        return id(type(owner)), fn.__name__
    return fn


def is_profiled() -> bool:
    """Check whether another profiler keeps thunder from seeing which code runs."""
    if sys.version_info >= (3, 12):
        return all(_monitoring.get_tool(tool) is not None for tool in _TOOLS)
    return _suspension(sys.getprofile()) is None


def _suspension(profiler: Any) -> Callable[[], None] | None:
    """Return a function that turns the interpreter's profiler on again; None if it cannot be interrupted.

    `sys.setprofile` cannot restore a profiler written in C. One that keeps a stack of its own, e.g. that of the module
    `profile`, fails if it misses calls and returns. cProfile's stack stays as it is while it is interrupted.
    """
    if profiler is None or type(profiler) is types.FunctionType:
        return functools.partial(sys.setprofile, profiler)
    lsprof = sys.modules.get("_lsprof")
    if lsprof is not None and isinstance(profiler, lsprof.Profiler):
        return functools.partial(_enable, profiler, _depth() - 1)
    return None


def _enable(profiler: Any, depth: int) -> None:
    """Turn cProfile on again, as many calls deep as it was interrupted: each return takes one call off its stack."""
    if _depth() < depth:
        _enable(profiler, depth)
    else:
        sys.setprofile(lambda frame, event, arg: None)  # else the return from `enable` would not be reported
        profiler.enable()


def _depth() -> int:
    """Return how many frames are on the stack of the caller."""
    count, frame = 0, sys._getframe(1)
    while frame.f_back is not None:
        count, frame = count + 1, frame.f_back
    return count


def _stop_monitoring(tool: int, name: str) -> None:
    if _monitoring.get_tool(tool) == name:
        _monitoring.set_events(tool, 0)
        events = _monitoring.events
        for event in (events.PY_START, events.CALL, events.PY_UNWIND):
            _monitoring.register_callback(tool, event, None)
        _monitoring.free_tool_id(tool)
