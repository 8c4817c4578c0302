# SPDX-License-Identifier: Apache-2.0
"""Snapshots: the state of the program's objects before the run, to compare guards with and to restore assignments.

A snapshot is shallow. It is taken when a read first finds the object, which is before the program can change the
object. `undo` restores the state and returns the program's changes as writes, which an epilogue repeats.
"""

from __future__ import annotations

import collections
import contextvars
import types
from collections.abc import Collection
from typing import Any, NamedTuple

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.sources import Source
from thunder.runtime.containers import dict_type, items_of
from thunder.runtime.guards import CLASS_INTERNALS, same_value

__all__ = ["CONTAINERS", "Effect", "Snapshot", "Write", "snapshots_of"]

CONTAINERS = (list, dict, tuple, set, frozenset, collections.deque)
_HEAP_TYPE = 1 << 9
TABLES = ("_parameters", "_buffers", "_modules")


class Write(NamedTuple):
    """One assignment: `kind` names an operation of `effects.py` on `target`, with a `key` if it needs one."""

    kind: str
    source: Source
    target: Any
    key: Any
    value: Any


#: Holders (the id of an object, and a name or position in it) of symbols that the program replaced by another value. A
#: plain value there is a write even if it is identical to the value before the run: the number differs in other calls.
Reassigned = Collection[tuple[int, Any]]
_NOTHING: Reassigned = frozenset()


class Effect(NamedTuple):
    """One output of the program: `operation` names a function of `output.py`, called with `target` and `values`.

    A target without a source is a constant of the effect.
    """

    operation: str
    source: Source | None
    target: Any
    values: tuple[Any, ...]


class Snapshot:
    """The state of one object before the run."""

    __slots__ = ("before", "source", "target")

    def __init__(self, source: Source, target: Any, before: Any):
        self.source = source
        self.target = target
        self.before = before

    def undo(self, reassigned: Reassigned = _NOTHING) -> list[Write]:
        """Restore the state, and return the writes that repeat the program's changes."""
        return []

    def _keeps(self, key: Any, value: Any, reassigned: Reassigned) -> bool:
        """Check whether the program left the value under `key` as it was before the run."""
        return self.before.get(key, ABSENT) is value and (id(self.target), key) not in reassigned

    def adopt(self, name: str) -> None:
        """Regard the current value of the attribute `name` as the value from before the run."""


class DictSnapshot(Snapshot):
    """The entries of a dict, or of an object's `__dict__`."""

    __slots__ = ()

    def undo(self, reassigned: Reassigned = _NOTHING) -> list[Write]:
        before, now = self.before, self.target
        base = dict_type(now)
        same = len(before) == base.__len__(now) and all(a is b for a, b in zip(before.values(), base.values(now)))
        if same and all(a is b for a, b in zip(before, base.keys(now))) and not reassigned:
            return []
        items = dict(base.items(now))
        writes = [
            Write("set_item", self.source, self.target, key, value)
            for key, value in items.items()
            if not self._keeps(key, value, reassigned)
        ]
        gone = [key for key in before if key not in items]
        if gone:
            writes = [Write("delete_item", self.source, self.target, key, None) for key in gone] + writes
        expected = [k for k in before if k in items] + [k for k in items if k not in before]
        if not all(a is b or same_value(a, b) for a, b in zip(items, expected)):  # 1, 1.0 and True are equal keys
            gone = list(before)
            writes = [Write("replace_items", self.source, self.target, None, items)]
        if gone:
            base.clear(now)  # the order of the keys has to be restored, too
        for key in items:
            if key not in before and not gone:
                base.__delitem__(now, key)
        for key, value in before.items():
            if gone or items.get(key, ABSENT) is not value:
                base.__setitem__(now, key, value)
        return writes

    def adopt(self, name: str) -> None:
        """Regard the current value of a variable of an object, or of an entry of a module's table, as the old value."""
        _adopt(self.before, name, dict.get(self.target, name, ABSENT))


def _adopt(before: dict[str, Any], name: str, value: Any) -> None:
    if value is ABSENT:
        before.pop(name, None)
    else:
        before[name] = value


class ListSnapshot(Snapshot):
    """The items of a list or deque."""

    __slots__ = ()

    def undo(self, reassigned: Reassigned = _NOTHING) -> list[Write]:
        before, now = self.before, list(items_of(self.target))
        same = [a is b for a, b in zip(before, now)]
        if reassigned:
            same = [kept and (id(self.target), i) not in reassigned for i, kept in enumerate(same)]
        if len(before) == len(now) and all(same):
            return []
        base = list if isinstance(self.target, list) else collections.deque
        base.clear(self.target)
        base.extend(self.target, before)
        if len(now) > len(before) and all(same):
            return [Write("extend", self.source, self.target, None, now[len(before) :])]
        if len(now) == len(before):
            return [Write("set_item", self.source, self.target, i, now[i]) for i, kept in enumerate(same) if not kept]
        return [Write("replace_items", self.source, self.target, None, now)]


class SetSnapshot(Snapshot):
    """The elements of a set."""

    __slots__ = ()

    def undo(self, reassigned: Reassigned = _NOTHING) -> list[Write]:
        now = set(items_of(self.target))
        if {*map(id, now)} == {*map(id, self.before)}:  # elements that are equal may differ: 1, 1.0 and True
            return []
        set.clear(self.target)
        set.update(self.target, self.before)
        return [Write("replace_items", self.source, self.target, None, list(now))]


