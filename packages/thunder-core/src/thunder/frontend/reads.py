# SPDX-License-Identifier: Apache-2.0
"""What a program reads, recorded while it runs: each read becomes a check of the prologue.

What a read reaches is registered: its place, a snapshot of how it was, and, where its class can be watched, hooks through which the
reads of its attributes are seen in turn. Checks compare with the snapshot, which is older than anything the program did.
"""

from __future__ import annotations

import builtins
import dataclasses
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from thunder.core.state import state
from thunder.frontend import codes, kinds
from thunder.frontend.hooks import ABSENT, ClassHooks, CodeWatch, Paused, Youth
from thunder.frontend.places import Argument, Place
from thunder.frontend.snapshots import (
    TABLES,
    AttributesSnapshot,
    CellSnapshot,
    GlobalsSnapshot,
    Snapshot,
    VariableSnapshot,
    Write,
    cell_value,
    container_snapshot,
    snapshots_of,
    variables,
)

__all__ = ["Check", "Recorder"]

# Containers with more items than this are not read item by item; those of plain values only, up to the second number.
MAX_ITEMS, MAX_PLAIN = 1024, 4096

_MODULE = torch.nn.Module
# These read a module's tables and hooks for what the hook of its class records already.
_OF_MODULES = {f.__code__ for f in (_MODULE.__getattr__, _MODULE.__setattr__, _MODULE.__delattr__)}
_UNSHADOWED = {"__class__", "_call_impl", "_slow_forward", "__setattr__", "__getattribute__"}


class Check(NamedTuple):
    """What has to hold of what is found at a place: `prologue.py` says how each kind is written."""

    kind: str
    place: Place
    value: Any = None


class Reached(NamedTuple):
    """Something that a read led to."""

    place: Place
    thing: Any
    snapshots: list[Snapshot]


