# SPDX-License-Identifier: Apache-2.0
"""Corrections of the guards at the end of a run, for values that the program assigned.

Two cases change the recorded guards. If the program only appended to a list (a log), the program did not read the old
items, so their guards are dropped. If the program assigned a value that is identical to the old one, the old value is
guarded: with another old value, the assignment would be a change that an epilogue has to repeat.
"""

from __future__ import annotations

from collections import deque
from types import CodeType
from typing import Any

import torch

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.snapshots import AttributesSnapshot, DictSnapshot, Snapshot
from thunder.capture.base.sources import CellContents, Global, Item, Length, ModuleVariable, Source, Variables
from thunder.capture.reads import bytecode
from thunder.capture.reads.classify import classify
from thunder.capture.reads.guard_kinds import HasType
from thunder.capture.reads.hooks import can_hook
from thunder.capture.reads.kinds.base import Recorder
from thunder.capture.reads.libraries import is_library_class

__all__ = ["guard_what_was_assigned", "leave_out_logs"]


def leave_out_logs(reads: Recorder, ran: list[CodeType]) -> None:
    """Drop the guards on lists that the program only appended to or measured, so that a log may grow."""
    logs: set[Source] = set()
    lengths: list[tuple[Source, int]] = []
    measured = frozenset().union(*map(bytecode.measured, ran))
    replaced = {id(x.new): x.before for x in reads.substitutions.in_objects}
    for reached in reads.reached.values():
        if type(reached.thing) not in (list, deque) or getattr(reached.thing, "maxlen", None) is not None:
            continue
        before, source = reached.snapshots[0].before, reached.source
        named = _named(source)
        if len(before) == len(reached.thing) and named not in measured:
            continue
        if len(before) <= len(reached.thing) and all(
            a is replaced.get(id(b), b) for a, b in zip(before, reached.thing)
        ):
            uses = {use for code in ran for use in bytecode.uses(code, *named)}
            grown = len(before) < len(reached.thing)
            if not uses or (named[0] == bytecode.ATTRIBUTE and _owner_is_of_library(reads, source)):
                continue  # code of a library, which is not among the code that ran, uses the list
            only = uses <= {"append", "extend", bytecode.LENGTH} and (grown or bytecode.LENGTH in uses)
            if named[1] and only and not any(guard.operand is source for guard in reads.guards):
                logs.add(source)
                if bytecode.LENGTH in uses:
                    lengths.append((source, len(before)))
    if logs:
        reads.guards[:] = [
            guard
            for guard in reads.guards
            if not _under(guard.source, logs) or (isinstance(guard, HasType) and guard.source in logs)
        ]
        reads.tensors_read[:] = [(source, t) for source, t in reads.tensors_read if not _under(source, logs)]
    for source, length in lengths:
        reads.value(source.to(Length), length)


def _owner_is_of_library(reads: Recorder, source: Source) -> bool:
    """Check whether the list is an attribute of an object whose class, or a base class, belongs to a library."""
    owner = source.parent.parent if source.parent is not None else None
    found = [r.thing for r in reads.reached.values() if r.source is owner]
    bases = [c for thing in found for c in type(thing).__mro__]
    return any(is_library_class(c) and can_hook(c) and c is not torch.nn.Module for c in bases)


def _named(source: Source) -> tuple[str, str]:
    """Return how bytecode refers to the value at a source: as an attribute or a variable, and its name."""
    if isinstance(source, (Global, CellContents)):
        return bytecode.VARIABLE, source.name
    if isinstance(source, ModuleVariable) or (isinstance(source, Item) and isinstance(source.parent, Variables)):
        return bytecode.ATTRIBUTE, str(source.key)
    return "", ""


def _under(source: Source | None, sources: set[Source]) -> bool:
    """Check whether `source` is one of `sources`, or a step from one of them."""
    while source is not None:
        if source in sources:
            return True
        source = source.parent
    return False


def guard_what_was_assigned(reads: Recorder, ran: list[CodeType], scopes: list[Any]) -> None:
    """Guard values that the program assigned and that are identical to the values before the run.

    No hook sees assignments to attributes of classes, or assignments that bypass `__setattr__`. Their names are found
    in the bytecode instead. A name may also match a value that was not assigned. That is harmless: only plain values
    and values that were read are guarded.
    """
    assigned: dict[int, set[str]] = {}
    for key, name in reads.assigned:
        assigned.setdefault(key, set()).add(name)
    of_classes = frozenset().union(*map(bytecode.stored_attributes, ran))
    unseen = frozenset().union(*map(bytecode.stored_past_hooks, ran))
    for reached in list(reads.reached.values()):
        stored = of_classes if issubclass(type(reached.thing), type) else unseen
        names = stored.union(assigned.get(id(reached.thing), ()))
        for snapshot in reached.snapshots if names else ():
            if snapshot.target is not reached.thing or isinstance(snapshot, AttributesSnapshot):
                _guard_unchanged(reads, snapshot, names)  # not a container's own items, which are guarded together
    for scope in scopes:
        for name in sorted(scope.stored.intersection(scope.before)):
            if scope.target.get(name, ABSENT) is scope.before[name]:
                _guard(reads, scope.source.to(Global, name), scope.before[name])


def _guard_unchanged(reads: Recorder, snapshot: Snapshot, names: frozenset[str]) -> None:
    before, source = snapshot.before, snapshot.source
    now = snapshot.now() if isinstance(snapshot, AttributesSnapshot) else snapshot.target
    for name in sorted(names.intersection(before)):
        if now.get(name, ABSENT) is before[name]:
            inner = source.item(name) if isinstance(snapshot, DictSnapshot) else source.attr(name)
            _guard(reads, inner, before[name])


def _guard(reads: Recorder, source: Source, value: Any) -> None:
    known = id(value) in reads.reached or id(value) in reads.tensors
    if known or classify(value).is_leaf:
        reads.value(source, value)
