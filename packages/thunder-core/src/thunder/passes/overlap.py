# SPDX-License-Identifier: Apache-2.0
"""Overlap of communication and computation: collectives start early, and the program waits for them late.

A collective starts as soon as its operands are computed, together with the light operations that pack them, e.g. the
concatenation of gradients. A wait moves to the first use of its result.

Contract: the program computes the same outputs. Collectives start in the same order. Nothing moves across an operation
that writes to memory or has a side effect. Only light operations on values move forward.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder.core import prims
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace, construct
from thunder.passes.postponing import innermost

__all__ = ["overlapped"]

_LIGHT = frozenset({OpTags.ELEMENTWISE_OP, OpTags.VIEW_OP, OpTags.SHAPE_OP})
_ORDERED = frozenset({OpTags.IN_PLACE_OP, OpTags.SIDE_EFFECT})


def overlapped(trace: Trace) -> Trace:
    """Return the trace with collectives moved, or the trace itself if it has none."""
    if not any(map(_is_collective, trace.bound_symbols)):
        return trace
    with construct(trace, "Overlap Communication") as out:
        for stretch in _stretches(trace.bound_symbols):
            out.bound_symbols += _start_early(_wait_late(stretch))
    return out


def _is_collective(op: BoundSymbol) -> bool:
    return OpTags.COLLECTIVE in op.sym.tags


def _is_wait(op: BoundSymbol) -> bool:
    return _is_collective(op) and op.sym.name == "wait"


def _stretches(operations: Sequence[BoundSymbol]) -> list[list[BoundSymbol]]:
    """Divide a program at the operations that nothing moves across. Each is the first of its stretch."""
    found: list[list[BoundSymbol]] = [[]]
    for op in operations:
        parts = (op, *innermost(op)) if op.has_effect and not op.sym.is_return else ()
        if any(not _ORDERED.isdisjoint(part.sym.tags) for part in parts):
            found.append([])
        found[-1].append(op)
    return found


def _wait_late(operations: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """Move each wait to the first use of its result. A wait whose result is not used here stays."""
    read = {name for op in operations for name in op.arg_names}
    pending: dict[str, BoundSymbol] = {}
    done: list[BoundSymbol] = []
    for op in operations:
        done += [pending.pop(name) for name in dict.fromkeys(op.arg_names) if name in pending]
        if _is_wait(op) and not read.isdisjoint(op.out_names):
            pending[op.out_names[0]] = op
        else:
            done.append(op)
    return done


def _start_early(operations: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """Move the start of each collective to where its operands are computed, behind the start before it."""
    producer = {name: i for i, op in enumerate(operations) for name in op.out_names}
    for i, op in enumerate(operations):  # the declaration of an input comes before its uses
        if OpTags.UNPACK_OP in op.sym.tags:
            producer.update(dict.fromkeys(op.arg_names, i))
    starts = [i for i, op in enumerate(operations) if _is_collective(op) and not _is_wait(op)][::-1]
    emitted: set[int] = set()
    done: list[BoundSymbol] = []
    missing: int | None = None  # an operation that the next start needs, and that may not move

    def emit(i: int) -> None:
        emitted.add(i)
        done.append(operations[i])

    for i in range(len(operations)):
        if i in emitted:
            continue
        emit(i)
        while starts and (missing is None or missing in emitted):
            if starts[-1] in emitted:
                starts.pop()
                continue
            needed, missing = _packing(operations, starts[-1], producer, emitted)
            if missing is not None:
                break
            for j in needed:
                emit(j)
            emit(starts.pop())
    return done


def _packing(
    operations: Sequence[BoundSymbol], start: int, producer: dict[str, int], emitted: set[int]
) -> tuple[list[int], int | None]:
    """Return the operations that pack the operands of a collective, and one that it needs and that may not move."""
    needed: set[int] = set()
    stack = [start]
    while stack:
        for name in operations[stack.pop()].arg_names:
            i = producer.get(name)
            if i is None or i in emitted or i in needed:
                continue
            if not _is_light(operations[i]):
                return [], i
            needed.add(i)
            stack.append(i)
    return sorted(needed), None


def _is_light(op: BoundSymbol) -> bool:
    if op.has_effect or op.sym.is_structural:
        return False
    return all(not _LIGHT.isdisjoint(part.sym.tags) or part.sym is prims.cat for part in innermost(op))