class Recorder:
    """The reads of one run of a program."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, str], None] = {}
        self.checks: list[Check] = []
        self.tensors: dict[int, list[Place]] = {}
        self.tensors_read: list[tuple[Place, torch.Tensor]] = []
        self.unguardable: list[str] = []
        self.reached: dict[int, Reached] = {}
        self.has_modules = False
        self._guarded: set[Place] = set()
        self._absent: set[tuple[Place, str]] = set()
        self._alive: list[Any] = []
        self._unknown: dict[int, Any] = {}
        self._hooks = ClassHooks(self)
        self._watch = CodeWatch(self)
        self._youth = Youth()
        self._functions: dict[int, list[tuple[Place, Any]]] = {}
        self._ran: dict[int, CodeType] = {}
        self._strangers: dict[int, tuple[CodeType, dict[str, Any]]] = {}
        self._nested: set[int] = set()
        self._classes: dict[type, Place] = {}
        self._methods: dict[int, tuple[type, str]] = {}
        self._lookups: dict[tuple[type, str], Any] = {}
        self._globals: dict[int, GlobalsSnapshot] = {}
        self._cells: set[int] = set()

    # -- a run --------------------------------------------------------------------------------------------------------
    def __enter__(self) -> Recorder:
        self._youth.__enter__()
        self._hooks.__enter__()
        return self

    def start(self, fn: Any) -> None:
        """Begins with the callable that is traced."""
        title = getattr(fn, "__name__", type(fn).__name__).strip("<>")
        with Paused():
            self.value(Place(fn, title=title), fn, root=True)

    def copied(self, original: Any, copy: Any, place: Place, aliases: dict[int, tuple[Place, Any]]) -> None:
        """Containers among the arguments, of which the program is given copies with handles in them."""
        if copy is original or type(copy) is tuple and type(original) is not tuple:
            return
        if isinstance(copy, dict) and isinstance(original, dict):
            pairs = [(place.item(k), v, dict.get(copy, k)) for k, v in dict.items(original)]
        elif isinstance(copy, (list, tuple, deque)):
            pairs = [(place.item(i), x, y) for i, (x, y) in enumerate(zip(original, copy))]
        elif dataclasses.is_dataclass(copy):
            pairs = [(place.variable(k), v, y) for k, v in vars(original).items() if (y := vars(copy).get(k)) is not None]
        else:
            return
        if not isinstance(copy, tuple) and place.parent is not None:
            self.reached[id(copy)] = Reached(place, copy, snapshots_of(place, copy))
            for snapshot in self.reached[id(copy)].snapshots:
                own = snapshot.target is copy
                aliases[id(snapshot.target)] = (snapshot.place, original if own else original.__dict__)
        for inner, x, y in pairs:
            if not isinstance(x, torch.Tensor):
                self.copied(x, y, inner, aliases)

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """What an input made of a tensor that the program reached is called."""
        found = self.tensors.get(id(tensor))
        return found[0].label or None if found else None

    def unreachable(self, tensors: Iterable[torch.Tensor]) -> str | None:
        """Why a trace that uses these tensors is good for one call only; None when all can be found again."""
        for tensor in tensors:
            if id(tensor) not in self.tensors:
                return (
                    f"a tensor of shape {tuple(tensor.shape)} was used that is neither an argument nor found in the function's "
                    "module, closure or globals"
                )
        return None

    def watch_code(self) -> CodeWatch:
        """Within it, code that runs is noted; the frontend's own code runs outside."""
        return self._watch

    def __exit__(self, *exc: Any) -> None:
        try:
            with Paused():
                self._settle()
        finally:
            self._hooks.__exit__(*exc)
            self._youth.__exit__(*exc)

    def _settle(self) -> None:
        """At the end of the run: what was read that no path led to then."""
        for code, scope in self._strangers.values():
            self._find_stranger(code, scope)
        self._class_level_names()
        if self._unknown:
            young = Youth.ids()
            for key, obj in self._unknown.items():
                if key not in young and key not in self.reached:
                    self._refuse(f"a {type(obj).__name__} was read that no path from the function or its arguments leads to")

    def undo(self) -> list[Write]:
        """Puts everything that was reached back as it was; what the program had made of it."""
        writes: list[Write] = []
        for reached in reversed(self.reached.values()):
            for snapshot in reached.snapshots:
                writes += snapshot.undo()
        for scope in self._globals.values():
            writes += scope.undo()
        return writes

    def release(self) -> None:
        """Lets go of the user's objects."""
        for kept in (self._alive, self._unknown, self.reached, self._globals, self._functions, self.seen, self._strangers):
            kept.clear()  # type: ignore[attr-defined]
        self.tensors_read.clear()

    def _refuse(self, reason: str) -> None:
        if reason not in self.unguardable:
            self.unguardable.append(reason)

    def _check(self, kind: str, place: Place, value: Any = None) -> None:
        self.checks.append(Check(kind, place, value))

    # -- values -------------------------------------------------------------------------------------------------------
    def value(self, place: Place, value: Any, *, root: bool = False) -> None:
        """Guards what was found at a place before the program ran, and registers what can be read through it."""
        if place in self._guarded or value is ABSENT:
            return
        self._guarded.add(place)
        kind = kinds.kind_of(value)
        if kind == "plain":
            self._check("value", place, value)
        elif kind == "identity":
            self._check("is", place, value)
        elif kind == "tensor":
            self._tensor(place, value)
        elif id(value) in self.reached:
            known = self.reached[id(value)].place
            if known is not place:
                self._check("same", place, known)
        else:
            getattr(self, f"_{kind}")(place, value, root)

    def _reach(self, place: Place, thing: Any, snapshots: list[Snapshot]) -> Reached:
        found = self.reached[id(thing)] = Reached(place, thing, snapshots)
        return found

    def _tensor(self, place: Place, tensor: torch.Tensor) -> None:
        if kinds.is_handle(tensor):
            return
        known = self.tensors.setdefault(id(tensor), [])
        known.append(place)
        if len(known) == 1:
            self.tensors_read.append((place, tensor))
            own = tensor.__dict__ if type(tensor) is not torch.Tensor else None
            if own and id(own) not in self.reached:
                self.value(place.to("{}.__dict__"), own)
        else:
            self._check("same", place, known[0])

    def _weakly(self, place: Place, thing: Any) -> None:
        self._check("weak", place, weakref.ref(thing))

    def _function(self, place: Place, fn: types.FunctionType, root: bool = False) -> None:
        self._reach(place, fn, [])
        code = fn.__code__
        if not root:
            if isinstance(_root(place), Argument):
                self._check("type", place, types.FunctionType)
            else:
                self._weakly(place, fn)
        self._check("is", place.attribute("__code__"), code)
        self._functions.setdefault(id(code), []).append((place, fn))
        self._alive.append(code)
        if codes.is_library(code.co_filename):
            self._cells_of(place, fn)
        elif id(code) in self._ran or not self._watch.available:
            self._function_ran(place, fn)

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

    def _class(self, place: Place, cls: type, root: bool) -> None:
        self._check("is", place, cls)
        if not codes_of_library(cls):
            self._know_class(cls)
            self._hooks.watch(cls)

    def _opaque(self, place: Place, value: Any, root: bool) -> None:
        self._alive.append(value)
        self._refuse(f"{place} is a {type(value).__name__}, whose contents no guard watches")

    def _library(self, place: Place, value: Any, root: bool) -> None:
        try:
            self._weakly(place, value)
        except TypeError:
            self._opaque(place, value, root)

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
        inner = place.to(f"{{}}.get({_ABSENT_TEXT})")
        self._reach(place, variable, [VariableSnapshot(place, variable, found)])
        if found is ABSENT:
            self._check("value", inner, None)
        elif kinds.kind_of(found) == "plain":
            self.value(inner, found)
        else:
            self._refuse(f"the context variable {variable.name} holds a {type(found).__name__}, which no guard watches")

    # -- containers ---------------------------------------------------------------------------------------------------
    def _container(self, place: Place, x: Any, root: bool) -> None:
        self._reach(place, x, [container_snapshot(place, x)])
        if not (isinstance(x, dict) and not x and place.step.startswith(("{}['_", "{}._global_"))):
            self._check("type", place, type(x))
        self._contents(place, x)

    def _contents(self, place: Place, x: Any) -> None:
        items = kinds.items_of(x)
        if not items:
            self._check("empty", place)
        elif kinds.all_plain(items, isinstance(x, dict)):
            if len(items) > MAX_PLAIN:
                self._refuse(f"{place} has {len(items)} items, of which a guard cannot tell which were read")
            else:
                self._check("contents", place, kinds.frozen(x))
        elif isinstance(x, (set, frozenset)) or (isinstance(x, dict) and not kinds.all_plain(tuple(x), False)):
            self._refuse(f"the elements or keys of {place} are objects, which no guard watches")
        elif len(items) > MAX_ITEMS:
            self._refuse(f"{place} has {len(items)} items, of which a guard cannot tell which were read")
        elif isinstance(x, dict):
            self._check("keys", place, tuple(x))
            get = "{{}}[{!r}]" if type(x) in kinds.EXACT else "dict.__getitem__({{}}, {!r})"
            for key, item in items:
                step = place.item(key) if get.startswith("{{}}[") else place.to(get.format(key), str(key))
                self.value(step, item)
        else:
            self._check("length", place, len(items))
            get = "{{}}[{!r}]" if type(x) in kinds.EXACT else f"{kinds.base_of(x).__name__}.__getitem__({{{{}}}}, {{!r}})"
            for i, item in enumerate(items):
                self.value(place.to(get.format(i), str(i)), item)

    # -- objects ------------------------------------------------------------------------------------------------------
    def _object(self, place: Place, obj: Any, root: bool) -> None:
        cls = type(obj)
        if isinstance(obj, _MODULE):
            self.has_modules = True
            if root:
                place.label = "t"
            elif not place.label.startswith("t"):
                place.label = f"t_{place.label}"
        self._check("type", place, cls)
        self._know_class(cls)
        self._reach(place, obj, snapshots_of(place, obj))
        if isinstance(obj, kinds.CONTAINERS):
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
                    self.value(place.attribute(name), value)
            elif snapshot.place is not place and not snapshot.place.step.endswith(tuple(f"['{t}']" for t in TABLES)):
                self._check("keys", snapshot.place, tuple(snapshot.before))
                for key, value in snapshot.before.items():
                    self.value(snapshot.place.item(key), value)
        for name in kinds.plain_class_attributes(type(obj)):
            self._class_read(type(obj), name, getattr(type(obj), name))

    def read(self, obj: Any, name: str) -> None:
        """`obj.name` was read."""
        reached = self.reached.get(id(obj))
        cls = type(obj)
        raw = self._lookup(cls, name)
        if name in _READ_BY_MODULES and sys._getframe(2).f_code in _OF_MODULES:
            return
        self.seen[(id(obj), name)] = None
        self._alive.append(obj)
        if reached is None:
            self._unknown[id(obj)] = obj
            if raw is not ABSENT:
                self._class_read(cls, name, raw)
            return
        place = reached.place
        if raw is not ABSENT and hasattr(type(raw), "__set__"):
            self._data_descriptor(reached, cls, name, raw)
            return
        now, before = variables(obj), _before(reached, "{}.__dict__")
        if before is not None and name in before:
            if now.get(name, ABSENT) is before[name]:  # type: ignore[union-attr]
                self.value(place.variable(name), before[name])
        elif now is not None and name in now:
            return  # the program assigned it
        else:
            if now is not None:
                self._absence(place.to("{}.__dict__"), name)
            if raw is not ABSENT:
                self._class_read(cls, name, raw)

    def _data_descriptor(self, reached: Reached, cls: type, name: str, raw: Any) -> None:
        place = reached.place
        if name == "__dict__":
            before = _before(reached, "{}.__dict__") or {}
            whole = place.to("{}.__dict__")
            self._check("keys", whole, tuple(before))
            for key, value in before.items():
                if isinstance(key, str):
                    self.value(whole.item(key), value)
        elif isinstance(raw, types.MemberDescriptorType):
            before = next((s.before for s in reached.snapshots if isinstance(s, AttributesSnapshot)), {})
            if name in before:
                self.value(place.attribute(name), before[name])
        else:
            self._class_read(cls, name, raw)

    def missing(self, obj: Any, name: str) -> Any:
        """`obj.name` was asked for in vain: a module may have it in a table."""
        cls = type(obj)
        found: Any = ABSENT
        table = ""
        if isinstance(obj, _MODULE):
            d = variables(obj) or {}
            for table in TABLES:
                if name in d.get(table, ()):
                    found = d[table][name]
                    break
        if (id(obj), name) not in self.seen:
            self.seen[(id(obj), name)] = None
            self._alive.append(obj)
            reached = self.reached.get(id(obj))
            if reached is None:
                self._unknown[id(obj)] = obj
            elif found is not ABSENT:
                before = _before(reached, f"{{}}['{table}']") or {}
                if before.get(name, ABSENT) is found:
                    self.value(reached.place.variable(table).item(name), found)
            else:
                self._nowhere(reached, cls, name)
        # A class with a __getattr__ of its own decides itself.
        return found if getattr(cls, "__getattr__", None) is _MODULE.__getattr__ else ABSENT

    def _nowhere(self, reached: Reached, cls: type, name: str) -> None:
        whole = reached.place.to("{}.__dict__")
        for snapshot in reached.snapshots:
            if isinstance(snapshot, AttributesSnapshot):
                if isinstance(self._lookup(cls, name), types.MemberDescriptorType) and name not in snapshot.before:
                    self._check("no_attribute", reached.place, name)
            elif name not in snapshot.before and (snapshot.place is whole or snapshot.place.parent is whole):
                self._absence(snapshot.place, name)
        if self._lookup(cls, name) is ABSENT:
            self._check("no_attribute", self._know_class(cls), name)

    def _absence(self, place: Place, name: str) -> None:
        if name not in _UNSHADOWED and (place, name) not in self._absent:
            self._absent.add((place, name))
            self._check("absent", place, name)

    # -- classes ------------------------------------------------------------------------------------------------------
    def _know_class(self, cls: type) -> Place:
        place = self._classes.get(cls)
        if place is None:
            place = self._classes[cls] = Place(cls, cls.__name__)
            if not codes_of_library(cls):
                self._check("is", place.attribute("__mro__"), cls.__mro__)
                for c in cls.__mro__:
                    if not codes_of_library(c):
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
            for fn in kinds.functions_in(raw):
                self._methods.setdefault(id(fn.__code__), (cls, name))
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
        if name in _UNSHADOWED or kinds.is_of_the_interpreter(raw):
            return
        owner = next((c for c in cls.__mro__ if name in c.__dict__), None)
        if owner is None:
            return
        before = self.reached.get(id(owner))
        if before is not None and before.snapshots and before.snapshots[0].before.get(name, ABSENT) is not raw:
            return  # the program assigned it
        place = self._know_class(cls)
        if kinds.has_plain_lookup(cls):
            place = place.to(f"{{}}.{name}" if name.isidentifier() else f"getattr({{}}, {name!r})", name)
        else:
            place = self._know_class(owner).to("{}.__dict__").item(name)
            if isinstance(raw, (staticmethod, classmethod)):
                place = place.to("{}.__func__")
        if place in self._guarded:
            return
        if isinstance(raw, staticmethod):
            raw = raw.__func__
        elif isinstance(raw, classmethod):
            raw, place = raw.__func__, place.to("{}.__func__") if kinds.has_plain_lookup(cls) else place
        if isinstance(raw, property):
            self._guarded.add(place)
            self._check("type", place, type(raw))
            for accessor in ("fget", "fset"):
                if getattr(raw, accessor) is not None:
                    self.value(place.attribute(accessor), getattr(raw, accessor))
        elif kinds.is_cached_property(raw):
            self._guarded.add(place)
            self._check("type", place, type(raw))
            self.value(place.attribute("func"), raw.func)
        else:
            if isinstance(raw, types.FunctionType) or not hasattr(type(raw), "__get__"):
                self.value(place, raw)
            else:
                self.value(self._know_class(owner).to("{}.__dict__").item(name), raw)

    def _class_level_names(self) -> None:
        """Attributes that code reads of classes themselves (`type(self).K`, `cls.K`), which no hook sees."""
        names: set[str] = set()
        for code in self._ran.values():
            uses = codes.attribute_uses(code)
            loads = {chain[0] for chain in codes.global_loads(code)}
            if "type" in loads or "__class__" in uses or "super" in loads or "cls" in code.co_varnames[:1]:
                names.update(uses)
        for cls in list(self._classes):
            for name in kinds.plain_class_attributes(cls):
                if name in names:
                    self._class_read(cls, name, self._lookup(cls, name))

    # -- code ---------------------------------------------------------------------------------------------------------
    def code_ran(self, code: CodeType, frame: FrameType) -> None:
        """A code object ran for the first time."""
        if id(code) in self._ran or codes.is_library(code.co_filename) or state.frontend is None:
            return
        if code.co_filename == "<string>" and codes.is_library_scope(frame.f_globals):
            return  # written by the library when it was imported: the __init__ of a dataclass
        functions = self._functions.get(id(code))
        if functions is None and id(code) in self._methods:
            cls, name = self._methods[id(code)]
            self._class_read(cls, name, cls.__dict__.get(name))
            functions = self._functions.get(id(code))
        if functions is None and id(code) not in self._nested:
            if _is_imported_now(frame):
                return
            self._strangers[id(code)] = (code, frame.f_globals)
        self._code(code, frame.f_globals)
        for place, fn in functions or ():
            self._function_ran(place, fn)

    def _find_stranger(self, code: CodeType, scope: dict[str, Any]) -> None:
        """Code that ran though nothing led to it: a function of its module, or one that no path leads to."""
        if id(code) in self._functions or id(code) in self._nested:
            return
        if id(code) in self._methods:
            cls, name = self._methods[id(code)]
            self._class_read(cls, name, cls.__dict__.get(name))
        found = scope.get(code.co_name)
        if isinstance(found, types.FunctionType) and found.__code__ is code:
            self.value(self._scope(scope).place.item(code.co_name), found)
        if id(code) not in self._functions:
            self._refuse(f"the function {code.co_name} ran, to which no path from the function or its arguments leads")

    def _code(self, code: CodeType, scope: dict[str, Any]) -> None:
        if id(code) in self._ran:
            return
        self._ran[id(code)] = code
        self._nested.update(id(c) for c in codes.nested_codes(code))
        self._loads(code, scope)

    def _function_ran(self, place: Place, fn: types.FunctionType) -> None:
        code = fn.__code__
        self._scope(fn.__globals__, place)
        self._code(code, fn.__globals__)
        if not self._watch.available:
            for nested in codes.nested_codes(code):
                self._code(nested, fn.__globals__)
        if code.co_argcount:
            self._defaults(place.attribute("__defaults__"), fn.__defaults__)
        if code.co_kwonlyargcount:
            self._defaults(place.attribute("__kwdefaults__"), fn.__kwdefaults__)
        if fn.__dict__:
            self.value(place.to("{}.__dict__"), fn.__dict__)
        self._cells_of(place, fn)

    def _defaults(self, place: Place, defaults: Any) -> None:
        if defaults is None:
            self._check("is", place, None)
        else:
            self.value(place, defaults)

    def _cells_of(self, place: Place, fn: types.FunctionType) -> None:
        for i, (name, cell) in enumerate(zip(fn.__code__.co_freevars, fn.__closure__ or ())):
            inner = place.to(f"{{}}.__closure__[{i}]")
            before = cell_value(cell)
            if id(cell) not in self._cells:
                self._cells.add(id(cell))
                self._reach(inner, cell, [CellSnapshot(inner, cell, before)])
            step = inner.to("{}.cell_contents")
            step.label = step.title = name
            self.value(step, self.reached[id(cell)].snapshots[0].before if id(cell) in self.reached else before)

    def _scope(self, scope: dict[str, Any], place: Place | None = None) -> GlobalsSnapshot:
        """The snapshot of a module's globals."""
        found = self._globals.get(id(scope))
        if found is None:
            module = sys.modules.get(scope.get("__name__", ""))
            if module is not None and module.__dict__ is scope:
                root = Place(module, "").to("{}.__dict__")
            elif place is not None:
                root = place.to("{}.__globals__")
            else:
                root = Place(types.SimpleNamespace(), "").to("{}.__dict__")
                self._refuse("a function ran whose globals are those of no module")
            root.label, root.title = "", scope.get("__name__", "the globals").rpartition(".")[2]
            found = self._globals[id(scope)] = GlobalsSnapshot(root, scope)
        return found

    def _loads(self, code: CodeType, scope: dict[str, Any]) -> None:
        snapshot = self._scope(scope)
        snapshot.stored |= codes.stored_globals(code)
        for chain in codes.global_loads(code):
            name = chain[0]
            if name in snapshot.before:
                place = snapshot.place.item(name)
                place.label = place.title = name
                if scope.get(name, ABSENT) is snapshot.before[name]:
                    self.value(place, snapshot.before[name])
                    self._attributes_of(place, snapshot.before[name], chain[1:])
            elif name in scope:
                continue  # the program assigned it
            elif hasattr(builtins, name):
                self._absence(snapshot.place, name)
                self.value(_BUILTINS.attribute(name), getattr(builtins, name))

    def _attributes_of(self, place: Place, value: Any, chain: tuple[str, ...]) -> None:
        """The attributes that code reads of a module or class by name."""
        for name in chain:
            if isinstance(value, types.ModuleType):
                found = value.__dict__.get(name, ABSENT)
                reason = kinds.source_of_chance(value, name, found)
                if reason is not None:
                    self._refuse(reason)
                if found is ABSENT or name in kinds.REPLACED_WHILE_TRACING:
                    return
                place, value = place.to(f"{{}}.{name}", name), found
                place.label = name
                self.value(place, value)
            elif isinstance(value, type) and not codes_of_library(value):
                raw = self._lookup(value, name)
                if raw is not ABSENT:
                    self._class_read(value, name, raw)
                return
            else:
                return


