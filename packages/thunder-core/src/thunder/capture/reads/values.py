# SPDX-License-Identifier: Apache-2.0
"""Values that a program reads: how each kind is guarded, and what is registered because it can be read through it.

What a read reaches has a place, and a snapshot of how it was, which is older than anything the program did to it.
"""

from __future__ import annotations

import contextvars
import types
import weakref
from collections import deque
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from thunder.capture.base.snapshots import (
    TABLES,
    AttributesSnapshot,
    GlobalsSnapshot,
    Snapshot,
    VariableSnapshot,
    class_attributes,
    container_snapshot,
    slot,
    slot_names,
    snapshots_of,
    variables,
)
from thunder.capture.base.sources import Place
from thunder.capture.numbers.substitutions import Plants
from thunder.capture.numbers.symbolic import Inputs
from thunder.capture.reads import classify
from thunder.capture.reads.bytecode import is_library
from thunder.capture.reads.hooks import ABSENT, ClassHooks, CodeWatch, NewObjects
from thunder.capture.reads.memoized_functions import remembering
from thunder.core.symint.numbers import SymbolicNumber

__all__ = ["Check", "Reached", "Values"]

# Containers with more items than this are not read item by item; those of plain values only, up to the second number.
MAX_ITEMS, MAX_PLAIN = 1024, 4096

_MODULE = torch.nn.Module
# Names that nobody gives to an instance to change what a class does.
UNSHADOWED = frozenset({"__class__", "_call_impl", "_slow_forward", "__setattr__", "__getattribute__"})


class Check(NamedTuple):
    """What has to hold of what is found at a place: `guards.py` says how each kind is written."""

    kind: str
    place: Place
    value: Any = None


class Reached(NamedTuple):
    """Something that a read led to."""

    place: Place
    thing: Any
    snapshots: list[Snapshot]


