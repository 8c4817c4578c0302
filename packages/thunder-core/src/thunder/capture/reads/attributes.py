# SPDX-License-Identifier: Apache-2.0
"""The reader of attributes: it turns the attribute reads that class hooks report into guards of the recorder."""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.predicates import model_of
from thunder.capture.base.snapshots import TABLES, AttributesSnapshot, variables
from thunder.capture.base.sources import Item, Variables
from thunder.capture.reads.class_attributes import is_user_descriptor
from thunder.capture.reads.classes import ClassReads
from thunder.capture.reads.guard_kinds import HasKeys, LacksAttribute
from thunder.capture.reads.kinds.base import Reached, Recorder
from thunder.capture.reads.libraries import is_library, is_library_class
from thunder.capture.reads.output import Output
from thunder.capture.reads.unguardables import Unguardables

__all__ = ["AttributeReads"]

_MODULE = torch.nn.Module
# The methods below read a module's tables and hooks, which the hook of the module's class has already recorded.
_OF_MODULES = {f.__code__ for f in (_MODULE.__getattr__, _MODULE.__setattr__, _MODULE.__delattr__)}
_READ_BY_MODULES = frozenset({"__dict__", *TABLES})


# C methods of objects that read the whole `__dict__`.
_READ_WHOLE = frozenset({"__reduce_ex__", "__reduce__", "__getstate__"})


