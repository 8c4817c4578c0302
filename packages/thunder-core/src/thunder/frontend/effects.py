# SPDX-License-Identifier: Apache-2.0
"""What a program assigns to the attributes of its modules: undone after tracing, done again at each call.

The state of every module that the program can reach is remembered before it runs. The difference afterwards is the effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from thunder.core import pytree

__all__ = ["ModuleState"]

_TABLES = ("_parameters", "_buffers", "_modules")
_ABSENT = object()
_PLAIN = (bool, int, float, complex, str, type(None))


class Assignment:
    """One attribute, or one entry of a module's table, that has a new value: constants with tensors at some places."""

    __slots__ = ("constants", "key", "owner", "places", "structure", "table")

    def __init__(self, owner: torch.nn.Module, table: str | None, key: str, leaves: list[Any], structure: Any):
        self.owner = owner
        self.table = table
        self.key = key
        self.structure = structure  # None: the entry was deleted
        self.places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        self.constants = [None if isinstance(x, torch.Tensor) else x for x in leaves]

    def make(self, tensors: Iterator[Any]) -> None:
        """Makes the assignment with the tensors of a call."""
        d = self.owner.__dict__
        target = d if self.table is None else d[self.table]
        if self.structure is None:
            target.pop(self.key, None)
            return
        leaves = list(self.constants)
        for i in self.places:
            leaves[i] = next(tensors)
        target[self.key] = pytree.tree_unflatten(leaves, self.structure)


class ModuleState:
    """The attributes of modules as they were, and what a program changed of them."""

    def __init__(self, modules: Iterable[torch.nn.Module]):
        self._before = [
            (m, {k: v for k, v in m.__dict__.items() if k not in _TABLES}, {t: dict(m.__dict__[t]) for t in _TABLES})
            for m in modules
        ]
        self.assignments: list[Assignment] = []
        self._tensors: list[torch.Tensor] = []

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Runs a program within it; afterwards every module is as it was, and `assignments` says what had changed."""
        try:
            yield
        finally:
            for module, plain, tables in self._before:
                for table, old in tables.items():
                    self._undo(module, table, old, module.__dict__[table])
                self._undo(module, None, plain, module.__dict__)

    def _undo(self, module: torch.nn.Module, table: str | None, old: dict[str, Any], now: dict[str, Any]) -> None:
        for key in sorted({*old, *now}, key=str):
            value = now.get(key, _ABSENT)
            if value is old.get(key, _ABSENT) or (table is None and key in _TABLES):
                continue
            leaves, structure = ([], None) if value is _ABSENT else pytree.tree_flatten(value)
            self._tensors += [x for x in leaves if isinstance(x, torch.Tensor)]
            self.assignments.append(Assignment(module, table, key, leaves, structure))
            if key in old:
                now[key] = old[key]
            else:
                del now[key]

    def take_tensors(self) -> list[torch.Tensor]:
        """The tensors among the values assigned, in order: they become outputs of the trace."""
        found, self._tensors = self._tensors, []
        return found

    def unguardable(self) -> str | None:
        """Why effects make a trace good for one call only."""
        for a in self.assignments:
            if any(not isinstance(x, _PLAIN) for x in a.constants):
                return f"the program assigns an object to the attribute {a.key} of a {type(a.owner).__name__}"
        return None

    def replay(self) -> Callable[[Iterable[Any]], None] | None:
        """The function that makes the assignments again, given the tensors; None where there are none."""
        assignments = self.assignments
        if not assignments:
            return None

        def run(tensors: Iterable[Any]) -> None:
            values = iter(tensors)
            for a in assignments:
                a.make(values)

        return run
