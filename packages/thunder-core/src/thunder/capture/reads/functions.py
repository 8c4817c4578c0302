# SPDX-License-Identifier: Apache-2.0
"""Functions and code that a program runs: code, defaults, closures, and the globals that code names.

A frame does not know its function, so code that runs is matched with the functions that reads have led to.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import sys
import types
from collections import deque
from types import CodeType, FrameType
from typing import Any

from thunder.capture.base import modes
from thunder.capture.base.modes import is_state
from thunder.capture.base.snapshots import AttributesSnapshot, CellSnapshot, DictSnapshot, GlobalsSnapshot, cell_value
from thunder.capture.base.sources import Argument, Place
from thunder.capture.dispatch.builtin_overrides import original_of, stand_in_of
from thunder.capture.numbers.symbolic import length_of
from thunder.capture.reads import bytecode, classify
from thunder.capture.reads.classes import Classes
from thunder.capture.reads.classify import is_library_class
from thunder.capture.reads.hooks import ABSENT
from thunder.core.locations import is_ours
from thunder.core.state import state

__all__ = ["Functions"]

_BUILTINS = Place(builtins, "builtins")
_MODES = Place(modes, "torch")


class Functions(Classes):
    """The reads of functions."""

    def _function(self, place: Place, fn: types.FunctionType, root: bool = False) -> None:
        self._reach(place, fn, [])
        code = fn.__code__
        if not root:
            if isinstance(place.beginning, Argument):
                self._check("type", place, types.FunctionType)
            else:
                self._weakly(place, fn)
        self._check("is", place.attribute("__code__"), code)
        self._functions.setdefault(id(code), []).append((place, fn))
        self._alive.append(code)
        if bytecode.is_library(code.co_filename):
            self._cells_of(place, fn)
        elif id(code) in self._ran or not self._watch.available:
            self._function_ran(place, fn)

    def _append_only(self) -> None:
        """Lists that the program only appended to or measured: what was in them was not read, so a log may grow."""
        logs: set[Place] = set()
        measured: list[tuple[Place, int]] = []
        asked = frozenset().union(*map(bytecode.measured, self._ran.values()))
        for reached in self.reached.values():
            if type(reached.thing) not in (list, deque) or getattr(reached.thing, "maxlen", None) is not None:
                continue
            before, place = reached.snapshots[0].before, reached.place
            if len(before) == len(reached.thing) and _named(place) not in asked:
                continue
            if len(before) <= len(reached.thing) and all(a is b for a, b in zip(before, reached.thing)):
                kind, name = _named(place)
                used = {use for code in self._ran.values() for use in bytecode.uses(code, kind, name)}
                grown = len(before) < len(reached.thing)
                only = used <= {"append", "extend", bytecode.LENGTH} and (grown or bytecode.LENGTH in used)
                if name and only and not any(c.value is place for c in self.checks):
                    logs.add(place)
                    if bytecode.LENGTH in used:
                        measured.append((place, len(before)))
        if logs:
            self.checks[:] = [
                c for c in self.checks if not _under(c.place, logs) or (c.kind == "type" and c.place in logs)
            ]
            self.tensors_read[:] = [(place, t) for place, t in self.tensors_read if not _under(place, logs)]
        for place, length in measured:
            self.value(length_of(place), length)

    def _assigned_again(self) -> None:
        """What was assigned and has the value that it had: where it has another one at a call, that is another call.

        No hook sees the attributes of classes, and those that are assigned past `__setattr__`: code names them.
        (What was assigned was read somewhere, or is a plain value: whatever else has such a name was not assigned.)
        """
        assigned: dict[int, set[str]] = {}
        for key, name in self.assigned:
            assigned.setdefault(key, set()).add(name)
        of_classes = frozenset().union(*map(bytecode.stored_attributes, self._ran.values()))
        unseen = frozenset().union(*map(bytecode.stored_past_hooks, self._ran.values()))
        for reached in list(self.reached.values()):
            named = of_classes if isinstance(reached.thing, type) else unseen
            names = named.union(assigned.get(id(reached.thing), ()))
            for snapshot in reached.snapshots if names else ():
                if snapshot.target is reached.thing and not isinstance(snapshot, AttributesSnapshot):
                    continue  # a container's items, which are looked at together
                before, place = snapshot.before, snapshot.place
                now = snapshot.now() if isinstance(snapshot, AttributesSnapshot) else snapshot.target
                for name in sorted(names.intersection(before)):
                    if now.get(name, ABSENT) is before[name]:
                        whole = isinstance(snapshot, DictSnapshot)
                        self._unchanged(place.item(name) if whole else place.attribute(name), before[name])
        for scope in self._globals.values():
            for name in sorted(scope.stored.intersection(scope.before)):
                if scope.target.get(name, ABSENT) is scope.before[name]:
                    place = scope.place.item(name)
                    place.label = place.title = name
                    self._unchanged(place, scope.before[name])

    def _unchanged(self, place: Place, value: Any) -> None:
        known = id(value) in self.reached or id(value) in self.tensors
        if known or classify.kind_of(value) in ("plain", "identity", "library"):
            self.value(place, value)

    def code_ran(self, code: CodeType, frame: FrameType) -> None:
        """A code object ran for the first time."""
        if self.identity_matters is False and state.frontend is not None:
            self.identity_matters = not is_ours(code.co_filename) and bytecode.compares_identity(code)
        if id(code) in self._ran or bytecode.is_library(code.co_filename) or state.frontend is None:
            return
        if code.co_name == "__annotate__":
            return  # Python 3.14 evaluates annotations when somebody asks for them, before that they were there already
        if code.co_filename == "<string>" and bytecode.is_library_scope(frame.f_globals):
            return  # written by the library when it was imported: the __init__ of a dataclass
        functions = self._functions.get(id(code))
        if functions is None and id(code) in self._methods:
            self._method_ran(code)
            functions = self._functions.get(id(code))
        if functions is None and id(code) not in self._nested:
            if _is_imported_now(frame):
                return
            self._strangers[id(code)] = (code, frame.f_globals)
        for place, fn in functions or ():
            self._function_ran(place, fn)
        self._code(code, frame.f_globals)

    def _method_ran(self, code: CodeType) -> None:
        """A method ran that no read led to: that of any class which has it, bare or decorated."""
        for cls, name in self._methods.get(id(code), ()):
            self._class_read(cls, name, cls.__dict__.get(name))

    def _find_stranger(self, code: CodeType, scope: dict[str, Any]) -> None:
        """Code that ran though nothing led to it: a function of its module, or one that no path leads to."""
        if id(code) in self._functions or id(code) in self._nested:
            return
        self._method_ran(code)
        found = scope.get(code.co_name)
        if isinstance(found, types.FunctionType) and found.__code__ is code:
            self.value(self._scope(scope).place.item(code.co_name), found)
        if id(code) not in self._functions:
            self._in_tables_of_classes(code)
        if id(code) not in self._functions:
            self._refuse(f"the function {code.co_name} ran, to which no path from the function or its arguments leads")

    def _in_tables_of_classes(self, code: CodeType) -> None:
        """Functions that a class keeps in a list or dict, as validators of fields: reads of it, if it has this one."""
        for cls in list(self._classes):
            for name, raw in list(cls.__dict__.items()):
                if not is_library_class(cls) and classify.holds_code(raw, code):
                    self._class_read(cls, name, raw)

    def _code(self, code: CodeType, scope: dict[str, Any]) -> None:
        if id(code) in self._ran:
            return
        self._ran[id(code)] = code
        self._nested.update(id(c) for c in bytecode.nested_codes(code))
        self._loads(code, scope)
        for name in bytecode.imported_modules(code):
            module = sys.modules.get(name)
            if module is not None and not bytecode.is_library_scope(module.__dict__):
                self._imported(module, code)
        reason = classify.imported_chance(code)
        if reason is not None:
            self._refuse(reason)

    def _imported(self, module: types.ModuleType, code: CodeType) -> None:
        """What code reads of a module that it imports itself."""
        place = Place(module, module.__name__.rpartition(".")[2])
        for name in bytecode.attribute_names(code):
            self._attributes_of(place, module, (name,), code)

    def _function_ran(self, place: Place, fn: types.FunctionType) -> None:
        code = fn.__code__
        self._scope(fn.__globals__, place)
        self._code(code, fn.__globals__)
        if not self._watch.available:
            for nested in bytecode.nested_codes(code):
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
            found = self.reached[id(cell)].snapshots[0].before if id(cell) in self.reached else before
            self.value(step, found, holder=(cell, None) if found is before else None)
            if isinstance(found, (types.ModuleType, type)):
                for used in bytecode.uses(fn.__code__, bytecode.VARIABLE, name):
                    self._attributes_of(step, found, (used,), fn.__code__)

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
        snapshot.stored |= bytecode.stored_globals(code)
        for chain in bytecode.global_loads(code):
            name = chain[0]
            if name in snapshot.before:
                place = snapshot.place.item(name)
                place.label = place.title = name
                if scope.get(name, ABSENT) is snapshot.before[name]:
                    self.value(place, snapshot.before[name], holder=(scope, name))
                    if self.symbolic is not None and self.symbolic.dynamic.converts:
                        stands_for_it = stand_in_of(snapshot.before[name])
                        if stands_for_it is not None:
                            self.symbolic.plant(scope, name, snapshot.before[name], stands_for_it)
                    self._attributes_of(place, snapshot.before[name], chain[1:], code)
            elif name in scope:
                continue  # the program assigned it
            elif hasattr(builtins, name):
                self._absence(snapshot.place, name)
                self.value(_BUILTINS.attribute(name), getattr(builtins, name))
                if name in classify.READERS:
                    self._refuse(classify.READERS[name])
                if self.symbolic is not None:
                    stands_for_it = self.symbolic.stands_for(name)
                    if stands_for_it is not None:
                        self.symbolic.plant(scope, name, ABSENT, stands_for_it)

    def _attributes_of(self, place: Place, value: Any, chain: tuple[str, ...], code: CodeType) -> None:
        """The attributes that code reads of a module or class by name."""
        for name in chain:
            if classify.module_of(type(value)).startswith("torch.backends"):  # settings, computed when they are read
                place, value = place.attribute(name), getattr(value, name, ABSENT)
                if classify.kind_of(value) in ("plain", "identity"):
                    self.value(place, value)
            elif isinstance(value, types.ModuleType):
                found = value.__dict__.get(name, ABSENT)
                reason = classify.source_of_chance(value, name, found)
                if reason is not None:
                    self._refuse(reason)
                if found is ABSENT or classify.is_replaced_while_tracing(value, name):
                    return
                if value is os and name == "getenv":
                    self.value(place.attribute("environ"), os.environ)
                if value is sys and name == "modules" and not bytecode.only_asks(code, ("sys", "modules")):
                    self._refuse("the program takes modules from sys.modules")
                owner, place, value = value.__name__, place.to(f"{{}}.{name}", name), original_of(found)
                place.label = name
                self.value(place, value)
                if is_state(owner, name):
                    self._state(place, value)
            elif isinstance(value, type) and classify.is_of_today(classify.module_of(value), name) is not None:
                self._refuse(classify.is_of_today(classify.module_of(value), name) or "")
                return
            elif isinstance(value, type) and not is_library_class(value):
                raw = self._lookup(value, name)
                if raw is not ABSENT:
                    self._class_read(value, name, raw)
                return
            else:
                return

    def _state(self, place: Place, tell: Any) -> None:
        """What a function of torch tells of how torch is set up."""
        with contextlib.suppress(Exception):  # it raises for the program too
            self.value(place.to("{}()"), tell())

    def attention_kernels(self, kernels: tuple[Any, ...]) -> None:
        """The program has attention in it, for which torch has these kernels."""
        self.value(_MODES.attribute("attention_kernels").to("{}()"), kernels)


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


def _named(place: Place) -> tuple[str, str]:
    """How code speaks of what stands at a place: an attribute or variable, and its name."""
    if place.title:
        return bytecode.VARIABLE, place.title
    if place.parent is not None and place.parent.step == "{}.__dict__":
        return bytecode.ATTRIBUTE, place.step[4:-2]
    return "", ""


def _under(place: Place | None, places: set[Place]) -> bool:
    """Whether a place is one of these, or found through one."""
    while place is not None:
        if place in places:
            return True
        place = place.parent
    return False