class Values:
    """The checks of one run, and what it reached."""

    if TYPE_CHECKING:  # of the classes that are built on this one

        def _function(self, place: Place, fn: Any, root: bool = False) -> None: ...
        def _class_read(self, cls: type, name: str, raw: Any) -> None: ...
        def _know_class(self, cls: type) -> Place: ...

    def __init__(self) -> None:
        self.seen: dict[tuple[int, str], None] = {}
        self.assigned: set[tuple[int, str]] = set()
        self.checks: list[Check] = []
        self.tensors: dict[int, list[Place]] = {}
        self.tensors_read: list[tuple[Place, torch.Tensor]] = []
        self.unguardable: list[str] = []
        self.plants = Plants()
        self.symbolic: Inputs | None = None  # where numbers of inputs are symbolic
        self.reached: dict[int, Reached] = {}
        self._guarded: set[Place] = set()
        self._absent: set[tuple[Place, str]] = set()
        self._alive: list[Any] = []
        self._unknown: dict[int, Any] = {}
        reader: Any = self  # `ReadRecorder`, which is built on this class
        self._hooks = ClassHooks(reader)
        self._watch = CodeWatch(reader)
        self._youth = NewObjects()
        self._functions: dict[int, list[tuple[Place, Any]]] = {}
        self._ran: dict[int, CodeType] = {}
        self.identity_matters: bool | None = None  # whether code ran that tells one object from another; None: unasked
        self._strangers: dict[int, tuple[CodeType, dict[str, Any]]] = {}
        self._nested: set[int] = set()
        self._classes: dict[type, Place] = {}
        self._methods: dict[int, list[tuple[type, str]]] = {}
        self.context = contextvars.copy_context()  # what the program runs in
        self._whole_classes: set[type] = set()
        self._class_values: set[type] = set()  # those that the program may have in variables
        self._own_names: dict[type, set[str]] = {}
        self._lookups: dict[tuple[type, str], Any] = {}
        self._globals: dict[int, GlobalsSnapshot] = {}
        self._cells: set[int] = set()
        self._generators: dict[int, tuple[torch.Generator, torch.Tensor]] = {}  # and their states before the run

    def _refuse(self, reason: str) -> None:
        if reason not in self.unguardable:
            self.unguardable.append(reason)

    def _check(self, kind: str, place: Place, value: Any = None) -> None:
        self.checks.append(Check(kind, place, value))

    def _absence(self, place: Place, name: str) -> None:
        if name not in UNSHADOWED and (place, name) not in self._absent:
            self._absent.add((place, name))
            self._check("absent", place, name)

    def value(self, place: Place, value: Any, *, root: bool = False, holder: tuple[Any, Any] | None = None) -> None:
        """Guards what was found at a place before the program ran, and registers what can be read through it.

        `holder` is what holds it, and by which name or position: a number that is symbolic is replaced there.
        """
        if place in self._guarded or value is ABSENT:
            return
        if isinstance(value, SymbolicNumber):
            if self.symbolic is None or not self.symbolic.owns(value):
                self._refuse(f"{place} is a number that another program left there while it was traced")
            return
        self._guarded.add(place)
        kind = classify.kind_of(value)
        if kind == "plain":
            if holder is not None and self.symbolic is not None and self.symbolic.dynamic.takes(place, value):
                self.symbolic.plant(*holder, value, self.number(place, value))
            else:
                self._check("value", place, value)
        elif kind == "identity":
            self._check("is", place, value)
            if type(value) is torch.Generator:
                self._generators.setdefault(id(value), (value, value.get_state()))
        elif kind == "tensor":
            self._tensor(place, value)
        elif id(value) in self.reached:
            known = self.reached[id(value)].place
            if known is not place:
                self._check("same", place, known)
        else:
            getattr(self, f"_{kind}")(place, value, root)
            if kind == "wrapper" and holder is not None:
                self.plants.plant(*holder, value, remembering(self, place, value))

    def number(self, place: Place, value: Any) -> Any:
        """The symbol of a number that is an input. Its type is guarded."""
        assert self.symbolic is not None
        self._guarded.add(place)
        self._check("type", place, type(value))
        return self.symbolic.number(place, value)

    def _reach(self, place: Place, thing: Any, snapshots: list[Snapshot]) -> Reached:
        self.plants.overlook(snapshots)
        found = self.reached[id(thing)] = Reached(place, thing, snapshots)
        return found

    def _tensor(self, place: Place, tensor: torch.Tensor) -> None:
        if classify.is_handle(tensor):
            return
        known = self.tensors.setdefault(id(tensor), [])
        known.append(place)
        if len(known) == 1:
            self.tensors_read.append((place, tensor))
            own = tensor.__dict__
            if id(own) not in self.reached:
                whole = place.to("{}.__dict__")
                if own:
                    self.value(whole, own)
                else:  # the program may give it attributes
                    self._reach(whole, own, [container_snapshot(whole, own)])
        else:
            self._check("same", place, known[0])

    def _weakly(self, place: Place, thing: Any) -> None:
        self._check("weak", place, weakref.ref(thing))

    def _method(self, place: Place, method: types.MethodType, root: bool) -> None:
        if not root:
            self._check("type", place, types.MethodType)
        self.value(place.to("{}.__self__"), method.__self__, root=root)
        self.value(place.to("{}.__func__"), method.__func__, root=root)

    def _partial(self, place: Place, partial: Any, root: bool) -> None:
        self._reach(place, partial, [])
        if not root:
            self._check("type", place, type(partial))
        self.value(place.attribute("func"), partial.func)
        self.value(place.attribute("args"), partial.args)
        self.value(place.attribute("keywords"), partial.keywords)

    def _wrapper(self, place: Place, wrapper: Any, root: bool) -> None:
        self._reach(place, wrapper, [])
        if not root:
            self._weakly(place, wrapper)
        self.value(place.attribute("__wrapped__"), wrapper.__wrapped__)

    def _reference(self, place: Place, reference: Any, root: bool) -> None:
        """A weak reference: what it refers to."""
        self._check("type", place, type(reference))
        found = reference()
        if found is None:
            self._check("is", place.to("{}()"), None)
        else:
            self.value(place.to("{}()"), found)

    def _opaque(self, place: Place, value: Any, root: bool) -> None:
        self._alive.append(value)
        self._refuse(f"{place} is a {type(value).__name__}, whose contents no guard watches")

    def _library(self, place: Place, value: Any, root: bool) -> None:
        try:
            self._weakly(place, value)
        except TypeError:
            self._opaque(place, value, root)
            return
        own = variables(value) or {}
        for name, item in own.items():
            if isinstance(item, types.FunctionType) and not is_library(item.__code__.co_filename):
                self.value(place.variable(name), item)

    def _jitted(self, place: Place, value: Any, root: bool) -> None:
        """A jitted callable that the program calls: what it wraps is a part of the program."""
        self._reach(place, value, [])
        if not root:
            self._weakly(place, value)
        name = "_model" if isinstance(value, _MODULE) else "_fn"
        self.value(place.variable(name), value.__dict__[name])

    def _variable(self, place: Place, variable: Any, root: bool) -> None:
        """A context variable: its value is what was set when it was reached."""
        self._check("is", place, variable)
        found = variable.get(ABSENT)
        inner = place.to("{}.get(None)")
        self._reach(place, variable, [VariableSnapshot(place, variable, found, self.context)])
        if found is ABSENT:
            self._check("value", inner, None)
        elif classify.kind_of(found) == "plain":
            self.value(inner, found)
        else:
            self._refuse(f"the context variable {variable.name} holds a {type(found).__name__}, which no guard watches")

    def _container(self, place: Place, x: Any, root: bool) -> None:
        self._reach(place, x, [container_snapshot(place, x)])
        if not (isinstance(x, dict) and not x and place.step.startswith(("{}['_", "{}._global_"))):
            self._check("type", place, type(x))
        self._contents(place, x)

    def _contents(self, place: Place, x: Any) -> None:
        items = classify.items_of(x)
        pairs = isinstance(x, dict)
        plain = classify.all_plain(items, pairs)
        if not items:
            self._check("empty", place)
        elif len(items) > (MAX_PLAIN if plain else MAX_ITEMS):
            self._refuse(f"{place} has {len(items)} items, of which a guard cannot tell which were read")
        elif isinstance(x, (set, frozenset)) and classify.are_told_apart(items):
            self._check("members", place, frozenset(items))
        elif plain and not self._one_by_one(place, x):
            self._check("contents", place, classify.frozen(x))
        elif isinstance(x, (set, frozenset)) or (pairs and not all(classify.is_key(k) for k, _ in items)):
            self._refuse(f"the elements or keys of {place} are objects, which no guard watches")
        elif pairs:
            self._check("keys", place, tuple(k for k, _ in items))
            for i, (key, item) in enumerate(items):
                self.value(_entry(place, x, key, i), item, holder=(x, key))
        else:
            self._check("length", place, len(items))
            for i, item in enumerate(items):
                self.value(_element(place, x, i), item, holder=(x, i) if isinstance(x, (list, deque)) else None)

    def _one_by_one(self, place: Place, x: Any) -> bool:
        """Whether the items of a container of plain values are looked at one by one, as some of them are symbolic."""
        if self.symbolic is None or not isinstance(x, (list, dict, deque)):
            return False
        return str(place) in self.symbolic.dynamic.containers

    def _object(self, place: Place, obj: Any, root: bool) -> None:
        cls = type(obj)
        if isinstance(obj, _MODULE):
            if root:
                place.label = "t"
            elif not place.label.startswith("t"):
                place.label = f"t_{place.label}"
        self._check("type", place, cls)
        self._know_class(cls)
        self._reach(place, obj, snapshots_of(place, obj))
        if isinstance(obj, classify.CONTAINERS):
            self._contents(place, obj)
        if not self._hooks.watch(cls):
            self._whole(place, obj)

    def _namespace(self, place: Place, obj: Any, root: bool) -> None:
        self._check("type", place, type(obj))
        self._reach(place, obj, snapshots_of(place, obj))
        self._whole(place, obj)

    def _whole(self, place: Place, obj: Any) -> None:
        """Reads an object whose class cannot be watched: everything that it has."""
        for snapshot in self.reached[id(obj)].snapshots:
            if isinstance(snapshot, AttributesSnapshot):
                for name, value in snapshot.before.items():
                    self.value(place.attribute(name), value, holder=(obj, name))
            elif snapshot.place is not place and not snapshot.place.step.endswith(tuple(f"['{t}']" for t in TABLES)):
                self._check("keys", snapshot.place, tuple(snapshot.before))
                for key, value in snapshot.before.items():
                    self.value(snapshot.place.item(key), value, holder=(snapshot.target, key))
                if snapshot.place.step == "{}.__dict__":
                    for name in slot_names(type(obj)):
                        if slot(obj, name) is ABSENT:
                            self._check("no_attribute", place, name)
        for name in slot_names(type(obj)):
            if slot(obj, name) is ABSENT and variables(obj) is None:
                self._check("no_attribute", place, name)
        for name in classify.plain_class_attributes(type(obj)):
            self._class_read(type(obj), name, getattr(type(obj), name))
        self._whole_class(type(obj))

    def _whole_class(self, cls: type) -> None:
        """All that the classes of an object have that is not watched: methods, properties, data, as objects."""
        for owner in cls.__mro__:
            of_torch = not issubclass(owner, _MODULE) or owner is _MODULE
            if owner not in self._whole_classes and not (of_torch and classify.is_library_class(owner)):
                self._whole_classes.add(owner)
                reached = self.reached.get(id(owner))
                before = reached.snapshots[0].before if reached is not None and reached.snapshots else owner.__dict__
                self._check("attributes", self._know_class(owner), class_attributes(before))


def _entry(place: Place, x: Any, key: Any, position: int) -> Place:
    """Where the value of a dict's key stands, read without code of a subclass."""
    if not classify.is_literal(key):
        return place.to(f"tuple(dict.values({{}}))[{position}]", str(position))
    return place.item(key) if type(x) in classify.EXACT else place.to(f"dict.__getitem__({{}}, {key!r})", str(key))


def _element(place: Place, x: Any, i: int) -> Place:
    """Where an item of a list or tuple stands, read without code of a subclass."""
    if type(x) in classify.EXACT:
        return place.item(i)
    return place.to(f"{classify.base_of(x).__name__}.__getitem__({{}}, {i})", str(i))
