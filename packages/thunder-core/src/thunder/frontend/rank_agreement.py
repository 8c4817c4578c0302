# SPDX-License-Identifier: Apache-2.0
"""Decisions of compilations that must be alike on all ranks: which collectives are merged (`passes/bucketing.py`).

Each rank decides from its own trace. The first rank posts its decision to the store of the process groups, and the
others compare theirs: a difference is an error, before a program runs in which collectives would not pair. No rank
waits for another one, so a rank may compile alone.

A function either runs as programs with merged collectives on all ranks, or on none: a rank that runs it eagerly calls
them one by one. Which of both happens first on any rank decides.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from thunder.core.errors import RankMismatchError
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.frontend.check_ranks import is_distributed, text_of_collective
from thunder.passes.bucketing import Bucket, group_of
from thunder.passes.overlap import is_start

__all__ = ["agree_on_buckets", "refuse_eager_calls"]

_PREFIX = "thunder/buckets"


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


def _numbers(bucket: Bucket, starts: Sequence[BoundSymbol]) -> list[int]:
    positions = {op.out_names[0]: i for i, op in enumerate(starts)}
    return [positions[op.out_names[0]] for op in bucket.starts]


def _first(key: str, value: Any) -> tuple[int, Any]:
    """Post a value unless another rank has, and return the rank that has and its value."""
    import torch.distributed.distributed_c10d as c10d

    own = json.dumps([c10d.get_rank(), value])
    rank, found = json.loads(c10d._get_default_store().compare_set(key, "", own))
    return rank, found
