# SPDX-License-Identifier: Apache-2.0
"""Merge collectives that a program runs one by one, e.g. an all-reduce for each gradient, into few larger ones.

Operands are concatenated, and results are views of the result. A bucket holds collectives of the same kind, group,
reduction, root, dtype and device, as far as none of them needs the result of another one, up to a number of bytes. They
are in the order in which their operands are computed, so that the first bucket starts early.
Collectives that belong to a unit (`core.groups.UNITS`) are merged with those of their unit only, so that e.g. the
buckets of DistributedDataParallel stay as they are.

In which order a backend adds the values of more than two ranks depends on the place of an element in a bucket. Without
`reassociate`, only collectives are merged whose results keep all bits.

Contract: the buckets depend on the trace only. All ranks must merge alike: `agree` compares the plans.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from thunder.core import prims
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.groups import UNITS, Group
from thunder.core.langctx import set_langctx
from thunder.core.nbytes import bytes_of
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace, construct
from thunder.passes.overlap import barrier_free, group_of, is_start, is_wait, start_early, wait_late
from thunder.torch import cat, clone, reshape

__all__ = ["Bucket", "bucketed", "group_of"]

_VIEWS = (OpTags.VIEW_OP, OpTags.SHAPE_OP)
_MERGED = frozenset({"all_reduce", "broadcast", "all_gather", "reduce_scatter"})


class Bucket(NamedTuple):
    """Collectives that are merged, in their order."""

    starts: list[BoundSymbol]

    @property
    def group(self) -> Group:
        """The process group."""
        return group_of(self.starts[0])

    def describe(self) -> str:
        """Return the text of the plan, which is equal on all ranks."""
        first = self.starts[0]
        return f"{first.sym.name} of {[list(op.args[0].shape) for op in self.starts]} {first.args[0].dtype}"


def bucketed(
    trace: Trace,
    limit: int,
    *,
    reassociate: bool = False,
    agree: Callable[[Trace, Sequence[Bucket]], bool] = lambda trace, buckets: True,
) -> Trace:
    """Return the trace with collectives merged into buckets of at most `limit` bytes, or the trace itself.

    `agree(trace, buckets)` says whether all ranks run collectives in these buckets. It gets none if nothing is merged.
    """
    if sum(map(is_start, trace.bound_symbols)) < 2:
        return trace
    waits, units = _only_waits(trace), trace.info.get(UNITS, {})
    may_merge = partial(_may_merge, reassociate=reassociate, waits=waits)
    # In the order in which operands are computed: a loop over parameters reduces the gradients in the opposite order.
    stretches = [start_early(wait_late(part), may_pass=may_merge) for part in barrier_free(trace.bound_symbols)]
    found = [bucket for stretch in stretches for bucket in _buckets(stretch, limit, may_merge, units)]
    merged = [bucket for bucket in found if len(bucket.starts) > 1]
    if not agree(trace, found if merged else []) or not merged:
        return trace
    merging = _Merging(merged, _returned(trace))
    with construct(trace, "Bucket Collectives") as out, tracectx(out), set_langctx("torch"):
        for stretch in stretches:
            lines = [line for op in stretch if (line := merging.replacement(op, out))]
            out.bound_symbols += _start_late(lines)
    return out


def _start_late(lines: Sequence[list[BoundSymbol]]) -> list[BoundSymbol]:
    """Move the start of each collective to the first wait for it or for a later one, where it needs the least memory.

    The pass that overlaps communication then decides how early it starts (`overlap.py`). The first of `lines` stays the
    first.
    """
    done: list[BoundSymbol] = [op for line in lines[:1] for op in line]
    waiting: list[list[BoundSymbol]] = []
    for line in lines[1:]:
        if is_start(line[-1]):
            waiting.append(line)
            continue
        read = {name for op in line for name in op.arg_names}
        needed = max((i for i, start in enumerate(waiting) if not read.isdisjoint(start[-1].out_names)), default=-1) + 1
        done += [op for start in waiting[:needed] for op in start]
        del waiting[:needed]
        if line[-1].sym.is_return:
            done += [op for start in waiting for op in start]
            waiting.clear()
        done += line
    return done + [op for start in waiting for op in start]


def _only_waits(trace: Trace) -> dict[str, str]:
    """Return the results of collectives that a wait reads, and nothing else, with the results of the waits."""
    reads = Counter(name for op in trace.bound_symbols for name in op.arg_names)
    waits = {op.arg_names[0]: op.out_names[0] for op in trace.bound_symbols if is_wait(op) and op.out_names}
    return {name: result for name, result in waits.items() if reads[name] == 1}


def _returned(trace: Trace) -> set[str]:
    """Return the values that the program returns, and those of which it returns views."""
    found: set[str] = set()
    for op in reversed(trace.bound_symbols):
        shares = op.sym.is_return or any(tag in op.sym.tags for tag in _VIEWS)
        if shares and (op.sym.is_return or not found.isdisjoint(op.out_names)):
            found.update(op.arg_names)
    return found


# -- the plan ---------------------------------------------------------------------------------------------------------
def _buckets(
    operations: Sequence[BoundSymbol], limit: int, may_merge: Callable[[BoundSymbol], bool], units: dict[str, Any]
) -> list[Bucket]:
    """Return the collectives of a part of a program in buckets, in the order in which these start.

    A bucket ends where the program waits for one of its collectives. Many contain a single collective.
    """
    found: list[Bucket] = []
    open_buckets: dict[Any, tuple[Bucket, int]] = {}
    key_of: dict[str, Any] = {}  # of the collectives in open buckets
    for op in operations:
        for name in op.arg_names:
            open_buckets.pop(key_of.get(name), None)
        if not is_start(op):
            continue
        if not may_merge(op):
            found.append(Bucket([op]))
            continue
        options = [x for x in op.args[1:] if not isinstance(x, Group)]
        operand = op.args[0]
        unit = units.get(op.out_names[0])
        key = (op.sym.name, *options, group_of(op).name, operand.dtype, str(operand.device), unit)
        size = max(bytes_of(operand), bytes_of(op.output))
        bucket, full = open_buckets.get(key, (None, 0))
        if bucket is None or full + size > limit:
            bucket, full = Bucket([]), 0
            found.append(bucket)
        bucket.starts.append(op)
        open_buckets[key] = bucket, full + size
        key_of[op.out_names[0]] = key
    position = {id(op): i for i, op in enumerate(operations)}
    return sorted(found, key=lambda bucket: position[id(bucket.starts[-1])])


def _may_merge(op: BoundSymbol, reassociate: bool, waits: dict[str, str]) -> bool:
    operand = op.args[0] if op.args else None
    if op.sym.name not in _MERGED or not isinstance(operand, TensorProxy) or op.out_names[0] not in waits:
        return False
    if not all(type(n) is int for n in operand.shape) or 0 in operand.shape:
        return False
    return reassociate or _is_exact(op, operand)


def _is_exact(op: BoundSymbol, operand: TensorProxy) -> bool:
    """Check whether the bits of a result do not depend on the place of an element in the collective."""
    if op.sym.name in ("all_gather", "broadcast"):
        return True
    reduction = op.args[1]
    if not is_inexact_dtype(operand.dtype):
        return bool(reduction != "avg")
    return group_of(op).size == 2 and reduction in ("sum", "avg", "product")  # a + b is b + a


# -- merging ----------------------------------------------------------------------------------------------------------
class _Merging:
    """Replaces the collectives of buckets, and the waits for them."""

    def __init__(self, buckets: Sequence[Bucket], returned: set[str]):
        self._returned = returned
        self._bucket = {op.out_names[0]: bucket for bucket in buckets for op in bucket.starts}
        # By the first collective of a bucket: the merged result in flight, and after the wait.
        self._flat: dict[str, Any] = {}
        self._waited: dict[str, Any] = {}

    def replacement(self, op: BoundSymbol, out: Trace) -> list[BoundSymbol]:
        """Return what replaces an operation in the new trace, with the operations that pack a merged collective."""
        name = op.out_names[0] if is_start(op) and op.out_names else op.arg_names[0] if is_wait(op) else ""
        bucket = self._bucket.get(name)
        if bucket is None:
            return [op]
        first, last = bucket.starts[0].out_names[0], bucket.starts[-1]
        with out.scope() as made:
            if is_wait(op):
                if first not in self._waited:
                    self._waited[first] = prims.wait(self._flat[first])
                part = _part(bucket, self._waited[first], name)
                if op.out_names[0] in self._returned:
                    part = clone(part)  # results do not share memory
                made[:] = [new.substitute({part.name: op.output}) for new in made]
            elif op is last:
                self._flat[first] = _start(bucket)
        for new in made:
            new.source = new.source or op.source
        return made


def _start(bucket: Bucket) -> Any:
    """Record the merged collective, and return its result in flight."""
    first, operands = bucket.starts[0], [op.args[0] for op in bucket.starts]
    if first.sym.name == "reduce_scatter":  # the parts of each rank are consecutive
        flat = reshape(cat([reshape(x, (bucket.group.size, -1)) for x in operands], 1), (-1,))
    else:
        flat = cat([reshape(x, (-1,)) for x in operands])
    return first.sym(flat, *first.args[1:])


def _part(bucket: Bucket, flat: Any, name: str) -> Any:
    """Return one collective's part of the merged result."""
    offset = 0
    is_gather = bucket.starts[0].sym.name == "all_gather"
    ranks = bucket.group.size if is_gather else 1
    for op in bucket.starts:
        count = math.prod(op.output.shape) // ranks
        if op.out_names[0] == name:
            break
        offset += count
    if is_gather:  # the parts of all ranks follow each other
        return reshape(clone(reshape(flat, (ranks, -1))[:, offset : offset + count]), op.output.shape)
    return reshape(flat[offset : offset + count], op.output.shape)
