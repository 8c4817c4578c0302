# SPDX-License-Identifier: Apache-2.0
"""The order of tokens by expert: a counting sort, which also gives the inverse order, and where each expert ends.

Routing needs the order in which the tokens of each expert are adjacent, its inverse, and the ends of the experts'
parts. torch sorts by radix, scatters positions for the inverse, and counts the ids once more. Here each program counts
the ids of a block, one program adds up the counts, and each program places the ids of its block. The order is stable.
There are no atomics, so it does not depend on which program runs first.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import dtypes, known_shape
from thunder_ex_triton.launch import blocks, kernel, power_of_two

__all__ = ["MOST_EXPERTS", "like", "register", "route"]

MOST_EXPERTS = 256
_BLOCK = 512  # the ids of a program
_TILE = 4096  # the comparisons of ids and experts that a program makes at a time


@kernel
def counts_of_blocks(ids_ptr, counts_ptr, count, BLOCK: tl.constexpr, TALL: tl.constexpr, EXPERTS: tl.constexpr):
    """Count the ids of a block for each expert."""
    first = tl.program_id(0) * BLOCK
    expert = tl.arange(0, EXPERTS)
    total = tl.zeros((EXPERTS,), tl.int32)
    for start in range(0, BLOCK, TALL):
        at = first + start + tl.arange(0, TALL)
        ids = tl.load(ids_ptr + at, mask=at < count, other=-1)
        total += tl.sum((ids[:, None] == expert[None, :]).to(tl.int32), 0)
    tl.store(counts_ptr + tl.program_id(0) * EXPERTS + expert, total)


@kernel
def starts_of_blocks(counts_ptr, ends_ptr, parts, experts, TALL: tl.constexpr, EXPERTS: tl.constexpr):
    """Replace the counts of each block by the places of its first id of each expert, and store the experts' ends."""
    expert = tl.arange(0, EXPERTS)[None, :]
    total = tl.zeros((TALL, EXPERTS), tl.int32)
    for start in range(0, parts, TALL):
        part = start + tl.arange(0, TALL)[:, None]
        total += tl.load(counts_ptr + part * EXPERTS + expert, mask=part < parts, other=0)
    sums = tl.sum(total, 0)
    ends = tl.cumsum(sums, 0)
    tl.store(ends_ptr + tl.arange(0, EXPERTS), ends, mask=tl.arange(0, EXPERTS) < experts)
    before = ends - sums
    for start in range(0, parts, TALL):
        part = start + tl.arange(0, TALL)[:, None]
        counts = tl.load(counts_ptr + part * EXPERTS + expert, mask=part < parts, other=0)
        places = before[None, :] + tl.cumsum(counts, 0) - counts
        tl.store(counts_ptr + part * EXPERTS + expert, places, mask=part < parts)
        before += tl.sum(counts, 0)


@kernel
def places_of_ids(
    ids_ptr, starts_ptr, sorted_ptr, order_ptr, inverse_ptr, count,
    BLOCK: tl.constexpr, TALL: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """Place the ids of a block: behind those of the blocks before it, and in their own order."""
    first = tl.program_id(0) * BLOCK
    expert = tl.arange(0, EXPERTS)
    start_of = tl.load(starts_ptr + tl.program_id(0) * EXPERTS + expert)
    for start in range(0, BLOCK, TALL):
        at = first + start + tl.arange(0, TALL)
        exists = at < count
        ids = tl.load(ids_ptr + at, mask=exists, other=-1)
        own = (ids[:, None] == expert[None, :]).to(tl.int32)
        rank = start_of[None, :] + tl.cumsum(own, 0) - 1
        place = tl.sum(rank * own, 1)
        tl.store(sorted_ptr + place, ids, mask=exists)
        tl.store(order_ptr + place, at.to(tl.int64), mask=exists)
        tl.store(inverse_ptr + at, place.to(tl.int64), mask=exists)
        start_of += tl.sum(own, 0)


def route(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the sorted ids, the stable order that sorts them, its inverse, and the number of ids up to each expert.

    `ids` is a vector of numbers from 0 to `experts - 1`.
    """
    ids = ids.contiguous()
    count, parts = ids.numel(), blocks(ids.numel(), _BLOCK)
    found, order, inverse = torch.empty_like(ids), *(ids.new_empty(count, dtype=torch.int64) for _ in range(2))
    ends = ids.new_zeros(experts, dtype=torch.int32) if not count else ids.new_empty(experts, dtype=torch.int32)
    if count:
        wide = power_of_two(max(experts, 16))
        tile = _BLOCK, min(_BLOCK, _TILE // wide), wide
        counts = ids.new_empty((parts, wide), dtype=torch.int32)
        counts_of_blocks(parts, (ids, counts), (count, *tile), 4)
        starts_of_blocks(1, (counts, ends), (parts, experts, _TILE // wide, wide), 4)
        places_of_ids(parts, (ids, counts, found, order, inverse), (count, *tile), 4)
    return found, order, inverse, ends


def like(ids: Any, experts: int) -> Any:
    """Decompose into torch's operations."""
    found, order = prims.sort(ids, 0, False, True)
    inverse = prims.sort(order, 0, False, True)[1]
    numbers = ltorch.arange(experts, device=ids.device, dtype=ids.dtype)
    ends = ltorch.sum(ltorch.le(ltorch.unsqueeze(ids, 1), numbers), 0)
    return found, order, inverse, ltorch.to(ends, dtypes.int32)


def _workspace(ids: Any, experts: int) -> int:
    """Return the bytes of the counts of blocks."""
    return blocks(known_shape(ids)[0], _BLOCK) * power_of_two(max(experts, 16)) * 4


def register(registry: Any, executor: str) -> Any:
    """Register the operator, and return it."""
    return registry.register_operator("triton_route", executor=executor, like=like, fn=route, workspace=_workspace)
