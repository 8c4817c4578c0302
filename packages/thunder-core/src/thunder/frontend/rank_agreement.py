# SPDX-License-Identifier: Apache-2.0
"""Decisions that must be alike on all ranks: options, which collectives are merged, and whether a call runs eagerly.

Ranks post their decisions for a jitted function to the store of the process groups, and compare them when they compile.
Calls of cached programs do not ask the store.

**Options** that decide in which order collectives run must be equal.

**Merged collectives** (`passes/bucketing.py`). The most bytes of a bucket depend on the predicted memory, which may
differ between ranks: those of the first rank that posts them hold for all ranks of a group. Each rank then merges in
its own trace. The first rank posts its buckets, and the others compare theirs: a difference is an error, before a
program runs in which collectives would not pair. No rank waits for another one, so a rank may compile alone. If a rank
has run the function eagerly before, no rank merges.

**Eager calls.** A program with `fully_shard`, DTensors or merged collectives runs others than eager mode, or in another
order, so that each call has to run as such a program on all ranks, or on none. A rank posts the number of its eager
calls of a function. If it shares groups with a rank that has such a program, it waits until that rank has run as many
calls eagerly, and raises an error shortly before the timeout of the group: the others then wait in a collective that
this rank will never start. A rank that compiles while others already run the call eagerly follows them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from thunder.capture.base.fallback import CompiledLater, ModuleFallback, RunsEagerly
from thunder.core.errors import RankMismatchError
from thunder.core.groups import Group
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.frontend.check_ranks import TIMEOUT, is_distributed, text_of_collective
from thunder.passes.bucketing import Bucket, Limits, group_of, on_one_rank
from thunder.passes.overlap import is_start
from thunder.torch.private import timeout_of_group

__all__ = ["agree_on_buckets", "agree_on_eager_call", "agree_on_options", "follow_eager_ranks"]

_PREFIX = "thunder/agreement"


class Function(NamedTuple):
    """A jitted function, as all ranks know it."""

    title: str
    number: str  # what tells functions of the same title apart

    @property
    def key(self) -> str:
        """The prefix of what ranks post about the function."""
        return f"{_PREFIX}/{self.title}/{self.number}"


class _Posted:
    """What this process has posted to one store, which ends with `destroy_process_group`."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.counts: Counter[Function] = Counter()  # of eager calls
        self.always: set[Function] = set()  # that this rank never compiles
        # Of which this rank has had a program that eager calls do not pair with, with the ranks of its groups.
        self.programs: dict[Function, set[int]] = {}


_current: list[_Posted] = []


def _posted() -> _Posted:
    import torch.distributed.distributed_c10d as c10d

    store = c10d._get_default_store()
    if not _current or _current[0].store is not store:
        _current[:] = [_Posted(store)]
    return _current[0]


def agree_on_options(function: Function, captured: Trace, options: dict[str, Any]) -> None:
    """Raise an error if a rank that captured the same collectives has other options, which decide on their order."""
    if not is_distributed():
        return
    digest = _digest([op for op in captured.bound_symbols if is_start(op)])
    rank, other = _first(f"{function.key}/options/{digest}/{' '.join(options)}", options)
    different = [name for name in options if options[name] != other[name]]
    if different:
        here, there = (", ".join(f"{name}={values[name]!r}" for name in different) for values in (options, other))
        raise RankMismatchError(
            f"{function.title} has {here}, and {there} on rank {rank}. The order of collectives depends on these "
            "options, so that ranks would hang or compute wrong numbers: pass the same ones on all ranks"
        )


def agree_on_buckets(
    function: Function, trace: Trace, limit: int, plan: Callable[[Limits], list[Bucket]]
) -> list[Bucket]:
    """Return the buckets of a function's collectives, or none. Raise an error if another rank merges otherwise.

    limit: the most bytes of a bucket, which the ranks that compile first decide.
    plan: returns the buckets for the limits of all groups.
    """
    if not is_distributed():
        return on_one_rank(trace, limit, plan)
    every: dict[Group, list[BoundSymbol]] = {}
    for op in filter(is_start, trace.bound_symbols):
        every.setdefault(group_of(op), []).append(op)
    keys = {group: f"{group.name}/{_digest(starts)}" for group, starts in every.items()}
    buckets = plan({group: _first(f"{function.key}/bucket_bytes/{key}", limit)[1] for group, key in keys.items()})
    members = sorted({r for bucket in buckets if len(bucket.starts) > 1 for r in bucket.group.ranks})
    if members and not _first(f"{function.key}/merges", members)[1]:
        return []
    for group, starts in every.items():
        merged = [bucket for bucket in buckets if bucket.group == group]
        # If nothing is merged, collectives keep the order of the trace.
        plan_of_group = (
            [_numbers(bucket, starts) for bucket in merged] if members else [[i] for i in range(len(starts))]
        )
        rank, other = _first(f"{function.key}/buckets/{keys[group]}", plan_of_group)
        if other != plan_of_group:
            described = [bucket.describe() for bucket in merged if len(bucket.starts) > 1]
            raise RankMismatchError(
                f"{function.title} merges collectives in {group!r} otherwise than on rank {rank}: here {described} "
                f"(numbers {plan_of_group}), there {other}. Results on which collectives depend differ between these "
                'programs: pass thunder.jit(…, bucketing="never")'
            )
    _post_program(function, members)
    return buckets


