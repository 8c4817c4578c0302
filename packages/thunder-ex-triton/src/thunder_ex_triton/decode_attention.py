# SPDX-License-Identifier: Apache-2.0
"""Attention of few queries to many keys, as in decoding a token with a cache.

One program per query would read the cache with a few multiprocessors. Here the keys are split: a program computes the
attention of all queries that share a head of the cache to one part of the keys, and a second kernel combines the parts
in a fixed order. Keys that the mask excludes for all queries of a program are not read, so a static cache that is
partly filled costs only its filled part. There are no atomics, so repeated runs give identical bits.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import thunder.torch as ltorch
from thunder.extend import TensorProxy, dtypes
from thunder_ex_triton.fusion.functions import row_number
from thunder_ex_triton.launch import Kernel, blocks, kernel, power_of_two, starts_early
from thunder_ex_triton.probe import unusable_device

__all__ = ["TAKEN", "NewEntry", "attend", "is_profitable", "like", "register", "takes", "workspace"]

_QUERIES = 16  # the most positions of queries
_ROWS = 64  # the most queries that share a head of the cache
# With 1,024 to 8,192 keys this takes 0.5 to 0.9 of the time of torch's kernels on an H200, with 32,768 keys 1.3.
_FEWEST_KEYS, _MOST_KEYS = 64, 8192
_MOST_HEADS = 32  # heads of the caches of all batch entries; more of them fill the GPU without splitting the keys
_TILE = 64  # the keys that a program reads at a time
_PROGRAMS = 264  # the programs to aim for: two for each multiprocessor
_MOST_PARTS = 64
TAKEN = (dtypes.float16, dtypes.bfloat16)


@triton.jit
def with_rotation(x_ptr, place, column, step, cos, sin, inside, SIZE: tl.constexpr):
    """Load rows, and rotate them: `x * cos + cat((-x[half:], x[:half])) * sin`."""
    half: tl.constexpr = SIZE // 2
    x = tl.load(x_ptr + place + column * step, mask=inside, other=0.0)
    other = tl.load(x_ptr + place + (column + half) % SIZE * step, mask=inside, other=0.0).to(tl.float32)
    rotated = x.to(tl.float32) * cos + tl.where(column < half, -other, other) * sin
    return rotated.to(x.dtype)


@kernel
def parts_of_keys(
    q_ptr, k_ptr, v_ptr, mask_ptr, out_ptr, sums_ptr, new_k_ptr, new_v_ptr, at_ptr, cos_ptr, sin_ptr,
    heads, groups, queries, keys, part, scale,
    q_batch, q_head, q_row, q_column, k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column,
    m_batch, m_head, m_row, m_column, out_batch, out_head, out_row,
    nk_batch, nk_head, nk_column, nv_batch, nv_head, nv_column, cos_column, sin_column,
    PARTS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr, V_SIZE: tl.constexpr,
    MASK: tl.constexpr, NEW: tl.constexpr, ROTATED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute the attention to a part of the keys, and the maximum and the sum of the exponentials of each query.

    A row of the tile is a query: `queries` positions of each of the `groups` heads that share a head of the cache. If
    the keys have a single part, the result is stored. `MASK` is 0 without a mask, 1 for booleans, 2 for numbers.

    With `NEW`, a new key and value are written to the caches at a position first, by the program whose part contains
    it. This program does not read them from there. With `ROTATED`, the queries and the new key are rotated.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    batch = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    row = tl.arange(0, ROWS)
    real = row < groups * queries
    of_head = (head * groups + row // queries).to(tl.int64)
    position = row % queries
    column = tl.arange(0, SIZE)
    v_column_of = tl.arange(0, V_SIZE)
    q_at = batch * q_batch + (of_head * q_head + position * q_row)[:, None]
    if ROTATED:
        cos = tl.load(cos_ptr + column * cos_column).to(tl.float32)
        sin = tl.load(sin_ptr + column * sin_column).to(tl.float32)
        q = with_rotation(q_ptr, q_at, column[None, :], q_column, cos[None, :], sin[None, :], real[:, None], SIZE)
    else:
        q = tl.load(q_ptr + q_at + column[None, :] * q_column, mask=real[:, None], other=0.0)
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, keys)
    k_head_ptr = k_ptr + batch * k_batch + head.to(tl.int64) * k_head
    v_head_ptr = v_ptr + batch * v_batch + head.to(tl.int64) * v_head
    if NEW:
        new_at = tl.load(at_ptr)
        new_at = tl.where(new_at < 0, new_at + keys, new_at)
        new_at = row_number(new_at, keys, new_at == new_at)
        nk_at = batch * nk_batch + head.to(tl.int64) * nk_head
        if ROTATED:
            new_k = with_rotation(new_k_ptr, nk_at, column, nk_column, cos, sin, column < SIZE, SIZE)
        else:
            new_k = tl.load(new_k_ptr + nk_at + column * nk_column)
        new_v = tl.load(new_v_ptr + batch * nv_batch + head.to(tl.int64) * nv_head + v_column_of * nv_column)
        if (new_at >= first) & (new_at < last):
            tl.store(k_head_ptr + new_at * k_row + column * k_column, new_k)
            tl.store(v_head_ptr + new_at * v_row + v_column_of * v_column, new_v)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    result = tl.zeros((ROWS, V_SIZE), tl.float32)
    for start in range(first, last, TILE):
        key = start + tl.arange(0, TILE)
        inside = key < last
        allowed = real[:, None] & inside[None, :]
        if MASK != 0:
            m_at = mask_ptr + batch * m_batch + (of_head * m_head + position * m_row)[:, None] + key[None, :] * m_column
            mask = tl.load(m_at, mask=allowed, other=0)
            if MASK == 1:
                allowed = allowed & (mask != 0)
            else:
                allowed = allowed & (mask != float("-inf"))
        if tl.max(allowed.to(tl.int32)) != 0:
            at = key.to(tl.int64)
            old = inside & (at != new_at) if NEW else inside
            k_at = k_head_ptr + at[None, :] * k_row + column[:, None] * k_column
            k = tl.load(k_at, mask=old[None, :], other=0.0)
            if NEW:
                k = tl.where((at == new_at)[None, :], new_k[:, None], k)
            score = tl.dot(q, k, input_precision="ieee") * scale
            if MASK == 2:
                score += mask.to(tl.float32)
            score = tl.where(allowed, score, float("-inf"))
            new = tl.maximum(largest, tl.max(score, 1))
            # While all keys of a query are excluded, the maximum is -inf, and the difference would be NaN.
            base = tl.where(new == float("-inf"), 0.0, new)
            weight = tl.exp(score - base[:, None])
            factor = tl.exp(largest - base)
            v_at = v_head_ptr + at[:, None] * v_row + v_column_of[None, :] * v_column
            v = tl.load(v_at, mask=old[:, None], other=0.0)
            if NEW:
                v = tl.where((at == new_at)[:, None], new_v[None, :], v)
            result = result * factor[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
            total = total * factor + tl.sum(weight, 1)
            largest = new
    if PARTS == 1:
        result = result / tl.where(total == 0.0, 1.0, total)[:, None]
        out_at = out_ptr + batch * out_batch + (of_head * out_head + position * out_row)[:, None]
        tl.store(out_at + v_column_of[None, :], result.to(out_ptr.dtype.element_ty), mask=real[:, None])
    else:
        place = (tl.program_id(0) * groups * queries + row).to(tl.int64) * PARTS + tl.program_id(1)
        tl.store(out_ptr + place[:, None] * V_SIZE + v_column_of[None, :], result, mask=real[:, None])
        tl.store(sums_ptr + place * 2, largest, mask=real)
        tl.store(sums_ptr + place * 2 + 1, total, mask=real)


@functools.cache
def parts_kernel(new: bool, early: bool) -> Kernel:
    """Return the kernel; with a `new` key, the one that asserts that its position is in the cache."""
    return Kernel(parts_of_keys.jit, checks=new, early=early) if new or early else parts_of_keys


@functools.cache
def combining_kernel(early: bool) -> Kernel:
    """Return the kernel that combines the parts."""
    return Kernel(combined.jit, early=early) if early else combined


@kernel
def combined(
    out_ptr, parts_ptr, sums_ptr, heads, queries, out_batch, out_head, out_row,
    PARTS: tl.constexpr, WIDE: tl.constexpr, V_SIZE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Combine the parts of the keys of one query. `heads` are all heads of the queries."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, WIDE)
    column = tl.arange(0, V_SIZE)
    exists = part < PARTS
    largest = tl.load(sums_ptr + (row * PARTS + part) * 2, mask=exists, other=float("-inf"))
    total = tl.load(sums_ptr + (row * PARTS + part) * 2 + 1, mask=exists, other=0.0)
    base = tl.max(largest, 0)
    factor = tl.exp(largest - tl.where(base == float("-inf"), 0.0, base))
    at = parts_ptr + (row * PARTS + part)[:, None] * V_SIZE + column[None, :]
    result = tl.sum(tl.load(at, mask=exists[:, None], other=0.0) * factor[:, None], 0)
    whole = tl.sum(total * factor, 0)
    result = result / tl.where(whole == 0.0, 1.0, whole)
    batch, rest = row // (heads * queries), row % (heads * queries)
    out_at = out_ptr + batch * out_batch + (rest // queries) * out_head + (rest % queries) * out_row
    tl.store(out_at + column, result.to(out_ptr.dtype.element_ty))


class NewEntry(NamedTuple):
    """A key and a value to write to the caches at a position, and the angles to rotate the key and the queries by."""

    key: torch.Tensor
    value: torch.Tensor
    position: torch.Tensor
    cos: torch.Tensor | None
    sin: torch.Tensor | None

    def strides(self) -> tuple[int, ...]:
        """Return the strides that the kernel needs."""
        columns = [0 if x is None else x.stride(-1) for x in (self.cos, self.sin)]
        of_key, of_value = [(*x.stride()[:2], x.stride(3)) for x in (self.key, self.value)]
        return (*of_key, *of_value, *columns)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float,
    new: NewEntry | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the attention of `query` to `key` and `value`, whose heads are a divisor of the query's heads.

    A `new` entry is written to `key` and `value` first.
    """
    (batch, heads, queries, size), (kv_heads, keys) = query.shape, key.shape[1:3]
    v_size, groups = value.shape[3], heads // kv_heads
    # Heads are behind queries in memory, as in the results of torch's kernels.
    out = query.new_empty((batch, queries, heads, v_size)).transpose(1, 2)
    if mask is not None:
        mask = mask.expand(batch, heads, queries, keys)
    how = 0 if mask is None else 1 if mask.dtype is torch.bool else 2
    programs = batch * kv_heads
    parts = min(_MOST_PARTS, max(1, _PROGRAMS // programs), blocks(keys, _TILE))
    part = blocks(blocks(keys, parts), _TILE) * _TILE
    parts = blocks(keys, part)
    strides = (*query.stride(), *key.stride(), *value.stride(), *((0,) * 4 if mask is None else mask.stride()))
    places = out.stride()[:3]
    sizes = (kv_heads, groups, queries, keys, part, scale)
    rows = max(16, power_of_two(groups * queries))
    early = starts_early(query.device)
    rotated = new is not None and new.cos is not None
    constants = (parts, rows, _TILE, size, v_size, how, new is not None, rotated, early)
    added = (None,) * 5 if new is None else tuple(new)
    more = (0,) * 8 if new is None else new.strides()
    launch = parts_kernel(new is not None, early)
    if parts == 1:
        sums: Any = None
        tensors = query, key, value, mask, out, sums, *added
        launch((programs, 1), tensors, (*sizes, *strides, *places, *more, *constants), 4)
        return out
    count = batch * heads * queries
    found = torch.empty((count, parts, v_size), dtype=torch.float32, device=query.device)
    sums = torch.empty((count, parts, 2), dtype=torch.float32, device=query.device)
    tensors = query, key, value, mask, found, sums, *added
    launch((programs, parts), tensors, (*sizes, *strides, *places, *more, *constants), 4)
    numbers = (heads, queries, *places, parts, power_of_two(parts), v_size, early)
    combining_kernel(early)(count, (out, found, sums), numbers, 4)
    return out


def like(query: Any, key: Any, value: Any, mask: Any, scale: float) -> Any:
    """Decompose into torch's operations."""
    return ltorch.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=True)


def takes(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> bool | str:  # fmt: skip
    """Return True, or the reason why the kernels do not compute the call."""
    reason = unusable_device(query.device)
    if reason is not None:
        return reason
    tensors = [p for p in (query, key, value, attn_mask) if p is not None]
    if not all(isinstance(p, TensorProxy) and all(type(n) is int for n in p.shape) for p in tensors):
        return "the kernels need known sizes"
    if any(p.ndim != 4 for p in (query, key, value)) or any(p.dtype not in TAKEN for p in (query, key, value)):
        return "the kernels support four dimensions, in float16 and bfloat16"
    if dropout_p or is_causal or isinstance(scale, TensorProxy):
        return "the kernels support neither dropout nor is_causal"
    batch, heads, queries, size = query.shape
    kv_heads, keys, v_size = key.shape[1], key.shape[2], value.shape[3]
    if 0 in (*query.shape, *key.shape, *value.shape) or key.shape[0] != batch or value.shape[:2] != key.shape[:2]:
        return "the kernels do not broadcast"
    if heads % kv_heads or (heads != kv_heads and not enable_gqa):
        return "the kernels do not broadcast"
    if any(n & (n - 1) or not 16 <= n <= 256 for n in (size, v_size)):
        return "the kernels support heads of 16, 32, 64, 128 and 256 elements"
    if attn_mask is not None and attn_mask.dtype not in (dtypes.bool8, query.dtype):
        return "the kernels support masks of booleans, and of the dtype of the query"
    if queries > _QUERIES or heads // kv_heads * queries > _ROWS or keys < _FEWEST_KEYS or keys < 4 * queries:
        return "the kernels are for few queries and many keys"
    return True


def is_profitable(query: Any, key: Any, *args: Any, **kwargs: Any) -> bool | str:
    """Return True, or the reason why other kernels are faster: the rule without measurements."""
    if key.shape[2] > _MOST_KEYS or key.shape[0] * key.shape[1] > _MOST_HEADS:
        return "other kernels are faster for so many keys or heads"
    return True


def workspace(query: Any, key: Any, value: Any, mask: Any, scale: float) -> int:
    """Return the most bytes of the parts."""
    return math.prod(query.shape[:3]) * _MOST_PARTS * (value.shape[3] + 2) * 4


def register(registry: Any, executor: str) -> None:
    """Register the operator as an implementation of attention."""
    found = registry.register_operator(
        "triton_decode_attention", executor=executor, like=like, fn=attend, workspace=workspace
    )

    def execution(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        return found(query, key, value, attn_mask, 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale))

    registry.register_implementation(
        ltorch.scaled_dot_product_attention, executor=executor, checker=takes, execution_transform=execution,
        profitable=is_profitable, measured=True,
    )  # fmt: skip