class AttributesSnapshot(Snapshot):
    """Attributes outside a writable `__dict__`: slots of an instance, and attributes of a class."""

    __slots__ = ()

    def now(self) -> dict[str, Any]:
        """Return the current attributes."""
        if isinstance(self.target, type):
            return dict(self.target.__dict__)
        found = {name: slot(self.target, name) for name in slot_names(type(self.target))}
        return {name: value for name, value in found.items() if value is not ABSENT}

    def adopt(self, name: str) -> None:
        """Regard the current value of a slot as the old value."""
        _adopt(self.before, name, self.now().get(name, ABSENT))

    def undo(self, reassigned: Reassigned = _NOTHING) -> list[Write]:
        writes = []
        now = self.now()
        for key in {**self.before, **now}:
            old, value = self.before.get(key, ABSENT), now.get(key, ABSENT)
            hook = getattr(value, "_thunder_hook", False)
            if hook or self._keeps(key, value, reassigned) or key in CLASS_INTERNALS:
                continue
            if value is ABSENT:
                writes.append(Write("delete_attribute", self.source, self.target, key, None))
            else:
                writes.append(Write("set_attribute", self.source, self.target, key, value))
            if old is ABSENT:
                _base(self.target).__delattr__(self.target, key)
            else:
                _base(self.target).__setattr__(self.target, key, old)
        return writes


class CellSnapshot(Snapshot):
    """The content of a closure's cell."""

    __slots__ = ()

    def undo(self, reassigned: Reassigned = _NOTHING) -> list[Write]:
        value = cell_value(self.target)
        if value is self.before and (id(self.target), None) not in reassigned:
            return []
        if self.before is ABSENT:
            del self.target.cell_contents
        else:
            self.target.cell_contents = self.before
        return [Write("set_cell", self.source, self.target, None, value)]


class GlobalsSnapshot(Snapshot):
    """The globals of a module. The program can have assigned only those in `stored`, or any if `any_stored` is set."""

    __slots__ = ("any_stored", "stored")

    def __init__(self, source: Source, target: dict[str, Any]):
        super().__init__(source, target, dict(target))
        self.stored: set[str] = set()
        self.any_stored = False

    def undo(self, reassigned: Reassigned = _NOTHING) -> list[Write]:
        writes = []
        stored = self.stored.union(self.before, self.target) if self.any_stored else self.stored
        for key in sorted(stored):
            old, value = self.before.get(key, ABSENT), self.target.get(key, ABSENT)
            if self._keeps(key, value, reassigned):
                continue
            if value is ABSENT:
                writes.append(Write("delete_item", self.source, self.target, key, None))
            else:
                writes.append(Write("set_item", self.source, self.target, key, value))
            if old is ABSENT:
                del self.target[key]
            else:
                self.target[key] = old
        return writes


class VariableSnapshot(Snapshot):
    """The value of a context variable. The program runs in its own context, so `undo` has nothing to restore."""

    __slots__ = ("context",)

    def __init__(self, source: Source, target: Any, before: Any, context: contextvars.Context):
        super().__init__(source, target, before)
        self.context = context

    def undo(self, reassigned: Reassigned = _NOTHING) -> list[Write]:
        value = self.context.get(self.target, ABSENT)
        if value is self.before or value is ABSENT:
            return []
        return [Write("set_variable", self.source, self.target, None, value)]


def _base(target: Any) -> Any:
    return type if isinstance(target, type) else object


def cell_value(cell: Any) -> Any:
    """Return the content of a cell, or `ABSENT`."""
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def slot(obj: Any, name: str) -> Any:
    """Return the value of a slot, or `ABSENT`."""
    try:
        return object.__getattribute__(obj, name)
    except AttributeError:
        return ABSENT


def slot_names(cls: type) -> list[str]:
    """Return the names of the slots of a class's instances."""
    return [
        name
        for c in cls.__mro__
        if c.__flags__ & _HEAP_TYPE  # others are written in C: their members are not slots
        for name, raw in c.__dict__.items()
        if isinstance(raw, types.MemberDescriptorType)
    ]


def variables(obj: Any) -> dict[str, Any] | None:
    """Return an object's `__dict__` without running the code of its class; None if it has none."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def container_snapshot(source: Source, x: Any) -> Snapshot:
    """Return a snapshot of a built-in container."""
    if isinstance(x, dict):
        return DictSnapshot(source, x, dict(dict_type(x).items(x)))
    if isinstance(x, (list, collections.deque)):
        return ListSnapshot(source, x, list(items_of(x)))
    if isinstance(x, set):
        return SetSnapshot(source, x, set(items_of(x)))
    return Snapshot(source, x, x)


def snapshots_of(source: Source, obj: Any) -> list[Snapshot]:
    """Return snapshots of an object's variables, slots and tables, and of its items if it is a container."""
    out: list[Snapshot] = []
    d = variables(obj)
    if d is not None:
        whole = source.variables
        out.append(DictSnapshot(whole, d, dict(d)))
        for table in TABLES:
            entries = d.get(table)
            if isinstance(entries, dict):
                out.append(DictSnapshot(whole.item(table), entries, dict(dict_type(entries).items(entries))))
    names = slot_names(type(obj))
    if names:
        before = {name: slot(obj, name) for name in names}
        out.append(AttributesSnapshot(source, obj, {k: v for k, v in before.items() if v is not ABSENT}))
    if issubclass(type(obj), CONTAINERS):
        out.append(container_snapshot(source, obj))
    return out
