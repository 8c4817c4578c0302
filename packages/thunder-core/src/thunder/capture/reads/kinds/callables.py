# SPDX-License-Identifier: Apache-2.0
"""Kinds of callables: functions, methods, partial applications, and functions under `functools.lru_cache`."""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

from thunder.capture.base.snapshots import Snapshot
from thunder.capture.base.sources import Argument, Source
from thunder.capture.reads.guard_kinds import HasKeys, HasType, IsAlive, IsObject
from thunder.capture.reads.kinds.base import Holder, Kind, Rebuilder, Recorder
from thunder.capture.reads.memoized_functions import MEMOIZED, memoized_stand_in

__all__ = ["Function", "Memoized", "Method", "Partial"]


class Function(Kind):
    """Python functions: their code is guarded, and everything that the code reads when it runs."""

    def match(self, cls: type) -> bool:
        """Match functions."""
        return cls is types.FunctionType

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard the code. A function among the arguments may be a new object at each call; others must be the same."""
        if not root:
            if isinstance(source.root, Argument):
                recorder.add(HasType(source, types.FunctionType))
            else:
                recorder.add(IsAlive(source, weakref.ref(value)))
        code = recorder.substitutions.original(value, "__code__", value.__code__)
        recorder.add(IsObject(source.attr("__code__"), code))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return no snapshot: assignments to a function's attributes change its `__dict__`."""
        return []

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Register the function with the recorder of code."""
        recorder.code.found(source, value)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write the function itself."""
        return epilogue.kept(value)


class Method(Kind):
    """Bound methods. Python creates a new object at each read, so the function and the instance are read instead."""

    def match(self, cls: type) -> bool:
        """Match methods."""
        return cls is types.MethodType

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that the value is a method."""
        if not root:
            recorder.add(HasType(source, types.MethodType))

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read the instance and the function."""
        recorder.value(source.attr("__self__"), value.__self__, root=root)
        recorder.value(source.attr("__func__"), value.__func__, root=root)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write the method itself."""
        return epilogue.kept(value)


class Partial(Kind):
    """`functools.partial`: the function, and the arguments that the partial application adds."""

    def match(self, cls: type) -> bool:
        """Match partial applications of functions and methods."""
        return issubclass(cls, (functools.partial, functools.partialmethod))

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard the class."""
        if not root:
            recorder.add(HasType(source, type(value)))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return no snapshot: a partial application does not change."""
        return []

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read the function and its arguments."""
        for name in ("func", "args", "keywords"):
            recorder.value(source.attr(name), getattr(value, name))
        recorder.value(source.variables, value.__dict__)  # attributes that user code has set

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write the object itself."""
        return epilogue.kept(value)


class Memoized(Kind):
    """Functions under `functools.lru_cache`: called as in eager mode, with guards on their results."""

    def match(self, cls: type) -> bool:
        """Match functions under `lru_cache`."""
        return cls is MEMOIZED

    def held(self, source: Source, value: Any, recorder: Recorder, holder: Holder | None) -> None:
        """Replace the function while tracing with a function that records its calls."""
        if holder is not None:
            recorder.substitute(holder, value, memoized_stand_in(recorder, source, value))

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that the value is the same object."""
        if not root:
            recorder.add(IsAlive(source, weakref.ref(value)))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return no snapshot: the cache is not state of the program."""
        return []

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read the wrapped function, which runs if the memoized function is called with a tensor of the program."""
        recorder.value(source.attr("__wrapped__"), value.__wrapped__)
        recorder.add(HasKeys(source.variables, tuple(value.__dict__)))
        for name in value.__dict__.keys() - {"__wrapped__"}:  # attributes that user code has set
            recorder.value(source.variable(name), value.__dict__[name], holder=(value.__dict__, name))

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write the object itself."""
        return epilogue.kept(value)
