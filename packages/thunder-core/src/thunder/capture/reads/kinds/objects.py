# SPDX-License-Identifier: Apache-2.0
"""Kinds of objects with attributes: those of the user's classes, namespaces, and jitted callables."""

from __future__ import annotations

import collections.abc
import types
import weakref
from typing import Any

import torch

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.predicates import is_mask, is_mask_class, module_of
from thunder.capture.base.snapshots import (
    CONTAINERS,
    TABLES,
    AttributesSnapshot,
    Snapshot,
    slot,
    slot_names,
    snapshots_of,
    variables,
)
from thunder.capture.base.sources import Item, Source, Variables
from thunder.capture.reads.guard_kinds import HasKeys, HasType, IsAlive, LacksAttribute
from thunder.capture.reads.hooks import can_hook
from thunder.capture.reads.kinds.base import Kind, Rebuilder, Recorder
from thunder.capture.reads.kinds.containers import item_source, read_contents
from thunder.capture.reads.libraries import is_library_class

__all__ = ["Jitted", "Namespace", "Object", "read_whole"]

_MODULE = torch.nn.Module
# Classes of Python's library whose instances are data that programs keep their options in.
_DATA_LIBRARIES = ("argparse", "collections", "types", "dataclasses")


class Object(Kind):
    """Instances of the user's classes and torch.nn.Modules: what is read of them is seen by hooks of their classes."""

    def match(self, cls: type) -> bool:
        """Check for classes that are written in Python, and not by a library but for modules and holders of data."""
        if not can_hook(cls):
            return False
        if issubclass(cls, _MODULE) or not is_library_class(cls):
            return True
        return module_of(cls).partition(".")[0] in _DATA_LIBRARIES and hasattr(cls, "__dict__")

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard the class, and its bases."""
        if isinstance(value, _MODULE):  # tensors that it holds are named after it
            if root:
                source.label = "t"
            elif not source.label.startswith("t"):
                source.label = f"t_{source.label}"
        recorder.add(HasType(source, type(value)))
        recorder.classes.know(type(value))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return its variables, slots, tables and, where its class is a container's, its contents."""
        return snapshots_of(source, value)

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Watch what is read of it; where its class cannot be watched, read everything."""
        if isinstance(value, CONTAINERS):
            read_contents(source, value, recorder)
        if not recorder.watch(type(value)):
            read_whole(source, value, recorder)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Make another one with the same attributes."""
        return epilogue.new_object(value) if variables(value) is not None else epilogue.not_rebuilt(value)


class Namespace(Kind):
    """Objects that are what is in them: `SimpleNamespace`, containers of Python's library as os.environ, masks."""

    def match(self, cls: type) -> bool:
        """Check for these, where they are written in Python."""
        if cls is types.SimpleNamespace or is_mask_class(cls):
            return True
        of_python = module_of(cls).partition(".")[0] not in ("torch", "thunder", "numpy")
        return of_python and can_hook(cls) and is_library_class(cls) and issubclass(cls, collections.abc.Collection)

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard the class."""
        recorder.add(HasType(source, type(value)))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return its attributes."""
        return snapshots_of(source, value)

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read all of it."""
        read_whole(source, value, recorder)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Make another one with the same attributes."""
        if is_mask(value):
            return epilogue.new_mask(value)
        return epilogue.new_object(value) if variables(value) is not None else epilogue.not_rebuilt(value)


class Jitted(Kind):
    """A jitted callable that the program calls: what it wraps is a part of the program."""

    def match(self, cls: type) -> bool:
        """Check for what `thunder.jit` returns."""
        return module_of(cls) in ("thunder.frontend.jit", "thunder.frontend.module")

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that it is this one."""
        if not root:
            recorder.add(IsAlive(source, weakref.ref(value)))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return nothing: programs do not assign to it."""
        return []

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read what it wraps."""
        name = "_model" if isinstance(value, _MODULE) else "_fn"
        recorder.value(source.variable(name), value.__dict__[name])


def read_whole(source: Source, obj: Any, recorder: Recorder) -> None:
    """Read an object whose class cannot be watched: everything that it has."""
    names = slot_names(type(obj))
    for snapshot in recorder.reached[id(obj)].snapshots:
        if isinstance(snapshot, AttributesSnapshot):
            for name, value in snapshot.before.items():
                recorder.value(source.attr(name), value, holder=(obj, name))
        elif snapshot.source is not source and not _is_table(snapshot.source):
            recorder.add(HasKeys(snapshot.source, tuple(snapshot.before)))
            for i, (key, value) in enumerate(snapshot.before.items()):
                inner = item_source(snapshot.source, snapshot.target, key, i)
                recorder.value(inner, value, holder=(snapshot.target, key))
            if isinstance(snapshot.source, Variables):
                _guard_empty_slots(source, obj, names, recorder)
    if variables(obj) is None:
        _guard_empty_slots(source, obj, names, recorder)
    recorder.classes.read_whole(type(obj))


def _is_table(source: Source) -> bool:
    """Check whether a source is one of the dicts that a module keeps its parameters, buffers and modules in."""
    return isinstance(source, Item) and source.key in TABLES


def _guard_empty_slots(source: Source, obj: Any, names: list[str], recorder: Recorder) -> None:
    for name in names:
        if slot(obj, name) is ABSENT:
            recorder.add(LacksAttribute(source, name))
