# SPDX-License-Identifier: Apache-2.0
"""Choose the gathered parameters (`fully_shard`) that backward keeps, although torch would reshard them.

Backward gathers the parameters of a unit again (`prims.gather_shards`), which rematerialization does instead of keeping
them (`passes/remat.py`). With a budget, units whose forward is last keep them: they wait for their backward the
shortest. A unit that does not fit is left out, and units before it may still fit.

Contract: the choice depends only on the order of the gathers and on the sizes of the whole parameters, in the dtype in
which they are gathered. These are equal on all ranks, even if the shapes of the ranks' data differ, so all ranks run
the same collectives. At no time do the kept parameters of a program have more bytes than the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunder.core import prims
from thunder.core.groups import KEPT, UNIT_NAMES
from thunder.core.nbytes import bytes_of, in_bytes
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace

__all__ = ["KeptParameters", "keep_parameters"]


class KeptParameters:
    """The budget of a program, and what its backward programs, or the backward parts of a step, keep.

    `budget` is a number of bytes. "auto" means the size of the largest unit that backward gathers again.
    """

    def __init__(self, budget: int | str, units: dict[str, str]):
        self.budget = budget
        self._units = units
        self._bytes: dict[frozenset[str], int] = {}  # that each backward part of a step keeps
        self._lines: list[str] = []  # of the report

    def choose(
        self,
        gathers: Sequence[tuple[int, BoundSymbol]],
        part: frozenset[str] = frozenset(),
        ends: Mapping[frozenset[str], int] = {},
    ) -> list[BoundSymbol]:
        """Return the gathers whose results a backward keeps, given all that it needs with their positions.

        A step has several backward parts, which are known by the values that they compute. `ends` has the positions at
        which those before `part` end: a gather before such an end is kept at the same time as what that part keeps.
        """
        sizes = {id(op): _size(op) for _, op in gathers}
        budget = max(sizes.values(), default=0) if isinstance(self.budget, str) else self.budget
        chosen: list[BoundSymbol] = []
        total = 0
        for position, op in sorted(gathers, key=lambda found: found[0], reverse=True):
            others = sum(self._bytes.get(other, 0) for other, end in ends.items() if position < end)
            if total + others + sizes[id(op)] <= budget:
                total += sizes[id(op)]
                chosen.append(op)
        self._bytes[part] = total
        self._lines += [self._line(chosen, len(gathers))] if gathers else []
        return chosen

    def report(self) -> list[str]:
        """Return lines for `thunder.explain`: one for all backward parts that keep the same."""
        return list(dict.fromkeys(self._lines))

    def _line(self, chosen: Sequence[BoundSymbol], units: int) -> str:
        limit = "the size of the largest unit" if isinstance(self.budget, str) else in_bytes(self.budget)
        kept = "".join(f"; {self._name(op)}: {in_bytes(_size(op))}" for op in chosen)
        return f"backward keeps the parameters of {len(chosen)} of {units} units (at most {limit}){kept}"

    def _name(self, op: BoundSymbol) -> str:
        return next((self._units[name] for name in op.out_names if name in self._units), op.out_names[0])


def keep_parameters(trace: Trace, budget: int | str) -> None:
    """Let the backward of a program keep gathered parameters of at most `budget` bytes. With 0, it keeps none."""
    if budget != 0:
        trace.info[KEPT] = KeptParameters(budget, trace.info.get(UNIT_NAMES, {}))


def _size(op: BoundSymbol) -> int:
    """Return the bytes of gathered parameters, given an operation that gathers and unpacks them."""
    own = bytes_of(op.output) if op.sym is prims.gather_shards else 0
    return own + sum(map(_size, op.subsymbols))
