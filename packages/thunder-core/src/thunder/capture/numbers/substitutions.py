# SPDX-License-Identifier: Apache-2.0
"""What stands in for something in the user's objects while a program is traced.

These are symbols for numbers, and for some functions others that know the tracer. Native Python finds them there. All
is put back as it was when the run is over.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from thunder.capture.base.snapshots import CellSnapshot, Snapshot, VariableSnapshot
from thunder.capture.reads.hooks import ABSENT
from thunder.runtime.containers import dict_type

__all__ = ["Plants"]


class _Planted(NamedTuple):
    put: Callable[[Any], None]
    get: Callable[[], Any]
    target: Any
    key: Any
    before: Any
    symbol: Any


class Plants:
    """What one run has put into objects."""

    def __init__(self) -> None:
        self._planted: list[_Planted] = []
        self._untouched: dict[tuple[int, Any], Any] = {}  # what stood in for what the program left in its place

    def __len__(self) -> int:
        return len(self._planted)

    def plant(self, target: Any, key: Any, before: Any, stand_in: Any) -> None:
        """Puts something where the program finds `before`."""
        put, get = _access(target, key)
        self._planted.append(_Planted(put, get, target, key, before, stand_in))
        put(stand_in)

    def overlook(self, snapshots: Iterable[Snapshot]) -> None:
        """Puts what was there into snapshots: that is how things were."""
        known = {id(planted.symbol): planted.before for planted in self._planted}
        if not known:
            return
        for snapshot in snapshots:
            before = snapshot.before
            if isinstance(snapshot, (CellSnapshot, VariableSnapshot)):  # what a variable holds, be it a list
                snapshot.before = known.get(id(before), before)
            elif isinstance(before, dict):
                snapshot.before = {k: known.get(id(v), v) for k, v in before.items()}
            elif isinstance(before, list):
                snapshot.before = [known.get(id(v), v) for v in before]
            elif id(before) in known:
                snapshot.before = known[id(before)]

    def uproot(self) -> None:
        """Puts everything back, where the program has not assigned something else."""
        for planted in reversed(self._planted):
            if planted.get() is not planted.symbol:
                continue
            self._untouched[id(planted.target), planted.key] = planted.symbol
            if planted.before is ABSENT:
                del planted.target[planted.key]
            else:
                planted.put(planted.before)
        self._planted.clear()

    def with_stand_ins(self, target: Any, items: Any) -> Any:
        """All items of a container, once everything is put back, with what stood in for those that are numbers."""
        if isinstance(items, dict):
            return {k: self._untouched.get((id(target), k), v) for k, v in items.items()}
        return [self._untouched.get((id(target), i), v) for i, v in enumerate(items)]


def _access(target: Any, key: Any) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    if isinstance(target, types.CellType):
        cell: Any = target
        return lambda value: setattr(cell, "cell_contents", value), lambda: cell.cell_contents
    if isinstance(target, dict):
        base = dict_type(target)
        return lambda value: base.__setitem__(target, key, value), lambda: base.get(target, key)
    if isinstance(target, (list, deque)):
        kind: Any = list if isinstance(target, list) else deque
        return (
            lambda value: kind.__setitem__(target, key, value),
            lambda: kind.__getitem__(target, key) if key < kind.__len__(target) else None,
        )
    if isinstance(target, type):
        return lambda value: type.__setattr__(target, key, value), lambda: target.__dict__.get(key)
    return (
        lambda value: object.__setattr__(target, key, value),
        lambda: object.__getattribute__(target, key),
    )