def _is_imported_now(frame: FrameType) -> bool:
    """Whether code runs because a module is being imported, or was made by `namedtuple`."""
    if str(frame.f_globals.get("__name__", "")).startswith("namedtuple_"):
        return True
    back: FrameType | None = frame
    while back is not None:
        if back.f_code.co_filename.startswith("<frozen importlib"):
            return True
        back = back.f_back
    return False


_ABSENT_TEXT = "None"
_BUILTINS = Place(builtins, "builtins")
_OF_ALL_MODULES = Place(torch.nn.modules.module, "torch.nn.modules.module")
_GLOBAL_HOOKS = [
    name for name, value in vars(torch.nn.modules.module).items() if name.startswith("_global_") and isinstance(value, dict)
]
_READ_BY_MODULES = frozenset({"__dict__", *TABLES})


def _root(place: Place) -> Any:
    while place.parent is not None:
        place = place.parent
    return place.root


def _before(reached: Reached, step: str) -> dict[str, Any] | None:
    """The entries of the part of a thing's state that stands at a step."""
    for snapshot in reached.snapshots:
        if snapshot.place.step == step and snapshot.place is not reached.place:
            return snapshot.before  # type: ignore[no-any-return]
    return None


def codes_of_library(cls: type) -> bool:
    """Whether a class is torch's, thunder's or Python's own."""
    return kinds.is_library_class(cls)