def agree_on_eager_call(function: Function, reason: str | None, *, always: bool, may_merge: bool) -> None:
    """Post that this rank runs a call eagerly, and wait for the ranks whose programs do not pair with eager calls.

    always: whether this rank runs all further calls of the function eagerly.
    may_merge: whether other ranks may have programs with merged collectives. If none has so far, none will.
    """
    if not is_distributed():
        return
    mine = _posted()
    if function in mine.always:
        return
    mine.counts[function] += 1
    count, own, store = mine.counts[function], _rank(), mine.store
    store.set(f"{function.key}/{count}/{own}", "")
    if always and function not in mine.programs:
        mine.always.add(function)
        store.set(f"{function.key}/always/{own}", "")
    others = _ranks_with_programs(function, own, store, may_merge)
    seconds = 0.9 * (timeout_of_group() or TIMEOUT)  # the others wait in a collective meanwhile
    end, pause = time.monotonic() + seconds, 0.005
    while others := [r for r in others if not _runs_eagerly(function, count, r, store)]:
        if time.monotonic() > end:
            raise RankMismatchError(
                f"{function.title} runs eagerly in this call ({reason or 'it cannot be compiled'}), and not on "
                f"{_ranks(others)} within {seconds:g} s. With fully_shard, DTensors and merged collectives, a call has "
                "to run eagerly on all ranks or on none, because programs order collectives otherwise. Remove what "
                "differs on this rank, or run the function eagerly on all ranks, e.g. with THUNDER_DISABLE=1"
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.25)


def follow_eager_ranks(function: Function, members: Iterable[int]) -> RunsEagerly | None:
    """Return the reason to run a call eagerly whose program is compiled, because other ranks run it eagerly; or None.

    members: the ranks of the program's groups, which are told that this rank has a program; none if its collectives
        have the order of eager mode. Those of merged collectives have been told before.
    """
    if not is_distributed():
        return None
    _post_program(function, members)
    mine = _posted()
    others = sorted(mine.programs.get(function, set()) - {_rank()})
    always = [r for r in others if mine.store.check([f"{function.key}/always/{r}"])]
    if always:
        return ModuleFallback(f"{_ranks(always)} cannot compile it, and all ranks have to run the same collectives")
    ahead = [r for r in others if mine.store.check([f"{function.key}/{mine.counts[function] + 1}/{r}"])]
    return CompiledLater(f"this call runs eagerly on {_ranks(ahead)}") if ahead else None


def _post_program(function: Function, members: Iterable[int]) -> None:
    """Tell the members of groups that this rank has a program that eager calls do not pair with."""
    mine = _posted()
    found = mine.programs.get(function, set()) | set(members)
    if len(found) > 1 and found != mine.programs.get(function):
        mine.programs[function] = found
        for r in found:
            mine.store.set(f"{function.key}/programs/{r}", json.dumps(sorted(found)))


def _ranks_with_programs(function: Function, own: int, store: Any, may_merge: bool) -> list[int]:
    """Return the other ranks of the groups of programs that eager calls do not pair with."""
    found: set[int] = set(_first(f"{function.key}/merges", [])[1]) if may_merge else set()
    key = f"{function.key}/programs/{own}"
    if store.check([key]):
        found = {own, *json.loads(store.get(key))}
    return sorted(found - {own}) if own in found else []


def _runs_eagerly(function: Function, count: int, rank: int, store: Any) -> bool:
    return any(store.check([f"{function.key}/{which}/{rank}"]) for which in (count, "always"))


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank()


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"the ranks {', '.join(map(str, ranks))}"


def _digest(starts: Sequence[BoundSymbol]) -> str:
    return hashlib.sha256("\n".join(map(text_of_collective, starts)).encode()).hexdigest()[:16]


def _numbers(bucket: Bucket, starts: Sequence[BoundSymbol]) -> list[int]:
    positions = {op.out_names[0]: i for i, op in enumerate(starts)}
    return [positions[op.out_names[0]] for op in bucket.starts]


def _first(key: str, value: Any) -> tuple[int, Any]:
    """Post a value unless another rank has, and return the rank that has and its value."""
    import torch.distributed.distributed_c10d as c10d

    own = json.dumps([c10d.get_rank(), value])
    rank, found = json.loads(c10d._get_default_store().compare_set(key, "", own))
    return rank, found
