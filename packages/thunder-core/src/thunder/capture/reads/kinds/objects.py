# SPDX-License-Identifier: Apache-2.0
"""Kinds of objects with attributes: instances of user classes, namespaces, and jitted callables."""

from __future__ import annotations

import _random
import datetime
import threading
import types
import weakref
from collections import OrderedDict, defaultdict
from typing import Any

import torch

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.predicates import is_mask, is_mask_class, model_of, module_of
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
from thunder.capture.reads.guard_kinds import HasKeys, HasPlainValue, HasType, IsAlive, IsObject, LacksAttribute
from thunder.capture.reads.hooks import can_hook
from thunder.capture.reads.kinds.base import Holder, Kind, Rebuilder, Recorder
from thunder.capture.reads.kinds.containers import item_source, read_contents
from thunder.capture.reads.kinds.leaves import IMMUTABLE
from thunder.capture.reads.libraries import is_trusted
from thunder.runtime.guards import plain_base, plain_value

__all__ = ["Jitted", "Namespace", "Object", "ThreadLocal", "read_whole"]

_MODULE = torch.nn.Module
# Built-in classes whose state is guarded, so that user classes may be derived from them.
_BASES = frozenset({object, *CONTAINERS, defaultdict, OrderedDict, int, float, complex, str, bytes, *IMMUTABLE,
                    datetime.datetime, types.SimpleNamespace, _random.Random})  # fmt: skip


class Object(Kind):
    """Instances of classes written in Python. Hooks on their classes see which attributes are read."""

    def match(self, cls: type) -> bool:
        """Match classes written in Python, user classes and library classes alike, except the trusted ones."""
        if not can_hook(cls):
            return False
        if issubclass(cls, _MODULE):
            return True
        if is_trusted(cls):
            return False
        return all(can_hook(c) or c in _BASES or issubclass(c, BaseException) for c in cls.__mro__)

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard the class and its bases."""
        if issubclass(type(value), _MODULE):  # its tensors are named after it
            if root:
                source.label = "t"
            elif not source.label.startswith("t"):
                source.label = f"t_{source.label}"
        recorder.add(HasType(source, type(value)))
        recorder.classes.instance_found(type(value))
        if issubclass(type(value), IMMUTABLE):
            recorder.add(IsObject(source, value))
        elif plain_base(value) is not None:
            recorder.add(HasPlainValue(source, plain_value(value)))

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Record it after its class is watched: what another thread assigns from then on is not lost by the undo."""
        recorder.expect(value)
        super().record(source, value, recorder, root=root, holder=holder)

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return snapshots of its variables, slots and tables, and of its items if it is a container."""
        return snapshots_of(source, value)

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Watch reads of its attributes. If its class cannot be watched, read all attributes now."""
        if issubclass(type(value), CONTAINERS):
            read_contents(source, value, recorder)
        elif issubclass(type(value), BaseException):
            _read_exception(source, value, recorder)
        if not recorder.watch(type(value)):
            if not _shows_variables(value):
                recorder.refuse(f"`{source}` hides its attributes: {type(value).__qualname__} has a __getattribute__")
                return
            read_whole(source, value, recorder)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Build a new object with the same attributes."""
        return epilogue.new_object(value) if variables(value) is not None else epilogue.not_rebuilt(value)


def _read_exception(source: Source, error: Any, recorder: Recorder) -> None:
    """Read the attributes that built-in classes of exceptions store, e.g. `args`, `errno` and `name`."""
    recorder.value(source.attr("args"), error.args)
    for cls in type(error).__mro__:
        for name, found in vars(cls).items() if cls.__module__ == "builtins" and cls is not BaseException else ():
            if isinstance(found, (types.MemberDescriptorType, types.GetSetDescriptorType)) and name[0] != "_":
                recorder.value(source.attr(name), getattr(error, name, None))


def _shows_variables(obj: Any) -> bool:
    """Check whether a prologue can read the `__dict__` of an object whose class has its own `__getattribute__`."""
    try:
        return variables(obj) is None or obj.__dict__ is variables(obj)
    except Exception:  # of user code
        return False


class Namespace(Kind):
    """Objects that consist of their contents, and that no hook can watch: `SimpleNamespace`, and causal masks."""

    def match(self, cls: type) -> bool:
        """Match these classes."""
        return cls is types.SimpleNamespace or is_mask_class(cls)

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard the class."""
        recorder.add(HasType(source, type(value)))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return snapshots of its attributes."""
        return snapshots_of(source, value)

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read all attributes and items."""
        read_whole(source, value, recorder)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Build a new object with the same attributes."""
        if is_mask(value):
            return epilogue.new_mask(value)
        return epilogue.new_object(value) if variables(value) is not None else epilogue.not_rebuilt(value)


class ThreadLocal(Kind):
    """`threading.local`: its attributes on the current thread are those of a dict, which is guarded whole."""

    def match(self, cls: type) -> bool:
        """Match the class itself. A subclass may initialize its instances on each thread."""
        return cls is threading.local

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard the class."""
        recorder.add(HasType(source, type(value)))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return no snapshot: assignments to attributes change the dict."""
        return []

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read all attributes on this thread."""
        recorder.value(source.variables, value.__dict__)


class Jitted(Kind):
    """A jitted callable that the program calls. The wrapped callable is part of the program."""

    def match(self, cls: type) -> bool:
        """Match the results of `thunder.jit`."""
        return hasattr(cls, "_thunder_model") or module_of(cls) == "thunder.frontend.jit"

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that the value is the same object."""
        if not root:
            recorder.add(IsAlive(source, weakref.ref(value)))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return no snapshot: programs do not assign to a jitted callable."""
        return []

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read the wrapped callable."""
        if isinstance(value, _MODULE):
            recorder.value(source.attr("_thunder_model"), model_of(value))
        else:
            recorder.value(source.variable("_fn"), value.__dict__["_fn"])


def read_whole(source: Source, obj: Any, recorder: Recorder) -> None:
    """Read all attributes of an object whose class cannot be watched."""
    names, observed = slot_names(type(obj)), recorder.observe(type(obj))
    for snapshot in recorder.reached[id(obj)].snapshots:
        if isinstance(snapshot, AttributesSnapshot):
            for name, value in snapshot.before.items():
                recorder.value(source.attr(name), value, holder=(obj, name))
                if observed:
                    recorder.code.sets.read_whole(source.attr(name), value)
        elif snapshot.source is not source and not _is_table(snapshot.source):
            recorder.add(HasKeys(snapshot.source, tuple(snapshot.before)))
            for i, (key, value) in enumerate(snapshot.before.items()):
                inner = item_source(snapshot.source, snapshot.target, key, i)
                recorder.value(inner, value, holder=(snapshot.target, key))
                if observed:
                    recorder.code.sets.read_whole(inner, value, snapshot.target)
            if isinstance(snapshot.source, Variables):
                _guard_empty_slots(source, obj, names, recorder)
    if variables(obj) is None:
        _guard_empty_slots(source, obj, names, recorder)
    recorder.classes.read_whole(type(obj), observed=observed)


def _is_table(source: Source) -> bool:
    """Check for one of the dicts in which a module stores its parameters, buffers and submodules."""
    return isinstance(source, Item) and source.key in TABLES


def _guard_empty_slots(source: Source, obj: Any, names: list[str], recorder: Recorder) -> None:
    for name in names:
        if slot(obj, name) is ABSENT:
            recorder.add(LacksAttribute(source, name))
