# SPDX-License-Identifier: Apache-2.0
"""Recorder of the classes that a program reads: attributes (looked up along the MRO), methods, properties and bases."""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Iterable
from types import CodeType
from typing import Any

import torch

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.snapshots import AttributesSnapshot
from thunder.capture.base.sources import Root, Source
from thunder.capture.reads import bytecode
from thunder.capture.reads.class_attributes import (
    codes_of,
    functions_in,
    holds_code,
    is_library_descriptor,
    is_of_the_interpreter,
    plain_class_attributes,
)
from thunder.capture.reads.guard_kinds import HasAttributes, HasKeys, HasType, IsObject, LacksKeys
from thunder.capture.reads.kinds.base import Reached, Recorder
from thunder.capture.reads.kinds.containers import has_plain_lookup
from thunder.capture.reads.libraries import is_library_class
from thunder.capture.reads.memoized_functions import MEMOIZED, memoized_stand_in
from thunder.capture.reads.value_hooks import is_watched, unwatched_class
from thunder.runtime.guards import class_attributes

__all__ = ["UNSHADOWED", "ClassReads"]

_MODULE = torch.nn.Module
# Names that are assumed not to be overridden on an instance.
UNSHADOWED = frozenset({"__class__", "_call_impl", "_slow_forward", "__setattr__", "__getattribute__"})
# Special methods without which the interpreter does something else. It looks them up unseen.
_SPECIAL = frozenset({"__bool__", "__len__", "__eq__", "__iter__", "__contains__", "__getattr__"})
# Attributes of classes that the guard on `__mro__` covers, or that C functions compute.
_GUARDED_BY_MRO = frozenset({"__mro__", "__bases__", "__base__", "__class__", "mro", "__subclasses__", "__flags__"})
_NAMES = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})
_OF_CLASSES = _NAMES | {"__dict__"}
# The tables of an enumeration, which no longer change after its definition, except for combinations of flags.
_OF_ENUMS = frozenset({"_member_map_", "_member_names_", "_value2member_map_", "_member_type_", "_value_repr_",
                       "_unhashable_values_", "_hashable_values_", "_flag_mask_", "_all_bits_", "_boundary_",
                       "_inverted_", "_singles_mask_", "_use_args_", "_new_member_"})  # fmt: skip
# Functions that accept the name of an attribute.
_ASKING = frozenset({"getattr", "hasattr", "attrgetter", "methodcaller"})
_OF_ALL_MODULES = Root(torch.nn.modules.module, "torch.nn.modules.module")
_GLOBAL_HOOKS = [
    name
    for name, value in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and isinstance(value, dict)
]


