# SPDX-License-Identifier: Apache-2.0
"""Process groups as values of a trace. This module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["BUCKETS", "KEPT", "ONE_RANK", "UNITS", "UNIT_NAMES", "Group"]

#: The key in `Trace.info` of a dict from the name of a collective's result to the unit to which the collective belongs,
#: e.g. a bucket of DistributedDataParallel. Only collectives of the same unit are merged (`passes/bucketing.py`).
UNITS = "collective_units"

#: The key in `Trace.info` of a dict from a gathered parameter to the name of its `fully_shard` module.
UNIT_NAMES = "unit_names"

#: The key in `Trace.info` of the gathered parameters that backward keeps (`passes/kept_parameters.py`).
KEPT = "kept_parameters"

#: The key in `Trace.info` of the report on merged collectives (`passes/bucketing.py`).
BUCKETS = "buckets"


class Group:
    """A process group of torch.distributed: the name by which it is found, its global ranks, and a description.

    It does not contain the rank of this process, so that equal programs have equal texts on all ranks. If ranks compare
    their collectives as they start (`runtime/rank_checks.py`), `checked` is the jitted function, and `position` says
    which of the program's collectives in the group this one is, e.g. "1 of 2".
    """

    __slots__ = ("checked", "description", "name", "position", "ranks")

    def __init__(self, name: str, ranks: Sequence[int], description: str = "", checked: str = "", position: str = ""):
        self.name = name
        self.ranks = tuple(ranks)
        self.description = description
        self.checked = checked
        self.position = position

    @property
    def size(self) -> int:
        """The number of processes."""
        return len(self.ranks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and (self.name, self.ranks) == (other.name, other.ranks)

    def __hash__(self) -> int:
        return hash((self.name, self.ranks))

    def __repr__(self) -> str:
        return self._text("")

    def _text(self, more: str) -> str:
        description = f", {self.description!r}" if self.description else ""
        return f"Group({self.name!r}, {_sequence(self.ranks)}{description}{more})"

    def __thunder_text__(self, context: Any) -> str:
        """Return the expression that printed traces contain for the group."""
        context.imports.add("from thunder.core.groups import Group")
        return self._text(f", checked={self.checked!r}, position={self.position!r}" if self.checked else "")


def _sequence(ranks: tuple[int, ...]) -> str:
    """Return the ranks as an expression; evenly spaced ranks, e.g. of a dimension of a mesh, are a `range`."""
    if len(ranks) > 2:
        evenly = range(ranks[0], ranks[-1] + 1, ranks[1] - ranks[0]) if ranks[1] > ranks[0] else range(0)
        if tuple(evenly) == ranks:
            step = "" if evenly.step == 1 else f", {evenly.step}"
            return f"range({evenly.start}, {evenly.stop}{step})"
    return repr(ranks)


# A group of one process. Its collectives need no communication.
ONE_RANK = Group("", (0,), "one rank")
