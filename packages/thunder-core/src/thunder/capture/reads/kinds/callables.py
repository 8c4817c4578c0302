# SPDX-License-Identifier: Apache-2.0
"""Kinds of callables: functions, methods, partial applications, and functions under `functools.lru_cache`."""

from __future__ import annotations

import functools
import hashlib
import types
import weakref
from typing import Any

from thunder.capture.base.snapshots import Snapshot
from thunder.capture.base.sources import Argument, Source
from thunder.capture.reads.guard_kinds import HasType, IsAlive, IsObject
from thunder.capture.reads.kinds.base import Holder, Kind, Rebuilder, Recorder, SavedName
from thunder.capture.reads.memoized_functions import MEMOIZED, memoized_stand_in

__all__ = ["Function", "Memoized", "Method", "Partial"]


class Function(Kind):
    """Functions written in Python: their code, and what it reads when it has run."""

    def match(self, cls: type) -> bool:
        """Check for functions."""
        return cls is types.FunctionType

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard the code. Functions among the arguments are made anew at each call; others have to be the same."""
        if not root:
            if isinstance(source.root, Argument):
                recorder.add(HasType(source, types.FunctionType))
            else:
                recorder.add(IsAlive(source, weakref.ref(value)))
        recorder.add(IsObject(source.attr("__code__"), value.__code__))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return nothing: assignments to a function's attributes are those to its `__dict__`."""
        return []

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Let the recorder of code know the function."""
        recorder.code.found(source, value)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write the function itself."""
        return epilogue.kept(value)

    def name_in_saved(self, value: Any) -> SavedName | None:
        """Name it by its path and its code, unless it was made by another function."""
        if "<" in value.__qualname__ or not isinstance(value.__module__, str):
            return None
        return SavedName("function", f"{value.__module__}.{value.__qualname__}", code_digest(value.__code__))


def code_digest(code: types.CodeType) -> str:
    """Return a hash of what code does: its instructions, constants and names, and those of functions in it."""
    digest = hashlib.sha256(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames, code.co_freevars, code.co_flags)).encode())
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            text = code_digest(const)
        else:
            text = f"{type(const).__name__}:{sorted(map(repr, const)) if isinstance(const, frozenset) else const!r}"
        digest.update(text.encode())
    return digest.hexdigest()


class Method(Kind):
    """Bound methods, which Python makes anew whenever they are read: the function, and what it is bound to."""

    def match(self, cls: type) -> bool:
        """Check for methods."""
        return cls is types.MethodType

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that it is a method."""
        if not root:
            recorder.add(HasType(source, types.MethodType))

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read both parts."""
        recorder.value(source.attr("__self__"), value.__self__, root=root)
        recorder.value(source.attr("__func__"), value.__func__, root=root)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write the method itself."""
        return epilogue.kept(value)


class Partial(Kind):
    """`functools.partial`: the function and the arguments that it adds."""

    def match(self, cls: type) -> bool:
        """Check for partial applications of functions and methods."""
        return issubclass(cls, (functools.partial, functools.partialmethod))

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard the class."""
        if not root:
            recorder.add(HasType(source, type(value)))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return nothing: it does not change."""
        return []

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read its parts."""
        for name in ("func", "args", "keywords"):
            recorder.value(source.attr(name), getattr(value, name))

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write the object itself."""
        return epilogue.kept(value)


class Memoized(Kind):
    """Functions under `functools.lru_cache`: called as in eager, and guarded for what they return."""

    def match(self, cls: type) -> bool:
        """Check for what lru_cache makes."""
        return cls is MEMOIZED

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Guard it, and let a function stand in for it that records its calls."""
        super().record(source, value, recorder, root=root)
        if holder is not None:
            recorder.substitute(holder, value, memoized_stand_in(recorder, source, value))

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that it is this one."""
        if not root:
            recorder.add(IsAlive(source, weakref.ref(value)))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return nothing: its cache is no state of the program."""
        return []

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read the function, which runs where the memoized one is given a tensor of the program."""
        recorder.value(source.attr("__wrapped__"), value.__wrapped__)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write the object itself."""
        return epilogue.kept(value)
