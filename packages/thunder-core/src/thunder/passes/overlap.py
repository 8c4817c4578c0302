# SPDX-License-Identifier: Apache-2.0
"""Overlap of communication and computation: collectives start early, and the program waits for them late.

A collective starts as soon as its operands are computed, together with the light operations that pack them, e.g. the
concatenation of gradients. A wait moves to the first use of its result, together with the light operations that unpack
it, e.g. views of the gradients. A collective in flight keeps memory: its result exists from the start on, and many
kinds keep their operand until the wait. A move goes only as far as the predicted memory of each line that it passes,
with the bytes in flight, stays within a budget: the predicted peak of the program before the pass, and an allowance.

Gathers of sharded parameters start one ahead: before all collectives that follow the wait for the gather before. In
backward, a unit's parameters are then in flight while the unit before computes, as with torch's prefetch, instead of
after its gradients are reduced. A reduction of what another one has reduced, e.g. among the replicas of shards, starts
before the next reduction: if it followed at once, the program would have to wait for the first of the two. It passes
gathers of shards only. Both depend on the order of lines only, so that all ranks do the same.

Contract: the program computes the same outputs. Other collectives start in the same order. Nothing moves across an
operation that writes to memory or has a side effect. Only light operations on values move.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from thunder.core import prims
from thunder.core.groups import Group
from thunder.core.nbytes import bytes_of
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace, construct
from thunder.passes.postponing import innermost

__all__ = [
    "ALLOWANCE",
    "allowance_of",
    "barrier_free",
    "group_of",
    "is_light",
    "is_start",
    "is_wait",
    "overlapped",
    "start_early",
    "wait_late",
]

#: The least allowance. Otherwise it is the size of the largest collective, so that one can always be in flight.
ALLOWANCE = 32 << 20

_LIGHT = frozenset({OpTags.ELEMENTWISE_OP, OpTags.VIEW_OP, OpTags.SHAPE_OP})
_ORDERED = frozenset({OpTags.IN_PLACE_OP, OpTags.SIDE_EFFECT})
# The operand is copied into the result, and is not needed once the collective has started.
_COPIES_OPERAND = frozenset({"all_reduce", "reduce", "broadcast", "receive"})


def overlapped(trace: Trace, peaks: Callable[[Trace], Sequence[int]], allowance: int | None = None) -> Trace:
    """Return the trace with collectives moved, or the trace itself if it has none.

    `peaks(trace)` predicts the peak of live bytes at each operation. `allowance` are the bytes that the pass may add to
    the predicted peak of the program. None means the size of the largest collective, and at least `ALLOWANCE`.
    """
    starts = [op for op in trace.bound_symbols if is_start(op)]
    if not starts:
        return trace
    most = allowance_of(starts, allowance)
    if allowance != 0:
        trace = _with_gathers_ahead(trace)
        trace = _with_chains_late(trace)
    # The prediction takes time, and is not needed if all collectives may be in flight at the same time.
    together = sum(map(_flying_bytes, starts)) + _packed_bytes(trace)
    memory = _Memory(trace, peaks(trace), most) if together > most else None
    with construct(trace, "Overlap Communication") as out:
        for stretch in barrier_free(trace.bound_symbols):
            out.bound_symbols += start_early(wait_late(stretch, memory), memory, most_gathered=most)
    return out


def allowance_of(starts: Sequence[BoundSymbol], given: int | None) -> int:
    """Return the bytes that a pass may add to the predicted peak of a program with these collectives."""
    return max(*map(_flying_bytes, starts), ALLOWANCE) if given is None else given


def is_start(op: BoundSymbol) -> bool:
    """Check whether an operation starts a collective."""
    return OpTags.COLLECTIVE in op.sym.tags and op.sym.name != "wait"


def is_wait(op: BoundSymbol) -> bool:
    """Check whether an operation waits for a collective."""
    return OpTags.COLLECTIVE in op.sym.tags and op.sym.name == "wait"


def group_of(op: BoundSymbol) -> Group:
    """Return the process group of a collective."""
    return next(x for x in op.args if isinstance(x, Group))


def is_light(op: BoundSymbol) -> bool:
    """Check whether an operation may move with the collective whose operands it packs."""
    if op.has_effect or op.sym.is_structural:
        return False
    return all(not _LIGHT.isdisjoint(part.sym.tags) or part.sym is prims.cat for part in innermost(op))


def _is_view(op: BoundSymbol) -> bool:
    return all(OpTags.VIEW_OP in part.sym.tags for part in innermost(op))


def barrier_free(operations: Sequence[BoundSymbol]) -> list[list[BoundSymbol]]:
    """Divide a program at the operations that nothing moves across. Each is the first of its stretch."""
    found: list[list[BoundSymbol]] = [[]]
    for op in operations:
        parts = (op, *innermost(op)) if op.has_effect and not op.sym.is_return else ()
        if any(not _ORDERED.isdisjoint(part.sym.tags) for part in parts):
            found.append([])
        found[-1].append(op)
    return found


# -- memory -----------------------------------------------------------------------------------------------------------
def _result_bytes(op: BoundSymbol) -> int:
    return sum(map(bytes_of, op.flat_outs))


def _flying_bytes(start: BoundSymbol) -> int:
    """Return the bytes that a collective in flight keeps."""
    return _result_bytes(start) + _held_bytes(start)


def _held_bytes(start: BoundSymbol) -> int:
    """Return the bytes of the operand that a collective keeps until the wait."""
    return 0 if start.sym.name in _COPIES_OPERAND else sum(map(bytes_of, start.flat_args))


def _packed_bytes(trace: Trace) -> int:
    """Return the bytes of the operands that light operations of the program compute."""
    operands = {name for op in trace.bound_symbols if is_start(op) for name in op.arg_names}
    packing = [op for op in trace.bound_symbols if not operands.isdisjoint(op.out_names) and is_light(op)]
    return sum(map(_result_bytes, packing))


class _Memory:
    """The predicted bytes at each operation, with those of collectives in flight, and the budget."""

    def __init__(self, trace: Trace, peaks: Sequence[int], allowance: int):
        operations = trace.bound_symbols
        self._bytes = {id(op): n for op, n in zip(operations, peaks)}
        self._starts = {name: op for op in operations if is_start(op) for name in op.out_names}
        self._last_use = {name: i for i, op in enumerate(operations) for name in op.arg_names}
        self._position = {id(op): i for i, op in enumerate(operations)}
        self._inputs = {p.name for p in trace.args}
        for op in operations:
            start = self._starts.get(op.arg_names[0]) if is_wait(op) and op.arg_names else None
            if start is not None:
                between = operations[self._position[id(start)] + 1 : self._position[id(op)]]
                self.add(between, self.held_after(op, between))
        self.budget = max(self._bytes.values(), default=0) + allowance

    def held_after(self, wait: BoundSymbol, passed: Sequence[BoundSymbol]) -> list[int]:
        """Return the bytes that an operand takes at each operation that a wait passes: none while it is in use."""
        start = self._starts.get(wait.arg_names[0]) if wait.arg_names else None
        operands = [] if start is None or start.sym.name in _COPIES_OPERAND else start.flat_args
        found = [0] * len(passed)
        for p in operands:
            name = getattr(p, "name", "")
            if name not in self._inputs:
                last = self._last_use.get(name, -1)
                size = bytes_of(p)
                found = [n + (size if self._position[id(op)] > last else 0) for n, op in zip(found, passed)]
        return found

    def last_within(self, operations: Sequence[BoundSymbol], moving: Sequence[int], last: int) -> int:
        """Return how far a wait and what unpacks it may move toward position `last`, and add the bytes of the move."""
        wait, *unpacking = [operations[j] for j in moving]
        made = sum(_result_bytes(op) for op in unpacking if not _is_view(op))
        longer = max(0, _result_bytes(wait) - made) if made else 0  # the result lives longer, and its copies shorter
        positions = [j for j in range(moving[0] + 1, last) if j not in moving]
        passed = [operations[j] for j in positions]
        for j, op, n in zip(positions, passed, self.held_after(wait, passed)):
            if not self.allows(op, n + longer):
                return j
            self.add([op], [n + longer])
        return last

    def allows(self, op: BoundSymbol, more: int) -> bool:
        """Check whether `more` bytes at an operation are within the budget."""
        return more == 0 or self._bytes[id(op)] + more <= self.budget

    def add(self, passed: Iterable[BoundSymbol], more: Iterable[int]) -> None:
        """Add the bytes of a collective in flight to the operations that it has passed."""
        for op, n in zip(passed, more):
            self._bytes[id(op)] += n


# -- moves ------------------------------------------------------------------------------------------------------------
def _with_gathers_ahead(trace: Trace) -> Trace:
    """Let each gather of shards start before the collectives that follow the wait for the gather before it."""
    if sum(_gathers_shards(op) for op in trace.bound_symbols) < 2:
        return trace
    with construct(trace, "Gather Shards Ahead") as out:
        for stretch in barrier_free(trace.bound_symbols):
            out.bound_symbols += _gathers_ahead(stretch)
    return out


def _gathers_shards(op: BoundSymbol) -> bool:
    return op.sym is prims.gather_shards or op.sym.name == prims.gather_shards.name


def _gathers_ahead(operations: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    producer = _producers(operations)
    waited = {op.arg_names[0]: i for i, op in enumerate(operations) if is_wait(op)}
    starts = [i for i, op in enumerate(operations) if is_start(op)]
    gathers = [i for i in starts if _gathers_shards(operations[i])]
    before: dict[int, list[int]] = {}  # by position: what moves to before it
    moved: dict[int, int] = {}
    for last, i in pairwise(gathers):
        wait = waited.get(operations[last].out_names[0], i)
        at = next(j for j in starts if j > wait) if wait < i else i
        packing, ready = _packing(operations, i, producer, moved)
        if ready < at < i:
            _move(before, moved, [j for j in packing if j > at] + [i], at)
    return _in_order(operations, before, moved)


def _with_chains_late(trace: Trace) -> Trace:
    """Let a collective of what another one has computed start before the next reduction, with what packs it."""
    stretches = barrier_free(trace.bound_symbols)
    late = [_chains_late(stretch) for stretch in stretches]
    if all(map(operator.is_, itertools.chain(*late), trace.bound_symbols)):
        return trace
    with construct(trace, "Start Chained Collectives Late") as out:
        out.bound_symbols += [op for stretch in late for op in stretch]
    return out


def _chains_late(operations: list[BoundSymbol]) -> list[BoundSymbol]:
    producer, readers = _producers(operations), _readers(operations)
    waits = {op.arg_names[0]: i for i, op in enumerate(operations) if is_wait(op)}
    starts = [i for i, op in enumerate(operations) if is_start(op) and not _gathers_shards(op)]
    before: dict[int, list[int]] = {}  # by position: what moves to before it
    moved: dict[int, int] = {}
    for i, following in pairwise(starts):
        packing, ready = _packing(operations, i, producer, moved)
        wait = waits.get(operations[i].out_names[0])
        if ready < 0 or wait is None or wait > following or not is_wait(operations[ready]):
            continue
        unpacking, used = _unpacking(operations, wait, readers)
        moving = {i, wait, *unpacking}
        for j in reversed(packing):  # a value that others read, too, is computed where it was
            if moving.issuperset(k for name in operations[j].out_names for k in readers.get(name, ())):
                moving.add(j)
        if max(moving) < following <= used:
            _move(before, moved, sorted(moving), following)
    return _in_order(operations, before, moved)


def _readers(operations: Sequence[BoundSymbol]) -> dict[str, list[int]]:
    """Return the positions of the operations that read each value."""
    found: dict[str, list[int]] = {}
    for i, op in enumerate(operations):
        for name in op.arg_names:
            found.setdefault(name, []).append(i)
    return found


def wait_late(operations: Sequence[BoundSymbol], memory: _Memory | None = None) -> list[BoundSymbol]:
    """Move each wait toward the first use of its result, with what unpacks it. What is not used here stays.

    If memory counts, it moves at most to the next wait for a later collective of its group, when both are complete.
    """
    readers = _readers(operations)
    before: dict[int, list[int]] = {}  # by position: what moves to before it
    moved: dict[int, int] = {}
    for i, op in enumerate(operations):
        if not is_wait(op):
            continue
        unpacking, last = _unpacking(operations, i, readers)
        if memory is not None:
            last = min(last, _next_wait(operations, i))
            last = memory.last_within(operations, [i, *unpacking], last)
        if last > i + 1:
            _move(before, moved, [i, *[j for j in unpacking if j < last]], last)
    return _in_order(operations, before, moved)


def _unpacking(operations: Sequence[BoundSymbol], wait: int, readers: dict[str, list[int]]) -> tuple[list[int], int]:
    """Return the light operations that read only the result of a wait, and the first position where others read it."""
    found = {wait}
    uses: set[int] = set()
    names = set(operations[wait].out_names)
    stack = [wait]
    while stack:
        for name in operations[stack.pop()].out_names:
            for j in readers.get(name, ()):
                if j not in found and is_light(operations[j]) and names.issuperset(operations[j].arg_names):
                    found.add(j)
                    names.update(operations[j].out_names)
                    stack.append(j)
                elif j not in found:
                    uses.add(j)
    end = len(operations) - operations[-1].sym.is_return
    return sorted(found - {wait}), min(uses - found, default=wait if len(found) == 1 else end)


def _next_wait(operations: Sequence[BoundSymbol], wait: int) -> int:
    """Return the position of the next wait for a collective of the same group that starts later than this one."""
    starts = {op.out_names[0]: i for i, op in enumerate(operations) if is_start(op)}
    start = starts.get(operations[wait].arg_names[0])
    group = None if start is None else group_of(operations[start])
    for j in range(wait + 1, len(operations)):
        other = starts.get(operations[j].arg_names[0]) if is_wait(operations[j]) else None
        if start is not None and other is not None and other > start and group_of(operations[other]) == group:
            return j
    return len(operations)


def start_early(
    operations: Sequence[BoundSymbol],
    memory: _Memory | None = None,
    may_pass: Callable[[BoundSymbol], bool] | None = None,
    most_gathered: int | None = None,
) -> list[BoundSymbol]:
    """Move the start of each collective toward where its operands are computed, behind the start before it.

    With `may_pass`, only the collectives for which it is true move, and they pass each other, but no other collective.
    Gathers of shards move only as far as `most_gathered` bytes of them are in flight. Their operands are inputs: to
    pack the parameters of all units first would delay the computation.
    """
    producer = _producers(operations)
    flying = _flying_gathers(operations)
    before: dict[int, list[int]] = {}  # by position: what moves to before it
    moved: dict[int, int] = {}  # what moves, and to before which position
    earliest = 1  # nothing moves across the first operation of a stretch
    for i, op in enumerate(operations):
        if not is_start(op):
            continue
        packing, ready = _packing(operations, i, producer, moved)
        at = max(ready + 1, earliest)
        if most_gathered is not None and _gathers_shards(op):
            at = max(at, _first_behind(flying, i, most_gathered))
        if memory is not None:
            at = _first_within(memory, operations, [*[j for j in packing if j >= at], i], at)
        if may_pass is None:
            earliest = at if at < i else i + 1
        elif not may_pass(op):
            at, earliest = i, i + 1
        if at < i:
            _move(before, moved, [*[j for j in packing if j >= at], i], at)
    return _in_order(operations, before, moved)


def _flying_gathers(operations: Sequence[BoundSymbol]) -> dict[int, tuple[int, int]]:
    """Return the gathers of shards by position, with the positions of their waits and their bytes."""
    waits = {op.arg_names[0]: i for i, op in enumerate(operations) if is_wait(op)}
    return {
        i: (waits.get(op.out_names[0], len(operations)), _result_bytes(op))
        for i, op in enumerate(operations)
        if _gathers_shards(op)
    }


def _first_behind(flying: dict[int, tuple[int, int]], start: int, most: int) -> int:
    """Return the first position where the gathers in flight, with this one, have at most `most` bytes."""
    total = flying[start][1]
    for i in reversed([i for i in flying if i < start]):
        wait, size = flying[i]
        total += size
        if total > most:
            return wait + 1
    return 0


def _producers(operations: Sequence[BoundSymbol]) -> dict[str, int]:
    """Return where each value is computed, or where an input is declared."""
    found = {name: i for i, op in enumerate(operations) for name in op.out_names}
    for i, op in enumerate(operations):  # the declaration of an input comes before its uses
        if OpTags.UNPACK_OP in op.sym.tags:
            found.update(dict.fromkeys(op.arg_names, i))
    return found


def _move(before: dict[int, list[int]], moved: dict[int, int], moving: Sequence[int], at: int) -> None:
    before.setdefault(at, []).extend(moving)
    moved.update(dict.fromkeys(moving, at))


def _in_order(
    operations: Sequence[BoundSymbol], before: dict[int, list[int]], moved: dict[int, int]
) -> list[BoundSymbol]:
    """Return the operations, with those in `moved` where `before` has them."""
    done: list[BoundSymbol] = []
    for i, op in enumerate(operations):
        done += [operations[j] for j in before.get(i, ())]
        if i not in moved:
            done.append(op)
    return done + [operations[j] for j in before.get(len(operations), ())]


def _packing(
    operations: Sequence[BoundSymbol], start: int, producer: dict[str, int], moved: dict[int, int]
) -> tuple[list[int], int]:
    """Return the operations that pack the operands of a collective, and the last that it needs and that may not move.

    What has moved with another collective does not move again.
    """
    needed: set[int] = set()
    last = -1
    stack = [start]
    while stack:
        for name in operations[stack.pop()].arg_names:
            i = producer.get(name)
            if i is None or i in needed:
                continue
            if i in moved:
                last = max(last, moved[i] - 1)
            elif is_light(operations[i]):
                needed.add(i)
                stack.append(i)
            else:
                last = max(last, i)
    return sorted(needed), last


def _first_within(memory: _Memory, operations: Sequence[BoundSymbol], moving: Sequence[int], earliest: int) -> int:
    """Return the first position to which a start and its packing may move within the budget, and add their bytes."""
    more = sum(_result_bytes(operations[j]) for j in moving)
    at = moving[-1]
    while at > earliest and (at - 1 in moving or memory.allows(operations[at - 1], more)):
        at -= 1
    passed = operations[at : moving[-1]]
    memory.add(passed, [more] * len(passed))
    return at
