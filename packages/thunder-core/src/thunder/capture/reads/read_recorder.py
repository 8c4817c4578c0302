# SPDX-License-Identifier: Apache-2.0
"""What a program reads, recorded while it runs: each read becomes a check of the prologue.

What a read reaches is registered: its place, a snapshot of how it was, and, where its class can be watched, hooks
through which the reads of its attributes are seen in turn. Checks compare with the snapshot.
"""

from __future__ import annotations

import contextvars
import dataclasses
import sys
import types
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

from thunder.capture.base.snapshots import TABLES, AttributesSnapshot, Write, snapshots_of, variables
from thunder.capture.base.sources import Place, filled
from thunder.capture.reads.functions import Functions
from thunder.capture.reads.hooks import ABSENT, CodeWatch, NewObjects, RecordingPaused
from thunder.capture.reads.values import Check, Reached

__all__ = ["Check", "ReadRecorder"]

_MODULE = torch.nn.Module
# These read a module's tables and hooks for what the hook of its class records already.
_OF_MODULES = {f.__code__ for f in (_MODULE.__getattr__, _MODULE.__setattr__, _MODULE.__delattr__)}
_READ_BY_MODULES = frozenset({"__dict__", *TABLES})


class ReadRecorder(Functions):
    """The reads of one run of a program."""

    def __enter__(self) -> ReadRecorder:
        self._youth.__enter__()
        self._hooks.__enter__()
        return self

    def watch_identity(self) -> None:
        """Note whether code runs that may ask whether two objects are one; where no code is seen, it may."""
        self.identity_matters = not self._watch.available

    def start(self, fn: Any) -> None:
        """Begins with the callable that is traced."""
        title = getattr(fn, "__name__", type(fn).__name__).strip("<>")
        with RecordingPaused():
            self.value(Place(fn, title=title), fn, root=True)

    def argument(self, place: Place, leaf: Any) -> Any:
        """An argument that is no tensor: its symbol where it is a symbolic number, else itself."""
        if self.symbolic is not None and self.symbolic.dynamic.takes(place, leaf):
            return self.number(place, leaf)
        return leaf

    def copied(self, original: Any, copy: Any, place: Place, aliases: dict[int, tuple[Place, Any]]) -> None:
        """Containers among the arguments, of which the program is given copies with handles in them."""
        if copy is original or (type(copy) is tuple and type(original) is not tuple):
            return
        if isinstance(copy, dict) and isinstance(original, dict):
            pairs = [(place.item(k), v, dict.get(copy, k)) for k, v in dict.items(original)]
        elif isinstance(copy, (list, tuple, deque)):
            pairs = [(place.item(i), x, y) for i, (x, y) in enumerate(zip(original, copy))]
        elif dataclasses.is_dataclass(copy):
            pairs = [
                (place.variable(k), v, y) for k, v in vars(original).items() if (y := vars(copy).get(k)) is not None
            ]
        else:
            return
        if dataclasses.is_dataclass(copy) or hasattr(copy, "_fields"):
            self._know_class(type(copy))  # its methods
        if not isinstance(copy, tuple) and place.parent is not None:
            self.reached[id(copy)] = Reached(place, copy, snapshots_of(place, copy))
            for snapshot in self.reached[id(copy)].snapshots:
                own = snapshot.target is copy
                aliases[id(snapshot.target)] = (snapshot.place, original if own else original.__dict__)
        for inner, x, y in pairs:
            if not isinstance(x, torch.Tensor):
                self.copied(x, y, inner, aliases)

    def place_of(self, tensor: torch.Tensor) -> Place | None:
        """Where a tensor that the program reached was first found."""
        found = self.tensors.get(id(tensor))
        return found[0] if found else None

    def place_of_list(self, x: Any) -> tuple[int, Place] | None:
        """How long a list was before the run, and where it stands, where that is known."""
        reached = self.reached.get(id(x))
        return None if reached is None or not reached.snapshots else (len(reached.snapshots[0].before), reached.place)

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """What an input made of a tensor that the program reached is called."""
        found = self.tensors.get(id(tensor))
        return found[0].label or None if found else None

    def attribute_of_tensor(self, place: Place | None, tensor: torch.Tensor, name: str) -> Any:
        """An attribute that the user has given to a tensor, or `ABSENT`: the program asks for it."""
        found = tensor.__dict__.get(name, ABSENT)
        if place is None:
            self._refuse(f"the attribute {name} was read of a tensor that no path leads to")
        elif found is ABSENT:
            self._absence(place.to("{}.__dict__"), name)
        else:
            self.value(place.to("{}.__dict__").item(name), found)
        return found

    def tensor_is(self, place: Place | None, tensor: torch.Tensor, condition: str) -> bool:
        """Whether a condition, as Python with `{}` for the tensor, holds of one of the program's; it is guarded."""
        with RecordingPaused():
            found = bool(eval(filled(condition, "x", ()), {"x": tensor}))
        if place is None:
            self._refuse(f"the program hangs on {condition.format('x')} of a tensor x that no path leads to")
        else:
            self.value(place.to(condition), found)
        return found

    def given_attributes(self, place: Place | None, tensor: torch.Tensor, given: dict[str, Any]) -> list[Write]:
        """What the program's attributes of an input's handle are for the input."""
        if place is None:
            self._refuse("the program gives an attribute to a tensor that no path leads to")
            return []
        return [Write("set_attribute", place, tensor, name, value) for name, value in given.items()]

    def unreachable(self, tensors: Iterable[torch.Tensor]) -> str | None:
        """Why a trace that uses these tensors is good for one call only; None when all can be found again."""
        for tensor in tensors:
            if id(tensor) not in self.tensors:
                return (
                    f"a tensor of shape {tuple(tensor.shape)} was used that is neither an argument nor found in the "
                    "function's module, closure or globals"
                )
        return None

    def watch_code(self) -> CodeWatch:
        """Within it, code that runs is noted; the frontend's own code runs outside."""
        return self._watch

    def __exit__(self, *exc: Any) -> None:
        try:
            with RecordingPaused():
                self._settle()
        finally:
            self._hooks.__exit__(*exc)
            self._youth.__exit__(*exc)

    def _settle(self) -> None:
        """At the end of the run: what was read that no path led to then."""
        for code, scope in self._strangers.values():
            self._find_stranger(code, scope)
        self._class_level_names()
        self._not_on_classes()
        self._not_on_tensors()
        self._append_only()
        self._assigned_again()
        if self._unknown:
            young = NewObjects.ids()
            for key, obj in self._unknown.items():
                if key not in young and key not in self.reached:
                    self._refuse(
                        f"a {type(obj).__name__} was read that no path from the function or its arguments leads to"
                    )

    def undo(self) -> list[Write]:
        """Puts everything that was reached back as it was; what the program had made of it."""
        writes: list[Write] = []
        self.plants.uproot()
        for reached in reversed(self.reached.values()):
            for snapshot in reached.snapshots:
                writes += snapshot.undo()
        for scope in self._globals.values():
            writes += scope.undo()
        return [
            w._replace(value=self.plants.with_stand_ins(w.target, w.value)) if w.kind == "replace_items" else w
            for w in writes
        ]

    def seeded(self, used: Iterable[torch.Generator]) -> str | None:
        """Why a program that draws from these generators cannot be traced, if so: it makes them, or seeds them."""
        for generator, before in self._generators.values():
            if not torch.equal(generator.get_state(), before):
                generator.set_state(before)
                return "the program sets the state of a torch.Generator"
        if any(id(generator) not in self._generators for generator in used):
            return "the program draws from a torch.Generator that it makes"
        return None

    def alike(self, targets: Iterable[Place]) -> list[Place]:
        """Where objects stand that an effect is made to, and those that might be the same: they must stay different."""
        wanted = set(targets)
        written = [r for r in self.reached.values() if any(s.place in wanted for s in r.snapshots)]
        types_written = {type(r.thing) for r in written} - {types.CellType, type, types.FunctionType}
        found = [r.place for r in self.reached.values() if type(r.thing) in types_written]
        return found if len(found) > 1 else []

    def release(self) -> None:
        """Lets go of the user's objects."""
        for kept in (
            self._alive,
            self._unknown,
            self.reached,
            self._globals,
            self._functions,
            self.seen,
            self._strangers,
            self._generators,
        ):
            kept.clear()  # type: ignore[attr-defined]
        self.tensors_read.clear()
        self.context = contextvars.Context()

    def read(self, obj: Any, name: str) -> bool:
        """`obj.name` was read."""
        before = len(self.plants)
        self._read(obj, name)
        return len(self.plants) != before

    def _read(self, obj: Any, name: str) -> None:
        reached = self.reached.get(id(obj))
        cls = type(obj)
        raw = self._lookup(cls, name)
        if name in _READ_BY_MODULES and sys._getframe(3).f_code in _OF_MODULES:
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
            if raw is ABSENT:
                self._own_names.setdefault(cls, set()).add(name)
            if now.get(name, ABSENT) is before[name]:  # type: ignore[union-attr]
                self.value(place.variable(name), before[name], holder=(now, name))
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
                    self.value(whole.item(key), value, holder=(variables(reached.thing), key))
        elif isinstance(raw, types.MemberDescriptorType):
            before = next((s.before for s in reached.snapshots if isinstance(s, AttributesSnapshot)), {})
            if name in before:
                self.value(place.attribute(name), before[name], holder=(reached.thing, name))
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
                    self._own_names.setdefault(cls, set()).add(name)
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


def _before(reached: Reached, step: str) -> dict[str, Any] | None:
    """The entries of the part of a thing's state that stands at a step."""
    for snapshot in reached.snapshots:
        if snapshot.place.step == step and snapshot.place is not reached.place:
            return snapshot.before  # type: ignore[no-any-return]
    return None
