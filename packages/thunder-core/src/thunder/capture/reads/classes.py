# SPDX-License-Identifier: Apache-2.0
"""Classes that a program reads: attributes along the order of bases, methods, properties, and the bases themselves."""

from __future__ import annotations

import types
from typing import Any

import torch

from thunder.capture.base.snapshots import AttributesSnapshot
from thunder.capture.base.sources import Place
from thunder.capture.reads import bytecode, classify
from thunder.capture.reads.classify import is_library_class
from thunder.capture.reads.hooks import ABSENT
from thunder.capture.reads.memoized_functions import remembering
from thunder.capture.reads.values import UNSHADOWED, Values

__all__ = ["Classes"]

_MODULE = torch.nn.Module
_ASKING = frozenset({"getattr", "hasattr"})
_OF_ALL_MODULES = Place(torch.nn.modules.module, "torch.nn.modules.module")
_GLOBAL_HOOKS = [
    name
    for name, value in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and isinstance(value, dict)
]


class Classes(Values):
    """The reads of classes."""

    def _know_class(self, cls: type) -> Place:
        place = self._classes.get(cls)
        if place is None:
            place = self._classes[cls] = Place(cls, cls.__name__)
            if not is_library_class(cls):
                self._check("is", place.attribute("__mro__"), cls.__mro__)
                for c in cls.__mro__:
                    if not is_library_class(c):
                        self._index(c)
            if issubclass(cls, _MODULE):
                for name in _GLOBAL_HOOKS:
                    self.value(_OF_ALL_MODULES.attribute(name), getattr(torch.nn.modules.module, name))
                self._class_read(cls, "__call__", self._lookup(cls, "__call__"))
        return place

    def _index(self, cls: type) -> None:
        if id(cls) in self.reached:
            return
        place = self._classes.get(cls) or Place(cls, cls.__name__)
        self._classes.setdefault(cls, place)
        self._reach(place, cls, [AttributesSnapshot(place, cls, dict(cls.__dict__))])
        for name, raw in list(cls.__dict__.items()):
            for fn in classify.functions_in(raw):
                for code in classify.codes_of(fn):
                    self._methods.setdefault(id(code), []).append((cls, name))
                if not self._watch.available and name.startswith("__"):
                    self._class_read(cls, name, raw)

    def _lookup(self, cls: type, name: str) -> Any:
        key = (cls, name)
        found = self._lookups.get(key)
        if found is None:
            found = next((c.__dict__[name] for c in cls.__mro__ if name in c.__dict__), ABSENT)
            self._lookups[key] = found
        return found

    def _class_read(self, cls: type, name: str, raw: Any) -> None:
        """A class's attribute was read, as it stands in the `__dict__` of the first class that has it."""
        if classify.is_of_the_interpreter(raw) or hasattr(raw, "_thunder_hook"):
            return
        owner = next((c for c in cls.__mro__ if name in c.__dict__), None)
        if owner is None or (name in UNSHADOWED and is_library_class(owner)):
            return
        if owner is torch.autograd.Function and name == "apply":
            return  # another one while a program is traced
        before = self.reached.get(id(owner))
        if before is not None and before.snapshots and before.snapshots[0].before.get(name, ABSENT) is not raw:
            return  # the program assigned it
        place = self._know_class(cls)
        if classify.has_plain_lookup(cls):
            place = place.to(f"{{}}.{name}" if name.isidentifier() else f"getattr({{}}, {name!r})", name)
        else:
            place = self._know_class(owner).to("{}.__dict__").item(name)
            if isinstance(raw, (staticmethod, classmethod)):
                place = place.to("{}.__func__")
        if place in self._guarded:
            return
        if isinstance(raw, staticmethod) and classify.is_remembering(raw.__func__):
            self.value(place, raw.__func__)
            self.plants.plant(owner, name, raw, staticmethod(remembering(self, place, raw.__func__)))
            return
        if isinstance(raw, staticmethod):
            raw = raw.__func__
        elif isinstance(raw, classmethod):
            raw, place = raw.__func__, place.to("{}.__func__") if classify.has_plain_lookup(cls) else place
        if isinstance(raw, property):
            self._guarded.add(place)
            self._check("type", place, type(raw))
            for accessor in ("fget", "fset"):
                if getattr(raw, accessor) is not None:
                    self.value(place.attribute(accessor), getattr(raw, accessor))
        elif classify.is_cached_property(raw):
            self._guarded.add(place)
            self._check("type", place, type(raw))
            self.value(place.attribute("func"), raw.func)
        else:
            if isinstance(raw, types.FunctionType) or not hasattr(type(raw), "__get__"):
                self.value(place, raw)
            else:
                self.value(self._know_class(owner).to("{}.__dict__").item(name), raw, holder=(owner, name))

    def _class_level_names(self) -> None:
        """Attributes that code reads of classes themselves (`type(self).K`, `cls.K`, `Config.K`): no hook sees it."""
        names: set[str] = set()  # of code that may have the class of an object
        every: set[str] = set()
        asked = self._asked()
        for code in self._ran.values():
            uses = {*bytecode.attribute_names(code)}
            loads = {chain[0] for chain in bytecode.global_loads(code)}
            if not loads.isdisjoint(_ASKING):
                uses |= asked
            every |= uses
            if "type" in loads or "__class__" in uses or "super" in loads or "cls" in code.co_varnames[:1]:
                names |= uses
        for cls in list(self._classes):
            owners = [c for c in cls.__mro__ if not is_library_class(c)]
            read = every if cls in self._class_values else names
            data = {n for c in owners for d in (self._attributes_before(c), c.__dict__) for n in d if n in read}
            for name in sorted(data):
                self._class_name(cls, owners, name)
            if cls in self._class_values:
                for owner in owners:
                    absent = frozenset(asked.difference(self._attributes_before(owner)))
                    if absent:
                        self._check("disjoint", self._know_class(owner).to("{}.__dict__"), absent)

    def _asked(self) -> set[str]:
        """The names that code asks for with `hasattr` and the like, which may find nothing."""
        return {
            name
            for code in self._ran.values()
            if not _ASKING.isdisjoint(chain[0] for chain in bytecode.global_loads(code))
            for name in code.co_consts
            if isinstance(name, str) and name.isidentifier()
        }

    def _not_on_tensors(self) -> None:
        """Names that code asks for which no object has been asked for: it may have been a tensor."""
        seen = {name for _, name in self.seen}
        names = frozenset(n for n in self._asked() if n not in seen and not hasattr(torch.Tensor, n))
        for place, tensor in self.tensors_read if names else ():
            absent = names.difference(tensor.__dict__)
            if absent:
                self._check("disjoint", place.to("{}.__dict__"), absent)

    def _class_name(self, cls: type, owners: list[type], name: str) -> None:
        """An attribute of a class, as it was, that code reads by that name."""
        for owner in owners:
            before = self._attributes_before(owner)
            if name not in before:
                if name in owner.__dict__:  # the program has made it, and may have asked for it first
                    self._absence(self._know_class(owner).to("{}.__dict__"), name)
                continue
            value = before[name]
            if not name.startswith("__") and not hasattr(type(value), "__get__"):
                if owner.__dict__.get(name, ABSENT) is value:
                    self._class_read(cls, name, self._lookup(cls, name))
                else:
                    self.value(self._know_class(owner).to("{}.__dict__").item(name), value)
            return

    def _attributes_before(self, cls: type) -> Any:
        reached = self.reached.get(id(cls))
        return reached.snapshots[0].before if reached is not None and reached.snapshots else cls.__dict__

    def _class(self, place: Place, cls: type, root: bool) -> None:
        self._check("is", place, cls)
        if not is_library_class(cls):
            self._know_class(cls)
            self._class_values.add(cls)
            self._hooks.watch(cls)

    def _not_on_classes(self) -> None:
        """What was found in an instance comes from there as long as its class has no property of that name."""
        names: dict[type, set[str]] = {}
        for cls, own in self._own_names.items():
            for c in cls.__mro__:
                if not is_library_class(c):
                    names.setdefault(c, set()).update(n for n in own if n not in c.__dict__)
        for c, absent in names.items():
            if absent:
                self._check("disjoint", self._know_class(c).to("{}.__dict__"), frozenset(absent))
