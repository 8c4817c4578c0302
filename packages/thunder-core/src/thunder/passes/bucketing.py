# SPDX-License-Identifier: Apache-2.0
"""Merge collectives that a program runs one by one, e.g. an all-reduce for each gradient, into few larger ones.

Operands are concatenated, and results are views of the result. A bucket holds collectives of the same kind, group,
reduction, root, dtype and device, as far as none of them needs the result of another one, up to a number of bytes. They
are in the order in which their operands are computed, so that the first bucket starts early.
Collectives that belong to a unit (`core.groups.UNITS`) are merged with those of their unit only, so that e.g. the
buckets of DistributedDataParallel stay as they are.

A bucket needs memory: the operands live until the last of them is computed, and are copied; the results live until the
last of them is used. If the predicted peak of the program would grow by more than an allowance, which is that of
overlap (`overlap.py`), the limit of all buckets is halved until it does not, or until nothing is merged.

In which order a backend adds the values of more than two ranks depends on the place of an element in a bucket. Without
`reassociate`, only collectives are merged whose results keep all bits.

Contract: the buckets depend on the trace and on the limits of the groups only. All ranks must merge alike, although
their predictions may differ: `agree` decides on the limits, and compares the plans.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from thunder.core import prims
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.groups import BUCKETS, UNITS, Group
from thunder.core.langctx import set_langctx
from thunder.core.nbytes import bytes_of, in_bytes
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace, construct
from thunder.passes.overlap import (
    allowance_of,
    barrier_free,
    group_of,
    is_light,
    is_start,
    is_wait,
    start_early,
    wait_late,
)
from thunder.torch import cat, clone, reshape

__all__ = ["Bucket", "Buckets", "Limits", "bucketed", "group_of", "on_one_rank"]

_VIEWS = (OpTags.VIEW_OP, OpTags.SHAPE_OP)
_MERGED = frozenset({"all_reduce", "broadcast", "all_gather", "reduce_scatter"})

#: The most bytes of a bucket of each group.
Limits = Mapping[Group, int]


class Bucket(NamedTuple):
    """Collectives that are merged, in their order."""

    starts: list[BoundSymbol]

    @property
    def group(self) -> Group:
        """The process group."""
        return group_of(self.starts[0])

    @property
    def bytes(self) -> int:
        """The bytes of the operands or of the results, of which there are more."""
        return sum(map(_size, self.starts))

    def describe(self) -> str:
        """Return the text of the plan, which is equal on all ranks."""
        first = self.starts[0]
        return f"{first.sym.name} of {[list(op.args[0].shape) for op in self.starts]} {first.args[0].dtype}"


class Buckets:
    """What was merged, and why not more. `merged` has the count and the copied bytes by the name of each result."""

    def __init__(self, wanted: int, limits: Limits) -> None:
        self.merged: dict[str, tuple[int, int]] = {}
        self._less = {group: limit for group, limit in limits.items() if limit < wanted}

    def report(self) -> list[str]:
        """Return lines for `thunder.explain`."""
        found = []
        if self.merged:
            count, copied = map(sum, zip(*self.merged.values()))
            found = [f"{count} collectives are merged into {len(self.merged)}, with copies of {in_bytes(copied)}"]
        for group, limit in self._less.items():
            most = f"buckets have at most {in_bytes(limit)}" if limit else "nothing is merged"
            found.append(f"{most} in {group!r}: more raises the predicted peak of memory too much (overlap_memory)")
        return found


def on_one_rank(trace: Trace, limit: int, plan: Callable[[Limits], list[Bucket]]) -> list[Bucket]:
    """Return the buckets of a program that no other rank has to merge alike."""
    return plan({group_of(op): limit for op in trace.bound_symbols if is_start(op)})


def bucketed(
    trace: Trace,
    peaks: Callable[[Trace], Sequence[int]],
    allowance: int | None = None,
    *,
    limit: int,
    reassociate: bool = False,
    agree: Callable[[Trace, int, Callable[[Limits], list[Bucket]]], list[Bucket]] = on_one_rank,
) -> Trace:
    """Return the trace with collectives merged into buckets of at most `limit` bytes, or the trace itself.

    `peaks` and `allowance` are those of `overlapped`. `agree(trace, limit, plan)` returns the buckets of all ranks:
    those of `plan(limits)` for the limits on which the ranks agree, or none.
    """
    starts = [op for op in trace.bound_symbols if is_start(op)]
    if len(starts) < 2:
        return trace
    program = _Program(trace, reassociate)
    found = agree(trace, program.limit_within(limit, peaks, allowance_of(starts, allowance)), program.plan)
    merged = [bucket for bucket in found if len(bucket.starts) > 1]
    report = trace.info[BUCKETS] = Buckets(limit, program.limits)
    return program.merge(merged, report) if merged else trace


class _Program:
    """A program whose collectives can be merged."""

    def __init__(self, trace: Trace, reassociate: bool):
        self.limits: Limits = {}  # of the last plan
        self._trace = trace
        self._units = trace.info.get(UNITS, {})
        self._may_merge = partial(_may_merge, reassociate=reassociate, waits=_only_waits(trace))
        # In the order in which operands are computed: a loop over parameters reduces the gradients in opposite order.
        stretches = barrier_free(trace.bound_symbols)
        self._stretches = [start_early(wait_late(part), may_pass=self._may_merge) for part in stretches]

    def plan(self, limits: Limits) -> list[Bucket]:
        """Return all collectives in buckets, of which many contain a single one."""
        self.limits = limits
        return [
            bucket for stretch in self._stretches for bucket in _buckets(stretch, limits, self._may_merge, self._units)
        ]

    def limit_within(self, limit: int, peaks: Callable[[Trace], Sequence[int]], allowance: int) -> int:
        """Return the largest of `limit`, its half and so on whose buckets stay within the budget, or 0."""
        starts = [op for op in self._trace.bound_symbols if is_start(op)]
        # All operands and results live as long as possible, and are copied.
        if sum(2 * bytes_of(p) for op in starts for p in (*op.flat_args, *op.flat_outs)) <= allowance:
            return limit
        before = -1
        while merged := [x for x in self.plan({group_of(op): limit for op in starts}) if len(x.starts) > 1]:
            before = max(peaks(self._trace), default=0) if before < 0 else before
            if max(peaks(self.merge(merged)), default=0) <= before + allowance:
                return limit
            limit = min(limit, max(bucket.bytes for bucket in merged)) // 2
        return limit if before < 0 else 0

    def merge(self, merged: Sequence[Bucket], report: Buckets | None = None) -> Trace:
        """Return the program with these buckets."""
        inputs = {p.name for p in self._trace.args}
        merging = _Merging(merged, _returned(self._trace), {} if report is None else report.merged)
        with construct(self._trace, "Bucket Collectives") as out, tracectx(out), set_langctx("torch"):
            for stretch in self._stretches:
                lines = [line for op in stretch if (line := merging.replacement(op, out))]
                out.bound_symbols += _start_late(lines, inputs)
        return out


def _start_late(lines: Sequence[list[BoundSymbol]], inputs: set[str]) -> list[BoundSymbol]:
    """Move the start of each collective to the first wait for it or for a later one, where it needs the least memory.

    What packs inputs, which are in memory anyway, moves to before its first use, too: to cast all shards at once would
    need the memory of all. The pass that overlaps communication then decides how early collectives start
    (`overlap.py`). The first of `lines` stays the first.
    """
    done: list[BoundSymbol] = [op for line in lines[:1] for op in line]
    starts: list[list[BoundSymbol]] = []
    packing: dict[str, tuple[int, BoundSymbol]] = {}  # by result, with its position in `lines`
    held = set(inputs)

    def place(operations: Iterable[BoundSymbol]) -> None:
        for op in operations:
            needed, stack = [], list(op.arg_names)
            while stack:
                found = packing.pop(stack.pop(), None)
                if found is not None:
                    needed.append(found)
                    stack += found[1].arg_names
            done.extend(packs for _, packs in sorted(needed, key=lambda item: item[0]))
            done.append(op)

    for position, line in enumerate(lines[1:]):
        last = line[-1]
        if is_start(last):
            starts.append(line)
            continue
        if len(line) == len(last.out_names) == 1 and is_light(last) and held.issuperset(last.arg_names):
            packing[last.out_names[0]] = position, last
            held.update(last.out_names)
            continue
        read = {name for op in line for name in op.arg_names}
        needed = max((i for i, start in enumerate(starts) if not read.isdisjoint(start[-1].out_names)), default=-1) + 1
        released = starts if last.sym.is_return else starts[:needed]
        place([op for start in released for op in start])
        del starts[: len(released)]
        if last.sym.is_return:
            done += [op for _, op in packing.values()]
            packing.clear()
        place(line)
    place([op for start in starts for op in start])
    return done + [op for _, op in packing.values()]


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
    operations: Sequence[BoundSymbol], limits: Limits, may_merge: Callable[[BoundSymbol], bool], units: dict[str, Any]
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
        bucket, full = open_buckets.get(key, (None, 0))
        if bucket is None or full + _size(op) > limits[group_of(op)]:
            bucket, full = Bucket([]), 0
            found.append(bucket)
        bucket.starts.append(op)
        open_buckets[key] = bucket, full + _size(op)
        key_of[op.out_names[0]] = key
    position = {id(op): i for i, op in enumerate(operations)}
    return sorted(found, key=lambda bucket: position[id(bucket.starts[-1])])


def _size(op: BoundSymbol) -> int:
    return max(bytes_of(op.args[0]), bytes_of(op.output))


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

    def __init__(self, buckets: Sequence[Bucket], returned: set[str], merged: dict[str, tuple[int, int]]):
        self._merged = merged
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
                if op.out_names[0] in self._returned and last.sym.name != "all_gather":  # whose parts are copies
                    part = clone(part)  # results do not share memory
                made[:] = [new.substitute({part.name: op.output}) for new in made]
            elif op is last:
                self._flat[first] = _start(bucket)
        for new in made:
            new.source = new.source or op.source
        if made:
            name = self._flat[first].name
            copied = sum(bytes_of(new.output) for new in made if new.sym.name in ("cat", "clone"))
            self._merged[name] = len(bucket.starts), self._merged.get(name, (0, 0))[1] + copied
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
