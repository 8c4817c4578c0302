# SPDX-License-Identifier: Apache-2.0
"""The base class of kinds, and protocols of the two objects that kinds call: the read recorder and the epilogue."""

from __future__ import annotations

import contextvars
import enum
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn, Protocol

import torch

from thunder.capture.base.snapshots import Snapshot
from thunder.capture.base.sources import Root, Source
from thunder.capture.base.substitutions import Substitutions
from thunder.capture.reads.guard_kinds import Guard
from thunder.capture.reads.order_of_sets import OrderOfSets
from thunder.capture.tensors.arrays import ArrayHandle

__all__ = ["ClassRecorder", "CodeRecorder", "Holder", "Kind", "Reached", "Rebuilder", "Recorder"]

# An object that holds a value, and the value's name or position in it. Tracing may replace the value there.
Holder = tuple[Any, Any]


class Reached(NamedTuple):
    """An object that a read found, and its state at that time."""

    source: Source
    thing: Any
    snapshots: list[Snapshot]


class ClassRecorder(Protocol):
    """The methods of the recorder of classes that kinds call."""

    def know(self, cls: type) -> Root: ...
    def instance_found(self, cls: type) -> None: ...
    def attribute_read(self, cls: type, name: str, raw: Any) -> None: ...
    def read_whole(self, cls: type, *, observed: bool) -> None: ...
    def is_value(self, cls: type) -> None: ...
    def makes_instances(self, cls: type) -> None: ...


class ModuleRecorder(Protocol):
    """The methods of the recorder of modules that others call."""

    def found(self, source: Source, module: types.ModuleType) -> None: ...
    def variable(self, module: types.ModuleType, name: str) -> tuple[Source, Any] | None: ...
    def assigned(self, module: types.ModuleType, name: str, value: Any) -> None: ...


class AttributesOfFunctions(Protocol):
    """What kinds use of the recorder of attributes of functions."""

    def read(self, fn: Any, name: str) -> None: ...


class CodeRecorder(Protocol):
    """What kinds use of the recorder of functions and code."""

    reads_streams: bool
    sets: OrderOfSets

    @property
    def modules(self) -> ModuleRecorder: ...
    @property
    def attributes(self) -> AttributesOfFunctions: ...

    def found(self, source: Source, fn: Any) -> None: ...
    def asks_for(self, names: Iterable[str]) -> None: ...
    def reader_found(self, source: Source) -> None: ...
    def code_ran(self, code: types.CodeType, frame: types.FrameType) -> None: ...
    def c_function_called(self, fn: Any, owner: Any, frame: types.FrameType) -> bool: ...


class Recorder(Protocol):
    """The attributes and methods of the recorder of reads that kinds use."""

    guards: list[Guard]
    reached: dict[int, Reached]
    expected: set[int]
    tensors: dict[int, list[Source]]
    tensors_read: list[tuple[Source, torch.Tensor]]
    assigned: set[tuple[int, str]]
    assigned_elsewhere: set[tuple[int, str]]
    substitutions: Substitutions
    context: contextvars.Context
    arrays: dict[int, ArrayHandle]
    tuples: dict[int, tuple[Any, ...]]
    handles: dict[int, Any]  # the handles of the tensors among the arguments, by the ids of the tensors
    source_of_input: Callable[[torch.Tensor], Source | None]

    @property
    def substituted(self) -> int: ...
    @property
    def symbolic(self) -> Any: ...
    @property
    def classes(self) -> ClassRecorder: ...
    @property
    def code(self) -> CodeRecorder: ...
    def value(self, source: Source, value: Any, *, root: bool = False, holder: Holder | None = None) -> None: ...
    def add(self, guard: Guard) -> None: ...
    def guarded(self, source: Source) -> None: ...
    def is_guarded(self, source: Source) -> bool: ...
    def at_end(self, check: Callable[[], None]) -> None: ...
    def absent(self, source: Source, name: str) -> None: ...
    def expect(self, thing: Any) -> None: ...
    def register(self, source: Source, thing: Any, snapshots: list[Snapshot]) -> None: ...
    def substitute(self, holder: Holder, before: Any, stand_in: Any) -> None: ...
    def symbolic_number(self, source: Source, value: Any) -> Any: ...
    def is_read_by_item(self, source: Source) -> bool: ...
    def tensor_found(self, source: Source, tensor: torch.Tensor) -> Source | None: ...
    def identified(self, obj: Any) -> Any: ...
    def is_copy(self, obj: Any) -> bool: ...
    def tensor_held(self, holder: Holder | None, tensor: torch.Tensor) -> None: ...
    def generator_found(self, generator: torch.Generator) -> None: ...
    def code_starts(self, code: types.CodeType) -> None: ...
    def unguardable_found(self, source: Source, value: Any) -> None: ...
    def watch(self, cls: type) -> bool: ...
    def observe(self, cls: type) -> bool: ...
    def watch_value(self, x: Any) -> bool: ...
    def decimals(self) -> None: ...
    def member_found(self, member: enum.Enum) -> None: ...
    def refuse(self, reason: str) -> None: ...
    def deny(self, reason: str, *, always: bool = False) -> NoReturn: ...
    def go_on(self) -> None: ...


class Rebuilder(Protocol):
    """The methods of the epilogue that kinds call to rebuild values that the program created."""

    def constant(self, x: Any) -> Any: ...
    def kept(self, x: Any) -> Any: ...
    def not_rebuilt(self, x: Any) -> Any: ...
    def new_container(self, x: Any) -> Any: ...
    def new_object(self, x: Any) -> Any: ...
    def new_mask(self, x: Any) -> Any: ...
    def new_array(self, x: Any) -> Any: ...


class Kind:
    """A kind of value: how its values are recognized, guarded, read through, restored, rebuilt and named.

    A value is recorded once. If a read finds the value at a second source, a guard checks that both sources have the
    same object. Some kinds record each source separately: their values have no identity that matters, or are already
    guarded by identity.
    """

    #: Whether a value is recorded once, and guards check that other sources have the same object.
    is_shared = True
    #: Whether the program cannot read other values through it.
    is_leaf = False

    def match(self, cls: type) -> bool:
        """Check whether instances of `cls` are of this kind, given that no earlier kind of `classify` matched."""
        raise NotImplementedError

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Guard a value, take a snapshot of its state, and record the values that the program may read through it.

        `root` is true for the traced callable, which needs no guard: its prologue serves no other callable.
        """
        self.guard(source, value, recorder, root=root)
        snapshots = self.snapshot(source, value, recorder)
        if snapshots is not None:
            recorder.register(source, value, snapshots)
        self.reach(source, value, recorder, root=root)

    def held(self, source: Source, value: Any, recorder: Recorder, holder: Holder | None) -> None:
        """Replace the value in its holder if necessary. This is called for each source where a read finds the value."""

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Record the guards of the value itself."""

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot] | None:
        """Return snapshots of the state that the program may change; None if the value is not registered at all.

        A snapshot restores the state that it contains, and returns the assignments that the epilogue repeats.
        """
        return None

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Record the values that can be read through the value."""

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Return the epilogue's expression for a value that the program created."""
        return epilogue.not_rebuilt(value)