class AttributeReads:
    """The attributes that one run of a program reads. This is the reader that the hooks in `hooks.py` call."""

    def __init__(self, recorder: Recorder, classes: ClassReads, unguardables: Unguardables):
        self._recorder = recorder
        self._classes = classes
        self._unguardables = unguardables
        self.seen: dict[tuple[int, str], None] = {}  # the attributes read, by the ids of the objects
        self.plain: set[tuple[type, str]] = set()  # attributes without a user descriptor, by the class of the object
        self.raising, self.fetched = recorder.code.sets.raising, recorder.code.sets.fetched
        self.assigned = recorder.assigned
        self.assigned_elsewhere = recorder.assigned_elsewhere
        self.output: Output  # set by the recorder
        self._alive: list[Any] = []
        self._not_reached: dict[
            int, Any
        ] = {}  # objects whose attributes were read, but which no recorded read returned

    def unreachable(self, new: Callable[[], set[int]]) -> list[Any]:
        """Return the objects that come neither from a recorded read nor from the program itself."""
        if not self._not_reached:
            return []
        ids = new()
        return [x for key, x in self._not_reached.items() if key not in ids and key not in self._recorder.reached]

    def release(self) -> None:
        """Release references to the user's objects."""
        self.seen.clear()
        self.plain.clear()
        self._alive.clear()
        self._not_reached.clear()

    def report_again(self) -> None:
        """Make the hooks report attributes again that they have reported before."""
        self.seen.clear()
        self.plain.clear()

    def code_ran(self, code: types.CodeType, frame: types.FrameType) -> None:
        """Record a code object that runs for the first time."""
        self._recorder.code.code_ran(code, frame)

    def c_function_called(self, fn: Any, owner: Any, frame: types.FrameType) -> bool:
        """Record a call of a C function. Some of them read all attributes of an object, e.g. for `copy.copy`.

        Return True if later calls of the function, or of this method of the class, need not be recorded.
        """
        reads_whole = fn.__name__ in _READ_WHOLE
        if reads_whole and not isinstance(owner, type) and (id(owner), "__dict__") not in self.seen:
            self._read(owner, "__dict__")
        return self._recorder.code.c_function_called(fn, owner, frame) and not reads_whole

    def set_made(self, code: types.CodeType, kind: type, given: Any) -> None:
        """Record that code is about to make a set."""
        self._recorder.code.sets.made(code, kind, given)

    def order_of_set_read(self) -> None:
        """Record that the program may depend on the order of a set."""
        self._recorder.code.sets.matters = True

    def identified(self, obj: Any) -> Any:
        """Record a read of an object's `id`; return the object whose `id` the program reads in eager mode."""
        return self._recorder.identified(obj)

    def holds(self, obj: Any) -> bool:
        """Check whether a read has found `obj`, so that it may contain handles and symbols."""
        key = id(model_of(obj))
        return key in self._recorder.expected or key in self._recorder.reached

    def before_read(self, obj: Any, name: str, *, assigned: bool = False) -> None:
        """Record a descriptor before a read or an assignment of `obj.name` runs its code."""
        if self.holds(obj):
            self._recorder.go_on()
        model = model_of(obj)
        if model is not obj:
            obj = model
            if assigned:
                self.assigned.add((id(obj), name))
        if assigned and name == "__class__":
            self._recorder.deny(f"the program assigns the class of a {type(obj).__name__}")
        if issubclass(type(obj), enum.Enum):
            self._recorder.member_found(obj)
        raw = self._classes.lookup(type(obj), name)
        if raw is not ABSENT and is_user_descriptor(raw):
            self._classes.attribute_read(type(obj), name, raw)
        elif not issubclass(type(obj), enum.Enum):
            self.plain.add((type(obj), name))

    def value_read(self, x: Any, name: str) -> None:
        """Record the first read of an attribute of a class or a module, before it happens."""
        self.seen[(id(x), name)] = None
        self._alive.append(x)
        self._recorder.code.sets.names.add(name)
        if isinstance(x, types.ModuleType):
            self._recorder.code.modules.variable(x, name)
        else:
            self._classes.read_of_class(x, name)

    def function_read(self, fn: Any, name: str) -> None:
        """Record that the program reads or queries an attribute of a function or of a method by its name."""
        self._recorder.code.attributes.read(getattr(fn, "__func__", fn), name)

    def special_method_read(self, cls: type, name: str) -> None:
        """Record that the program depends on whether a class has a special method."""
        if not is_library_class(cls) and (id(cls), name) not in self.seen:
            self.seen[(id(cls), name)] = None
            self._alive.append(cls)
            self._classes.read_special_method(cls, name)

    def names_listed(self, x: Any) -> None:
        """Record that the program lists the names of an object's attributes: its own, and those of its classes."""
        x = model_of(x)
        if isinstance(x, types.ModuleType):
            self._recorder.code.modules.variable(x, "__dict__")
            return
        self._classes.names_listed(x if issubclass(type(x), type) else type(x))
        reached = self._recorder.reached.get(id(x))
        if reached is not None:
            before = _variables_before(reached)
            if before is not None:
                self._recorder.add(HasKeys(reached.source.variables, tuple(before)))
        elif not issubclass(type(x), type) and not self._unguardables.used(x):
            self._alive.append(x)
            self._not_reached[id(x)] = x

    def value_assigned(self, x: Any, name: str, value: Any) -> None:
        """Record that an attribute of a class or a module is about to be assigned or deleted."""
        if isinstance(x, types.ModuleType):
            self._recorder.code.modules.assigned(x, name, value)
        else:
            self.assigned.add((id(x), name))

    def read(self, obj: Any, name: str) -> bool:
        """Record a read of `obj.name`; return True if the value was replaced and has to be read again."""
        before = self._recorder.substituted
        self._read(obj, name)
        return self._recorder.substituted != before

    def _read(self, obj: Any, name: str) -> None:
        model = model_of(obj)
        if model is not obj:
            self.seen[(id(obj), name)] = None
            if name.startswith("_thunder_") or (id(model), name) in self.seen:
                return
            obj = model
        reached = self._recorder.reached.get(id(obj))
        cls = type(obj)
        raw = self._classes.lookup(cls, name)
        if name in _READ_BY_MODULES and sys._getframe(3).f_code in _OF_MODULES:
            return
        self.seen[(id(obj), name)] = None
        self._alive.append(obj)
        if reached is None:
            if name == "__class__" and is_library_class(cls) and is_library(sys._getframe(3).f_code.co_filename):
                return  # e.g. torch's decorated functions create a `no_grad` like the one in their closure
            if not self._unguardables.used(obj):
                self._not_reached[id(obj)] = obj
                if raw is not ABSENT:
                    self._classes.attribute_read(cls, name, raw)
            return
        source = reached.source
        if raw is not ABSENT and hasattr(type(raw), "__set__"):
            self._data_descriptor(reached, cls, name, raw)
            return
        now, before = variables(obj), _variables_before(reached)
        if before is not None and name in before:
            if raw is ABSENT:
                self._classes.found_in_instance(cls, name)
            if now.get(name, ABSENT) is before[name]:  # type: ignore[union-attr]
                self._recorder.value(source.variable(name), before[name], holder=(now, name))
        elif now is not None and name in now:
            return  # the program assigned it
        else:
            if now is not None:
                self._recorder.absent(source.variables, name)
            if raw is not ABSENT:
                self._classes.attribute_read(cls, name, raw)

    def _data_descriptor(self, reached: Reached, cls: type, name: str, raw: Any) -> None:
        source = reached.source
        if name == "__dict__":
            before = _variables_before(reached) or {}
            self._recorder.add(HasKeys(source.variables, tuple(before)))
            for key, value in before.items():
                if isinstance(key, str):
                    self._recorder.value(source.variable(key), value, holder=(variables(reached.thing), key))
        elif isinstance(raw, types.MemberDescriptorType):
            before = next((s.before for s in reached.snapshots if isinstance(s, AttributesSnapshot)), {})
            if name in before:
                self._recorder.value(source.attr(name), before[name], holder=(reached.thing, name))
        else:
            self._classes.attribute_read(cls, name, raw)

    def missing(self, obj: Any, name: str) -> Any:
        """Record that the lookup of `obj.name` failed; return the entry in a module's tables, or `ABSENT`."""
        obj = model_of(obj)
        cls = type(obj)
        found: Any = ABSENT
        table = ""
        if issubclass(type(obj), _MODULE):
            d = variables(obj) or {}
            for table in TABLES:
                if name in d.get(table, ()):
                    found = d[table][name]
                    break
        if (id(obj), name) not in self.seen:
            self.seen[(id(obj), name)] = None
            self._alive.append(obj)
            reached = self._recorder.reached.get(id(obj))
            if reached is None:
                if not self._unguardables.used(obj):
                    self._not_reached[id(obj)] = obj
            elif found is not ABSENT:
                before = _table_before(reached, table)
                if before.get(name, ABSENT) is found:
                    self._classes.found_in_instance(cls, name)
                    entries = variables(obj)[table]  # type: ignore[index]
                    self._recorder.value(reached.source.variable(table).item(name), found, holder=(entries, name))
                    found = entries[name]
            else:
                self._nowhere(reached, cls, name)
        # A class with its own __getattr__ computes missing attributes itself.
        return found if getattr(cls, "__getattr__", None) is _MODULE.__getattr__ else ABSENT

    def _nowhere(self, reached: Reached, cls: type, name: str) -> None:
        """Guard that an object has no attribute `name`."""
        whole = reached.source.variables
        raw = self._classes.lookup(cls, name)
        for snapshot in reached.snapshots:
            if isinstance(snapshot, AttributesSnapshot):
                if isinstance(raw, types.MemberDescriptorType) and name not in snapshot.before:
                    self._recorder.add(LacksAttribute(reached.source, name))
            elif name not in snapshot.before and (snapshot.source is whole or snapshot.source.parent is whole):
                self._recorder.absent(snapshot.source, name)
        if raw is ABSENT and hasattr(type(cls), name):  # the class has it from its metaclass, e.g. `__name__`
            self._classes.guard_absence(cls, name)
        elif raw is ABSENT:
            self._recorder.add(LacksAttribute(self._classes.know(cls), name))


def _variables_before(reached: Reached) -> dict[str, Any] | None:
    """Return an object's `__dict__` before the run, or None if the object has none."""
    for snapshot in reached.snapshots:
        if isinstance(snapshot.source, Variables) and snapshot.source is not reached.source:
            return snapshot.before  # type: ignore[no-any-return]
    return None


def _table_before(reached: Reached, table: str) -> dict[str, Any]:
    """Return the entries that a module's table had before the run."""
    for snapshot in reached.snapshots:
        if isinstance(snapshot.source, Item) and snapshot.source.key == table and snapshot.source is not reached.source:
            return snapshot.before  # type: ignore[no-any-return]
    return {}
