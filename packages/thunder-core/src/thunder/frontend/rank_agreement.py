# SPDX-License-Identifier: Apache-2.0
"""Decisions that must be alike on all ranks: which collectives are merged, and whether a call runs eagerly.

**Merged collectives** (`passes/bucketing.py`). Each rank decides from its own trace. The first rank posts its decision
to the store of the process groups, and the others compare theirs: a difference is an error, before a program runs in
which collectives would not pair. No rank waits for another one, so a rank may compile alone.

A function either runs as programs with merged collectives on all ranks, or on none: a rank that runs it eagerly calls
them one by one. Which of both happens first on any rank decides.

**Eager calls.** A program with `fully_shard` or DTensors orders its collectives otherwise than eager mode, so that each
call has to run as such a program on all ranks, or on none. A rank posts the number of its eager calls of a function. If
it shares groups with a rank that has such a program, it waits until that rank has run as many calls eagerly, and raises
an error shortly before the timeout of the group: the others then wait in a collective that this rank will never start.
A rank that compiles while others already run the call eagerly follows them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from thunder.capture.base.fallback import CompiledLater, ModuleFallback, RunsEagerly
from thunder.core.errors import RankMismatchError
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.frontend.check_ranks import TIMEOUT, is_distributed, text_of_collective
from thunder.passes.bucketing import Bucket, group_of
from thunder.passes.overlap import is_start
from thunder.torch.private import timeout_of_group

__all__ = ["agree_on_buckets", "agree_on_eager_call", "follow_eager_ranks", "refuse_eager_calls"]

_PREFIX = "thunder/buckets"
_EAGER = "thunder/eager calls"


def agree_on_buckets(title: str, trace: Trace, buckets: Sequence[Bucket]) -> bool:
    """Check whether a function merges collectives. Raise an error if another rank merges them otherwise."""
    if not is_distributed():
        return True
    if buckets and _first(f"{_PREFIX}/{title}/mode", "merged")[1] != "merged":
        return False
    every = [op for op in trace.bound_symbols if is_start(op)]
    for group in dict.fromkeys(map(group_of, every)):
        starts = [op for op in every if group_of(op) == group]
        sequence = "\n".join(map(text_of_collective, starts))
        digest = hashlib.sha256(sequence.encode()).hexdigest()[:16]
        merged = [bucket for bucket in buckets if bucket.group == group]
        plan = [_numbers(bucket, starts) for bucket in merged]
        rank, other = _first(f"{_PREFIX}/{title}/{group.name}/{digest}", plan)
        if other != plan:
            described = [bucket.describe() for bucket in merged if len(bucket.starts) > 1]
            raise RankMismatchError(
                f"{title} merges collectives in {group!r} otherwise than on rank {rank}: here {described} (numbers "
                f"{plan}), there {other}. Results on which collectives depend differ between these programs: pass "
                'thunder.jit(…, bucketing="never")'
            )
    return True


def refuse_eager_calls(title: str, reason: str | None) -> None:
    """Raise an error if collectives of a function are merged, which now runs eagerly on this rank."""
    if not is_distributed():
        return
    rank, mode = _first(f"{_PREFIX}/{title}/mode", "eager")
    if mode == "merged":
        raise RankMismatchError(
            f"{title} runs eagerly in this call, and its collectives are merged on rank {rank}: "
            f'{reason or "it cannot be compiled"}. Pass thunder.jit(…, bucketing="never")'
        )


class _EagerCalls:
    """What this process has posted to one store, which ends with `destroy_process_group`."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.counts: Counter[str] = Counter()  # eager calls by function
        self.always: set[str] = set()  # functions that this rank never compiles
        self.programs: set[str] = set()  # functions of which this rank has had such a program


_current: list[_EagerCalls] = []


def _eager_calls() -> _EagerCalls:
    import torch.distributed.distributed_c10d as c10d

    store = c10d._get_default_store()
    if not _current or _current[0].store is not store:
        _current[:] = [_EagerCalls(store)]
    return _current[0]


def agree_on_eager_call(title: str, number: str, reason: str | None, *, always: bool) -> None:
    """Post that this rank runs a call eagerly, and wait for the ranks that have a program for the function.

    number: what tells functions of the same title apart, alike on all ranks.
    always: whether this rank runs all further calls of the function eagerly.
    """
    if not is_distributed():
        return
    mine, key = _eager_calls(), f"{_EAGER}/{title}/{number}"
    if key in mine.always:
        return
    mine.counts[key] += 1
    own, store = _rank(), mine.store
    store.set(f"{key}/{mine.counts[key]}/{own}", "")
    if always and key not in mine.programs:
        mine.always.add(key)
        store.set(f"{key}/always/{own}", "")
    if not store.check([f"{key}/programs/{own}"]):
        return
    others = [r for r in json.loads(store.get(f"{key}/programs/{own}")) if r != own]
    seconds = 0.9 * (timeout_of_group() or TIMEOUT)  # the others wait in a collective meanwhile
    end, pause = time.monotonic() + seconds, 0.005
    while others := [r for r in others if not _runs_eagerly(store, key, mine.counts[key], r)]:
        if time.monotonic() > end:
            raise RankMismatchError(
                f"{title} runs eagerly in this call ({reason or 'it cannot be compiled'}), and not on "
                f"{_ranks(others)} within {seconds:g} s. With fully_shard and DTensors, a call has to run eagerly on "
                "all ranks or on none, because programs order collectives otherwise. Remove what differs on this rank, "
                "or run the function eagerly on all ranks, e.g. with THUNDER_DISABLE=1"
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.25)


def follow_eager_ranks(title: str, number: str, members: Sequence[int]) -> RunsEagerly | None:
    """Return the reason to run a call eagerly whose program is compiled, because other ranks run it eagerly; or None.

    members: the ranks of the program's groups, which are told that this rank has a program; none if its collectives
        have the order of eager mode.
    """
    if len(members) < 2 or not is_distributed():
        return None
    mine, own, key = _eager_calls(), _rank(), f"{_EAGER}/{title}/{number}"
    mine.programs.add(key)
    for r in members:
        mine.store.set(f"{key}/programs/{r}", json.dumps(members))
    others = [r for r in members if r != own]
    always = [r for r in others if mine.store.check([f"{key}/always/{r}"])]
    if always:
        return ModuleFallback(f"{_ranks(always)} cannot compile it, and all ranks have to run the same collectives")
    ahead = [r for r in others if mine.store.check([f"{key}/{mine.counts[key] + 1}/{r}"])]
    return CompiledLater(f"this call runs eagerly on {_ranks(ahead)}") if ahead else None


def _runs_eagerly(store: Any, key: str, count: int, rank: int) -> bool:
    return any(store.check([f"{key}/{which}/{rank}"]) for which in (count, "always"))


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank()


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"the ranks {', '.join(map(str, ranks))}"


def _numbers(bucket: Bucket, starts: Sequence[BoundSymbol]) -> list[int]:
    positions = {op.out_names[0]: i for i, op in enumerate(starts)}
    return [positions[op.out_names[0]] for op in bucket.starts]


def _first(key: str, value: Any) -> tuple[int, Any]:
    """Post a value unless another rank has, and return the rank that has and its value."""
    import torch.distributed.distributed_c10d as c10d

    own = json.dumps([c10d.get_rank(), value])
    rank, found = json.loads(c10d._get_default_store().compare_set(key, "", own))
    return rank, found
