# SPDX-License-Identifier: Apache-2.0
"""Postpone operations past the decisions that do not need them, so that they can be fused with what comes after.

A fusion may not contain a decision (`decide`), which ends a call that belongs to another path. Of the operations before
it, only those that compute its number stay there. A call that ends has then also computed less.

Contract: the program computes the same outputs. Decisions, random draws and other operations with an effect keep their
order. So do opaque operations, reads of numbers from tensors, and operations that read positions from tensors, because
they may fail. No operation moves past one that writes to memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from thunder.core import prims
from thunder.core.dtypes import bool8, is_inexact_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace, construct

__all__ = ["cannot_fail", "innermost", "is_copy", "may_fail", "postponed_past_decisions"]

_PURE = frozenset({OpTags.ELEMENTWISE_OP, OpTags.REDUCTION_OP, OpTags.MATMUL_OP, OpTags.SHAPE_OP})
_WITHOUT_POSITIONS = frozenset({prims.cat, prims.pad, prims.slice_scatter})
_ROWS = frozenset({prims.embedding, prims.embedding_backward})
_HARMLESS = frozenset({prims.clone, prims.full, prims.size, prims.item, prims.items})
_ORDERED = frozenset({OpTags.IN_PLACE_OP, OpTags.SIDE_EFFECT})


def postponed_past_decisions(trace: Trace) -> Trace:
    """Return the trace with operations postponed, or the trace itself if it contains no decision."""
    if all(op.sym is not prims.decide for op in trace.bound_symbols):
        return trace
    waiting: dict[int, BoundSymbol] = {}  # by position, in order
    producers: dict[str, int] = {}
    done: list[BoundSymbol] = []

    def run_what_it_needs(op: BoundSymbol) -> None:
        found: set[int] = set()
        stack = [op]
        while stack:
            reader = stack.pop()
            positions = {producers.get(name, -1) for name in (*reader.arg_names, *reader.inner_numbers)}
            new = positions.intersection(waiting) - found
            found |= new
            stack += [waiting[i] for i in new]
        done.extend(waiting.pop(i) for i in sorted(found))

    with construct(trace, "Postpone Past Decisions") as out:
        for position, op in enumerate(trace.bound_symbols):
            producers.update(dict.fromkeys(op.out_names, position))
            if _may_wait(op):
                waiting[position] = op
                continue
            if _is_barrier(op):
                done += waiting.values()
                waiting.clear()
            run_what_it_needs(op)
            done.append(op)
        out.bound_symbols[:] = done
    return out


def _is_barrier(op: BoundSymbol) -> bool:
    """Check whether an operation may change what others compute, or be seen by others than the program."""
    return any(part.sym is not prims.decide and not _ORDERED.isdisjoint(part.sym.tags) for part in innermost(op))


def _may_wait(op: BoundSymbol) -> bool:
    if op.has_effect or op.sym.is_structural or op.sym.is_fusion:
        return False
    return not may_fail(op) and not any(map(_is_read, innermost(op)))


def _is_read(op: BoundSymbol) -> bool:
    return op.sym in (prims.item, prims.items) or OpTags.OPAQUE_OP in op.sym.tags


def innermost(op: BoundSymbol) -> Iterator[BoundSymbol]:
    """Yield the operations of a decomposition that have no decomposition themselves."""
    if op.subsymbols:
        for part in op.subsymbols:
            yield from innermost(part)
    else:
        yield op


def cannot_fail(op: BoundSymbol) -> bool:
    """Check whether a pure operation without decomposition never fails because of values."""
    tags = op.sym.tags
    by_position = op.sym in _ROWS or OpTags.SHAPE_OP in tags
    if OpTags.OPAQUE_OP in tags or (not by_position and _PURE.isdisjoint(tags)):
        return False
    if not by_position or op.sym in _WITHOUT_POSITIONS:
        return True
    read = [x for x in op.flat_args if isinstance(x, TensorProxy)]
    return all(is_inexact_dtype(x.dtype) or _fails_late(x) for x in read[1:])


def _fails_late(positions: TensorProxy) -> bool:
    """Check whether positions outside of a tensor raise no error: on a GPU, they end its use by the process, later."""
    return positions.device.type == "cuda" and positions.dtype is not bool8


def is_copy(op: BoundSymbol) -> bool:
    """Check whether an operation copies a value to an input, or several values to as many inputs."""
    return op.sym is prims.copy_ or (bool(op.subsymbols) and all(part.sym is prims.copy_ for part in op.subsymbols))


def may_fail(op: BoundSymbol) -> bool:
    """Check whether an operation may end the run because of values, apart from arithmetic on numbers."""
    if op.sym.is_return or op.sym is prims.unpack_trivial or op.sym is prims.number or is_copy(op):
        return False
    if op.sym.is_structural and op.sym not in _HARMLESS:
        return True
    if not op.arg_names and not op.has_effect:  # e.g. `torch.tensor(1.0)`: it depends on no value
        return False
    return not all(_is_harmless(part) for part in innermost(op))


def _is_harmless(op: BoundSymbol) -> bool:
    sym = op.sym
    if sym in _HARMLESS or (OpTags.VIEW_OP in sym.tags and OpTags.OPAQUE_OP not in sym.tags):
        return True
    return not sym.must_stay and cannot_fail(op)
