# SPDX-License-Identifier: Apache-2.0
"""What a kind of value is, and what it may ask of those that it works for: the recorder of reads, and the epilogue."""

from __future__ import annotations

import contextvars
import types
from typing import Any, NamedTuple, Protocol

import torch

from thunder.capture.base.snapshots import Snapshot
from thunder.capture.base.sources import Root, Source
from thunder.capture.base.substitutions import Substitutions
from thunder.capture.reads.guard_kinds import Guard

__all__ = ["ClassRecorder", "CodeRecorder", "Holder", "Kind", "Reached", "Rebuilder", "Recorder", "SavedName"]

# What holds a value, and by which name or position: while the program is traced, something else may stand there.
Holder = tuple[Any, Any]


class Reached(NamedTuple):
    """Something that a read led to, and how it was then."""

    source: Source
    thing: Any
    snapshots: list[Snapshot]


class SavedName(NamedTuple):
    """How a value is named in a program that is saved: `form` is "literal", "class", "function" or "module"."""

    form: str
    text: str  # the literal, or the path by which it is imported
    digest: str = ""  # of a function's code: a saved program is for this code only


class ClassRecorder(Protocol):
    """What kinds ask of the recorder of classes."""

    def know(self, cls: type) -> Root: ...
    def attribute_read(self, cls: type, name: str, raw: Any) -> None: ...
    def read_whole(self, cls: type) -> None: ...
    def is_value(self, cls: type) -> None: ...


class CodeRecorder(Protocol):
    """What kinds ask of the recorder of functions and code."""

    def found(self, source: Source, fn: Any) -> None: ...
    def code_ran(self, code: types.CodeType, frame: types.FrameType) -> None: ...


class Recorder(Protocol):
    """What kinds ask of the recorder of reads."""

    guards: list[Guard]
    reached: dict[int, Reached]
    tensors: dict[int, list[Source]]
    tensors_read: list[tuple[Source, torch.Tensor]]
    assigned: set[tuple[int, str]]
    substitutions: Substitutions
    context: contextvars.Context

    @property
    def substituted(self) -> int: ...
    @property
    def sees_code(self) -> bool: ...
    @property
    def classes(self) -> ClassRecorder: ...
    @property
    def code(self) -> CodeRecorder: ...
    def value(self, source: Source, value: Any, *, root: bool = False, holder: Holder | None = None) -> None: ...
    def add(self, guard: Guard) -> None: ...
    def guarded(self, source: Source) -> None: ...
    def is_guarded(self, source: Source) -> bool: ...
    def absent(self, source: Source, name: str) -> None: ...
    def register(self, source: Source, thing: Any, snapshots: list[Snapshot]) -> None: ...
    def substitute(self, holder: Holder, before: Any, stand_in: Any) -> None: ...
    def symbolic_number(self, source: Source, value: Any) -> Any: ...
    def is_read_by_item(self, source: Source) -> bool: ...
    def tensor_found(self, source: Source, tensor: torch.Tensor) -> Source | None: ...
    def generator_found(self, generator: torch.Generator) -> None: ...
    def unguardable_found(self, source: Source, value: Any) -> None: ...
    def watch(self, cls: type) -> bool: ...
    def refuse(self, reason: str) -> None: ...


class Rebuilder(Protocol):
    """What kinds ask of the epilogue, which makes anew what the program made and returns or keeps."""

    def constant(self, x: Any) -> Any: ...
    def kept(self, x: Any) -> Any: ...
    def not_rebuilt(self, x: Any) -> Any: ...
    def new_container(self, x: Any) -> Any: ...
    def new_object(self, x: Any) -> Any: ...
    def new_mask(self, x: Any) -> Any: ...


class Kind:
    """A kind of value: how values of it are recognized, guarded, read through, put back, made anew and named.

    A value is recorded once: found at a second source, it is guarded to be the same object as at the first. Kinds
    whose values have no identity that matters, or are guarded by identity anyway, record each source alone.
    """

    #: Whether it is recorded once, and guarded to be the same object wherever else it is found.
    is_shared = True
    #: Whether there is nothing to be read through it.
    is_leaf = False

    def match(self, cls: type) -> bool:
        """Check whether instances of a class are of this kind, if those before it in `classify` did not match."""
        raise NotImplementedError

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Guard a value, take the snapshot of how it is, and read what the program may read through it.

        The root is the callable that is traced: its prologue is asked for no other.
        """
        self.guard(source, value, recorder, root=root)
        snapshots = self.snapshot(source, value, recorder)
        if snapshots is not None:
            recorder.register(source, value, snapshots)
        self.reach(source, value, recorder, root=root)

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Record what has to hold of the value itself."""

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot] | None:
        """Return how it is now, where the program may change that; None where it is not registered at all.

        A snapshot restores what it shows, and returns the assignments that the epilogue repeats at each call.
        """
        return None

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read what can be read through it."""

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Return what an epilogue writes for a value that the program made."""
        return epilogue.not_rebuilt(value)

    def name_in_saved(self, value: Any) -> SavedName | None:
        """Return how a saved program names the value, None where it cannot."""
        return None