class ClassReads:
    """The classes that one run of a program reads."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._sources: dict[type, Root] = {}
        self._methods: dict[int, list[tuple[type, str]]] = {}  # classes and names of methods, by the ids of their code
        self._lookups: dict[tuple[type, str], Any] = {}
        self._values: set[type] = set()  # classes that variables of the program may contain
        self._read_whole: set[type] = set()
        self._instances: dict[type, None] = {}  # classes of which an instance was found
        self._own_names: dict[type, set[str]] = {}  # names found in instances but not in the class

    # -- classes and lookups ------------------------------------------------------------------------------------------
    def know(self, cls: type) -> Root:
        """Return the source of a class. The first call for a class also guards its bases."""
        source = self._sources.get(cls)
        if source is None:
            recorder = self._recorder
            source = self._sources[cls] = Root(cls, cls.__name__)
            if not is_library_class(cls):
                recorder.add(IsObject(source.attr("__mro__"), cls.__mro__))
                for c in cls.__mro__:
                    if not is_library_class(c):
                        self._index(c)
                if not is_library_class(unwatched_class(cls)):
                    self.know(unwatched_class(cls))  # its methods run when the class is called
            if issubclass(cls, _MODULE):
                for name in _GLOBAL_HOOKS:
                    recorder.value(_OF_ALL_MODULES.attr(name), getattr(torch.nn.modules.module, name))
                self.attribute_read(cls, "__call__", self.lookup(cls, "__call__"))
        return source

    def _index(self, cls: type) -> None:
        """Register a class, and index its methods by their code."""
        recorder = self._recorder
        if id(cls) in recorder.reached:
            return
        source = self._sources.setdefault(cls, Root(cls, cls.__name__))
        recorder.register(source, cls, [AttributesSnapshot(source, cls, dict(cls.__dict__))])
        recorder.watch_value(cls)
        for name, raw in list(cls.__dict__.items()):
            for fn in functions_in(raw):
                for code in codes_of(fn):
                    self._methods.setdefault(id(code), []).append((cls, name))

    def has_lookup_with(self, code: CodeType) -> bool:
        """Check whether code is of a class with its own `__getattribute__`, whose instances are guarded as a whole."""
        owners = [cls for cls, _ in self._methods.get(id(code), ())]
        classes = {c for owner in owners for c in owner.__mro__ if not is_library_class(c)}
        return any("__getattribute__" in self._attributes_before(c) for c in classes)

    def instance_found(self, cls: type) -> None:
        """Record that a read found an instance. Its class must not gain special methods that it lacks."""
        self.know(cls)
        self._instances[cls] = None

    def is_value(self, cls: type) -> None:
        """Record that a variable of the program may contain a class, and watch reads of the class's attributes."""
        if not is_library_class(cls):
            self.know(cls)
            self._values.add(cls)
            self._recorder.watch(cls)

    def makes_instances(self, cls: type) -> None:
        """Record that the program may make instances of a class, and watch reads of their attributes."""
        if not is_library_class(cls):
            self._recorder.watch(cls)

    def lookup(self, cls: type, name: str) -> Any:
        """Return an attribute from the `__dict__` of the first class in the MRO that has it, or `ABSENT`."""
        key = (cls, name)
        found = self._lookups.get(key)
        if found is None:
            found = next((c.__dict__[name] for c in cls.__mro__ if name in c.__dict__), ABSENT)
            self._lookups[key] = found
        return found

    def found_in_instance(self, cls: type, name: str) -> None:
        """Record that an instance has an attribute that its class does not have."""
        self._own_names.setdefault(cls, set()).add(name)

    # -- attributes ---------------------------------------------------------------------------------------------------
    def attribute_read(self, cls: type, name: str, raw: Any) -> None:
        """Guard an attribute of a class; `raw` is its value in the `__dict__` of the first class that has it."""
        if is_of_the_interpreter(raw) or hasattr(raw, "_thunder_hook"):
            return
        owner = next((c for c in cls.__mro__ if name in c.__dict__), None)
        if owner is None or (name in UNSHADOWED and is_library_class(owner)):
            return
        if isinstance(raw, types.DynamicClassAttribute) and is_library_class(owner):
            return  # e.g. `name` and `value` of enumerations
        if self._recorder.substitutions.replaces(owner, name):
            return
        before = self._recorder.reached.get(id(owner))
        if before is not None and before.snapshots and before.snapshots[0].before.get(name, ABSENT) is not raw:
            return  # the program assigned it
        source = self._source_of(cls, owner, name, raw)
        if not self._recorder.is_guarded(source):
            self._guard(source, owner, name, raw)

    def _source_of(self, cls: type, owner: type, name: str, raw: Any) -> Source:
        """Return the source of a class's attribute: through the class, unless a metaclass changes the lookup."""
        source = self.know(cls)
        if has_plain_lookup(cls):
            found: Source = source.attr(name)
            return found.attr("__func__") if isinstance(raw, classmethod) else found
        found = self.know(owner).variable(name)
        return found.attr("__func__") if isinstance(raw, (staticmethod, classmethod)) else found

    def _guard(self, source: Source, owner: type, name: str, raw: Any) -> None:
        recorder = self._recorder
        if isinstance(raw, staticmethod) and type(raw.__func__) is MEMOIZED:
            recorder.value(source, raw.__func__)
            recorder.substitute((owner, name), raw, staticmethod(memoized_stand_in(recorder, source, raw.__func__)))
            return
        if isinstance(raw, (staticmethod, classmethod)):
            raw = raw.__func__
        if isinstance(raw, property):
            recorder.guarded(source)
            recorder.add(HasType(source, type(raw)))
            for accessor in ("fget", "fset"):
                if getattr(raw, accessor) is not None:
                    recorder.value(source.attr(accessor), getattr(raw, accessor))
        elif isinstance(raw, types.DynamicClassAttribute):
            source = self.know(owner).variable(name)
            recorder.guarded(source)
            recorder.add(HasType(source, type(raw)))
            for accessor in ("fget", "fset"):
                if getattr(raw, accessor) is not None:
                    recorder.value(source.attr(accessor), getattr(raw, accessor))
        elif isinstance(raw, functools.cached_property):
            recorder.guarded(source)
            recorder.add(HasType(source, type(raw)))
            recorder.value(source.attr("func"), raw.func)
        elif isinstance(raw, types.FunctionType) or not hasattr(type(raw), "__get__"):
            recorder.value(source, raw)
        elif is_library_descriptor(raw):
            source = self.know(owner).variable(name)
            recorder.value(source, raw, holder=(owner, name))
            for attribute, fn in vars(raw).items():
                if isinstance(fn, types.FunctionType):
                    recorder.value(source.attr(attribute), fn)
        else:
            recorder.value(self.know(owner).variable(name), raw, holder=(owner, name))

    def read_of_class(self, cls: type, name: str) -> None:
        """Guard an attribute that the program reads from a class itself, e.g. `C.k`."""
        if name in _GUARDED_BY_MRO:
            return
        source, meta = self.know(cls), unwatched_class(cls)
        if name in _NAMES:
            found = type.__getattribute__(cls, name)
            if isinstance(found, (str, type(None))):
                self._recorder.value(source.attr(name), found)
            return
        if name == "__dict__":
            self._read_dict(cls)
            return
        of_meta, raw = self.lookup(meta, name), self.lookup(cls, name)
        if raw is ABSENT or (of_meta is not ABSENT and hasattr(type(of_meta), "__set__")):
            self.guard_absence(cls, name)
            if of_meta is not ABSENT:
                self.attribute_read(meta, name, of_meta)
            elif (computes := self.lookup(meta, "__getattr__")) is not ABSENT:
                self.attribute_read(meta, "__getattr__", computes)
        elif not (issubclass(meta, enum.EnumMeta) and name in _OF_ENUMS):
            if is_of_the_interpreter(raw):
                self.guard_absence(cls, name)
            self.attribute_read(cls, name, raw)

    def read_special_method(self, cls: type, name: str) -> None:
        """Guard a special method of a class, or that the class has none."""
        self.know(cls)
        raw = self.lookup(cls, name)
        if raw is ABSENT or is_of_the_interpreter(raw):
            self.guard_absence(cls, name)
        else:
            self.attribute_read(cls, name, raw)

    def guard_absence(self, cls: type, name: str) -> None:
        """Guard that a class has no attribute `name` that it did not have before, nor have its bases."""
        for owner in cls.__mro__:
            if not is_library_class(owner):
                self.know(owner)
                if name in self._attributes_before(owner):
                    return
                self._recorder.absent(self.know(owner).variables, name)

    def _read_dict(self, cls: type) -> None:
        """Guard all attributes of a class, without those of its bases."""
        if cls not in self._read_whole:
            self._read_whole.add(cls)
            before = self._attributes_before(cls)
            self._recorder.add(HasAttributes(self.know(cls), class_attributes(before)))
            for name, value in before.items():
                if (not name.startswith("__") or name == "__match_args__") and not hasattr(type(value), "__get__"):
                    self._recorder.value(self.know(cls).variable(name), value)

    def names_listed(self, cls: type) -> None:
        """Guard the names of all attributes of a class and its bases."""
        for owner in cls.__mro__:
            if not is_library_class(owner):
                self._recorder.add(HasKeys(self.know(owner).variables, tuple(self._attributes_before(owner))))

    def read_whole(self, cls: type, *, observed: bool) -> None:
        """Guard all attributes of an unwatched object's classes: methods, properties and data."""
        for name in plain_class_attributes(cls):
            value = getattr(cls, name)
            self.attribute_read(cls, name, value)
            if observed and has_plain_lookup(cls):
                self._recorder.code.sets.read_whole(self.know(cls).attr(name), value, name=name)
        for owner in cls.__mro__:
            of_torch = not issubclass(owner, _MODULE) or owner is _MODULE
            if owner not in self._read_whole and not (of_torch and is_library_class(owner)):
                self._read_whole.add(owner)
                self._recorder.add(HasAttributes(self.know(owner), class_attributes(self._attributes_before(owner))))

    def _attributes_before(self, cls: type) -> Any:
        """Return the attributes that a class had before the run."""
        reached: Reached | None = self._recorder.reached.get(id(cls))
        before = reached.snapshots[0].before if reached is not None and reached.snapshots else cls.__dict__
        return self._recorder.substitutions.originals(cls, before)

    # -- code ---------------------------------------------------------------------------------------------------------
    def has_method(self, code: CodeType) -> bool:
        """Check whether code belongs to a method of a known class."""
        return id(code) in self._methods

    def method_ran(self, code: CodeType) -> None:
        """Guard a method that ran without a recorded read, in each class that has it, decorated or not."""
        for cls, name in self._methods.get(id(code), ()):
            self.attribute_read(cls, name, cls.__dict__.get(name))

    def find_in_tables(self, code: CodeType) -> None:
        """Guard lists and dicts of classes that contain a function with this code (e.g. validators of fields)."""
        for cls in list(self._sources):
            for name, raw in list(cls.__dict__.items()):
                if not is_library_class(cls) and holds_code(raw, code):
                    self.attribute_read(cls, name, raw)

    # -- at the end of the run ----------------------------------------------------------------------------------------
    def guard_names_read_of_classes(self, ran: list[CodeType], more: Iterable[str], *, any_name: bool) -> None:
        """Guard attributes that code reads from classes (`type(self).K`, `cls.K`, `Config.K`), which no hook sees.

        `more` are names that no code contains. With `any_name`, code may also read attributes whose names it computes.
        """
        names: set[str] = set()  # names read by code that may access the class of an object
        every: set[str] = set()
        asked = names_asked_for(ran)
        names.update(more)
        every.update(more)
        for code in ran:
            uses = {*bytecode.attribute_names(code)}
            if not any(issubclass(cls, type) for cls, _ in self._methods.get(id(code), ())):
                uses = (uses - _OF_CLASSES) | bytecode.attributes_not_of_self(code)
            loads = {chain[0] for chain in bytecode.global_loads(code)}
            if not _ASKING.isdisjoint((*loads, *code.co_names)):
                uses |= asked
            every |= uses
            if "type" in loads or "__class__" in uses or "super" in loads or "cls" in code.co_varnames[:1]:
                names |= uses
        names |= every & {"__match_args__"}  # the classes of patterns
        for cls in [c for c in self._sources if not is_watched(c)]:
            owners = [c for c in cls.__mro__ if not is_library_class(c)]
            read = every if cls in self._values else names
            for name in sorted(_OF_CLASSES.intersection(read)):
                self.read_of_class(cls, name)
            found = {n for c in owners for d in (self._attributes_before(c), c.__dict__) for n in d}
            data = {n for n in found if n in read or (any_name and cls in self._values and not n.startswith("__"))}
            for name in sorted(data):
                self._guard_name(cls, owners, name)
            if cls in self._values:
                for owner in owners:
                    absent = frozenset(asked.difference(self._attributes_before(owner)))
                    if absent:
                        self._recorder.add(LacksKeys(self.know(owner).variables, absent))

    def _guard_name(self, cls: type, owners: list[type], name: str) -> None:
        """Guard the original value of a class's attribute that code reads by name."""
        for owner in owners:
            before = self._attributes_before(owner)
            if name not in before:
                if name in owner.__dict__:  # the program created it, and may have queried it before
                    self._recorder.absent(self.know(owner).variables, name)
                continue
            value = before[name]
            if (not name.startswith("__") or name == "__match_args__") and not hasattr(type(value), "__get__"):
                if owner.__dict__.get(name, ABSENT) is value:
                    self.attribute_read(cls, name, self.lookup(cls, name))
                else:
                    self._recorder.value(self.know(owner).variable(name), value)
            return

    def guard_instance_names(self) -> None:
        """Guard that no class gains an attribute with a name found in an instance, or a special method."""
        names: dict[type, set[str]] = {}
        for cls in {**self._own_names, **dict.fromkeys(self._instances)}:
            own = self._own_names.get(cls, set()) | (_SPECIAL if cls in self._instances else set())
            for c in cls.__mro__:
                if not is_library_class(c):
                    self.know(c)
                    before = self._attributes_before(c)
                    names.setdefault(c, set()).update(n for n in own if n not in c.__dict__ and n not in before)
        for c, absent in names.items():
            if absent:
                self._recorder.add(LacksKeys(self.know(c).variables, frozenset(absent)))


def names_asked_for(ran: list[CodeType]) -> set[str]:
    """Return the attribute names that code passes to `hasattr` or `getattr`; the attributes may be missing."""
    return {
        name
        for code in ran
        if not _ASKING.isdisjoint((*(chain[0] for chain in bytecode.global_loads(code)), *code.co_names))
        for name in code.co_consts
        if isinstance(name, str) and name.isidentifier()
    }
