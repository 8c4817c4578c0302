# SPDX-License-Identifier: Apache-2.0
"""What a prologue guards: which value made it reject a call, and which numbers therefore become symbolic."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from thunder.capture.base.sources import Argument, Source
from thunder.capture.numbers.symbolic import Dynamic
from thunder.capture.reads.guard_kinds import Equals, Guard, HasContents
from thunder.capture.reads.kinds.containers import MAX_SYMBOLIC_ITEMS, item_source
from thunder.core import pytree
from thunder.runtime.guards import GuardFailed, TensorsDiffer
from thunder.runtime.tensor_check import TensorCheck

__all__ = ["Guarded"]


class Guarded:
    """The guards and tensor checks of a prologue, to find out which value changed after the prologue rejects a call."""

    def __init__(self) -> None:
        self.guards: list[Guard] = []
        self.tensors: TensorCheck | None = None
        self._by_message: dict[str, Guard] = {}  # by the first text of their failure messages

    def add(self, text: str, guard: Guard) -> None:
        """Add a guard whose failure message begins with a text."""
        self.guards.append(guard)
        self._by_message.setdefault(text, guard)

    def found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Source], Any]:
        """Return a function that finds the value of a source in a call; it raises if there is no value."""
        leaves = pytree.tree_leaves((args, kwargs))

        def argument(root: Argument) -> Any:
            return leaves[root.index] if root.index >= 0 else (args, kwargs)[-1 - root.index]

        return lambda source: source.find(argument)

    def is_about_numbers(self, failure: Exception) -> bool:
        """Check whether a guard failed because a number or a size has changed."""
        if isinstance(failure, TensorsDiffer):
            check, tensors = failure.args
            return bool(check.changed_sizes(tensors))
        guard = self._by_message.get(str(failure.args[0])) if isinstance(failure, GuardFailed) else None
        return isinstance(guard, HasContents) or (isinstance(guard, Equals) and _is_number(guard.operand))

    def learn(self, dynamic: Dynamic, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record in `dynamic` the numbers and sizes of a call that made guards fail."""
        found = self.found(args, kwargs)
        for guard in self.guards:
            with contextlib.suppress(Exception):  # the source does not exist in this call
                if isinstance(guard, Equals):
                    _learn_number(dynamic, guard, found(guard.source))
                elif isinstance(guard, HasContents):
                    _learn_contents(dynamic, guard, found(guard.source))
        if self.tensors is not None:
            with contextlib.suppress(Exception):
                for source, dim in self.tensors.changed_sizes([found(source) for source in self.tensors.names]):
                    dynamic.size_changed(source, dim)


def _learn_number(dynamic: Dynamic, guard: Equals, found: Any) -> None:
    was = guard.operand
    if _is_number(was) and type(found) is type(was) and found != was:
        dynamic.number_changed(guard.source)


def _learn_contents(dynamic: Dynamic, guard: HasContents, found: Any) -> None:
    if not isinstance(found, (list, tuple, dict, deque)) or len(found) != len(guard.operand):
        return
    if isinstance(found, dict) != isinstance(guard.operand, dict) or len(found) > MAX_SYMBOLIC_ITEMS:
        return
    before = guard.operand if isinstance(found, dict) else dict(enumerate(guard.operand))
    now = dict(dict.items(found)) if isinstance(found, dict) else dict(enumerate(found))
    changed = [key for key, was in before.items() if now[key] != was]
    if changed and all(_are_numbers(before[key], now[key]) for key in changed):
        dynamic.contents_changed(guard.source)
        for key in changed:
            source = item_source(guard.source, found, key, [*before].index(key))
            if type(before[key]) is not tuple:
                dynamic.number_changed(source)
                continue
            dynamic.contents_changed(source)
            for i, (was, is_now) in enumerate(zip(before[key], now[key])):
                if was != is_now:
                    dynamic.number_changed(source.item(i))


def _are_numbers(was: Any, now: Any) -> bool:
    """Check whether two values are numbers of one type, or tuples that differ in such numbers only."""
    if type(was) is tuple and type(now) is tuple:
        return len(was) == len(now) and all(a == b or _are_numbers(a, b) for a, b in zip(was, now))
    return _is_number(was) and type(now) is type(was)


def _is_number(x: Any) -> bool:
    return type(x) is int or type(x) is float
