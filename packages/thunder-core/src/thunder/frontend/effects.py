# SPDX-License-Identifier: Apache-2.0
"""What a program assigns to the attributes of its modules: undone after tracing, done again at each call.

The state of every module that the program can reach is remembered before it runs. The difference afterwards is the effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from thunder.core import pytree

if TYPE_CHECKING:
    from thunder.frontend.tracer import Tracer

__all__ = ["ModuleState"]

_TABLES = ("_parameters", "_buffers", "_modules")
_ABSENT = object()


class Assignment:
    """One attribute, or one entry of a module's table, that has a new value."""

    __slots__ = ("key", "leaves", "owner", "structure", "table")

    def __init__(self, owner: torch.nn.Module, table: str | None, key: str, value: Any):
        self.owner = owner
        self.table = table
        self.key = key
        self.leaves, self.structure = ([], None) if value is _ABSENT else pytree.tree_flatten(value)

    def target(self) -> dict[str, Any]:
        """The dictionary that it is an entry of."""
        d = self.owner.__dict__
        return d if self.table is None else d[self.table]  # type: ignore[no-any-return]


class ModuleState:
    """The attributes of modules as they were, and what a program changed of them."""

    def __init__(self, modules: Iterable[torch.nn.Module]):
        self.before = [
            (m, {k: v for k, v in m.__dict__.items() if k not in _TABLES}, {t: dict(m.__dict__[t]) for t in _TABLES})
            for m in modules
        ]
        self.assignments: list[Assignment] = []
        self._tensor_count = 0

    @contextmanager
    def restored(self, tracer: Tracer) -> Iterator[None]:
        """Runs a program within it; afterwards every module is as it was, and `assignments` says what had changed."""
        try:
            yield
        except BaseException:
            self._collect()
            self.assignments = []
            raise
        self._collect()

    def _collect(self) -> None:
        for module, plain, tables in self.before:
            d = module.__dict__
            for table, old in (*tables.items(), (None, plain)):
                now = d if table is None else d[table]
                if table is None:
                    changed = [k for k in {*old, *now} if k not in _TABLES and now.get(k, _ABSENT) is not old.get(k, _ABSENT)]
                else:
                    changed = [k for k in {*old, *now} if now.get(k, _ABSENT) is not old.get(k, _ABSENT)]
                for key in sorted(changed):
                    self.assignments.append(Assignment(module, table, key, now.get(key, _ABSENT)))
                    if key in old:
                        now[key] = old[key]
                    else:
                        del now[key]

    def handles(self) -> tuple[torch.Tensor, ...]:
        """The tensors among the values assigned, in order: they become outputs of the trace."""
        found = tuple(x for a in self.assignments for x in a.leaves if isinstance(x, torch.Tensor))
        self._tensor_count = len(found)
        return found

    @property
    def tensor_count(self) -> int:
        """How many outputs of the trace belong to effects."""
        return self._tensor_count

    def unguardable(self) -> str | None:
        """Why effects make a trace good for one call only."""
        for a in self.assignments:
            if a.structure is not None and any(
                not isinstance(x, (torch.Tensor, bool, int, float, complex, str, type(None))) for x in a.leaves
            ):
                return f"the program assigns an object to the attribute {a.key} of a {type(a.owner).__name__}"
        return None

    def replay(self) -> Callable[[list[Any]], None] | None:
        """The function that makes the assignments again, given the tensors; None where there are none."""
        if not self.assignments:
            return None
        steps = [
            (a, [None if isinstance(x, torch.Tensor) else x for x in a.leaves],
             [i for i, x in enumerate(a.leaves) if isinstance(x, torch.Tensor)])
            for a in self.assignments
        ]  # fmt: skip
        for a in self.assignments:
            a.leaves = []

        def run(tensors: list[Any]) -> None:
            values = iter(tensors)
            for a, constants, positions in steps:
                if a.structure is None:
                    a.target().pop(a.key, None)
                    continue
                leaves = list(constants)
                for i in positions:
                    leaves[i] = next(values)
                a.target()[a.key] = pytree.tree_unflatten(leaves, a.structure)

        return run
