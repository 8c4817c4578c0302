# SPDX-License-Identifier: Apache-2.0
"""The gradient of an embedding's table: a deterministic segmented sum of gradient rows by index.

Indices are sorted stably, so the gradients of one table row form a contiguous segment. One program accumulates a
segment. Segments are also cut at fixed boundaries, so that a very frequent token is spread over many programs. A second
kernel adds the partial sums of a row. There are no atomics, and the order of additions is fixed, so repeated runs are
bitwise equal.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from thunder import prims
from thunder.extend import dtypes, known_shape
from thunder_ex_triton.fusion.functions import row_number
from thunder_ex_triton.launch import MOST_BLOCKS, Kernel, blocks, kernel, power_of_two
from thunder_ex_triton.probe import unusable_device

__all__ = ["LARGEST", "TAKEN", "WIDEST", "embedding_backward", "register", "sums_of_rows", "workspace_of_sums"]

_FEWEST = 3072  # with at most this many indices, torch needs one kernel and less host time
_MOST_COMPARED = 16384  # with more indices, torch sorts
_FILLING = 128  # the number of programs that fill the output with zeros
_COMPARED = (16, 512)  # a tile of comparisons: indices of a program, and indices that it compares them with at a time
_PIECE = 32  # the maximal number of sorted positions that one program accumulates
_TILE = 4096  # the number of elements loaded at a time
LARGEST = (1 << 31) - 1
WIDEST = MOST_BLOCKS * 1024  # columns of a row
TAKEN = (dtypes.float64, dtypes.float32, dtypes.float16, dtypes.bfloat16)


@triton.jit
def _row_of(index, table):
    return tl.minimum(tl.maximum(index, -1), table).to(tl.int32)


@kernel
def in_order(
    indices_ptr, rows_ptr, places_ptr, out_ptr, count, table, elements,
    FILLING: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sort indices stably: for each index, count the indices that come before it.

    Write the sorted indices and their positions.

    Indices out of bounds stay out of bounds: they become -1 or the number of rows. The first programs also fill the
    gradient with zeros, because counting does not use the memory bandwidth.
    """
    if tl.program_id(0) < FILLING:
        block = tl.arange(0, 2048)
        share = (elements // (FILLING * 2048) + 1) * 2048  # a sum with the number of elements could overflow
        begin = tl.program_id(0) * share.to(tl.int64)
        for filled in range(0, share, 2048):
            offsets = begin + filled + block
            tl.store(out_ptr + offsets, tl.zeros((2048,), out_ptr.dtype.element_ty), mask=offsets < elements)
    else:
        first = (tl.program_id(0) - FILLING) * TALL
        at = first + tl.arange(0, TALL)
        index = _row_of(tl.load(indices_ptr + at, mask=at < count, other=0), table)
        own = first // WIDE * WIDE  # the tile that contains this program's indices
        before = tl.zeros((TALL, WIDE), tl.int32)
        for start in range(0, own, WIDE):
            other = _row_of(tl.load(indices_ptr + start + tl.arange(0, WIDE)), table)
            before += (other[None, :] <= index[:, None]).to(tl.int32)
        for start in range(own, count, WIDE):
            there = start + tl.arange(0, WIDE)
            other = _row_of(tl.load(indices_ptr + there, mask=there < count, other=0), table)
            other = tl.where(there < count, other, table + 1)[None, :]
            counts = (other < index[:, None]) | ((other == index[:, None]) & (there[None, :] < at[:, None]))
            before += counts.to(tl.int32)
        place = tl.sum(before, 1)
        tl.store(rows_ptr + place, index, mask=at < count)
        tl.store(places_ptr + place, at, mask=at < count)


@triton.jit
def _pieces(
    g_ptr, rows_ptr, places_ptr, out_ptr, part_ptr, count, table, width, padding,
    PIECE: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    begin = tl.program_id(0)
    row = tl.load(rows_ptr + begin).to(tl.int64)
    opens = (begin == 0) | (tl.load(rows_ptr + begin - 1, mask=begin > 0, other=0) != row)
    kept = (row != padding) | (padding < 0)
    if (opens | (begin % PIECE == 0)) & kept:
        row = row_number(row, table, kept)
        columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
        end = tl.minimum((begin // PIECE + 1) * PIECE, count)
        total = tl.zeros((WIDE,), ACC)
        at = begin
        stop = begin
        while at < end:
            which = at + tl.arange(0, TALL)
            same = (which < end) & (tl.load(rows_ptr + which, mask=which < end, other=0) == row)
            places = tl.load(places_ptr + which, mask=same, other=0).to(tl.int64)
            inside = same[:, None] & (columns < width)[None, :]
            total += tl.sum(
                tl.load(g_ptr + places[:, None] * width + columns[None, :], mask=inside, other=0.0).to(ACC), 0
            )
            stop = at + tl.sum(same.to(tl.int32), 0)
            at = tl.where(stop == at + TALL, stop, end)
        closes = (stop == count) | (tl.load(rows_ptr + stop, mask=stop < count, other=0) != row)
        if opens & closes:
            tl.store(out_ptr + row * width + columns, total.to(out_ptr.dtype.element_ty), mask=columns < width)
        else:
            of_part = (begin // PIECE * 2 + opens.to(tl.int32)).to(tl.int64)
            tl.store(part_ptr + of_part * width + columns, total, mask=columns < width)


pieces = Kernel(_pieces, checks=True)


@kernel
def whole_rows(
    part_ptr, rows_ptr, out_ptr, count, width, padding,
    PIECE: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Accumulate the partial sums of a row that begins in one segment and continues in the next segments."""
    piece = tl.program_id(0)
    following = (piece + 1) * PIECE
    row = tl.load(rows_ptr + following).to(tl.int64)
    goes_on = tl.load(rows_ptr + following - 1) == row
    begins = (piece == 0) | (tl.load(rows_ptr + piece * PIECE - 1, mask=piece > 0, other=0) != row)
    if goes_on & begins & (row != padding):
        columns = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
        own = (piece * 2 + 1).to(tl.int64) * width
        total = tl.load(part_ptr + own + columns, mask=columns < width, other=0.0)
        at = piece + 1
        end = tl.cdiv(count, PIECE)
        while at < end:
            which = at + tl.arange(0, TALL)
            same = (which < end) & (tl.load(rows_ptr + which * PIECE, mask=which < end, other=0) == row)
            inside = same[:, None] & (columns < width)[None, :]
            offsets = (which * 2).to(tl.int64)[:, None] * width + columns[None, :]
            total += tl.sum(tl.load(part_ptr + offsets, mask=inside, other=0.0), 0)
            at = tl.where(tl.sum(same.to(tl.int32), 0) == TALL, at + TALL, end)
        tl.store(out_ptr + row * width + columns, total.to(out_ptr.dtype.element_ty), mask=columns < width)


def _ordered(indices: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sorted indices and their original positions. Fill `out` with zeros."""
    count = indices.numel()
    if count > _MOST_COMPARED:
        out.zero_()
        rows, places = indices.sort(stable=True)
        return rows, places
    rows = torch.empty(count, dtype=torch.int32, device=indices.device)
    places = torch.empty_like(rows)
    numbers = (count, out.shape[0], out.numel(), _FILLING, *_COMPARED)
    in_order(_FILLING + blocks(count, _COMPARED[0]), (indices, rows, places, out), numbers, 4)
    return rows, places


def embedding_backward(
    g: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> torch.Tensor:
    """Return the gradient of the table: the sum of the rows of `g` for each index."""
    width, count = g.shape[-1], indices.numel()
    if g.numel() == 0:
        return g.new_zeros((num_weights, width))
    # The kernels use 32-bit indices, and a grid has few blocks in its second dimension.
    if count <= _FEWEST or max(count, num_weights) >= LARGEST or width > WIDEST:
        return torch.ops.aten.embedding_dense_backward(g, indices, num_weights, padding_idx, scale_grad_by_freq)
    return sums_of_rows(g, indices, num_weights, padding_idx)


def sums_of_rows(g: torch.Tensor, indices: torch.Tensor, number: int, padding: int) -> torch.Tensor:
    """Return the sums of the rows of `g` with the same index, for each index below `number` but `padding`.

    Raise if an index is negative or not below `number`: immediately on the CPU, by an asynchronous assertion on a GPU.
    """
    width, count = g.shape[-1], indices.numel()
    out = g.new_empty((number, width))
    rows, places = _ordered(indices.reshape(-1).contiguous(), out)
    acc, wider = (tl.float64, torch.float64) if g.dtype is torch.float64 else (tl.float32, torch.float32)
    left = blocks(count, _PIECE)
    part = torch.empty((left, 2, width), dtype=wider, device=g.device)
    wide = min(power_of_two(width), 1024)
    tile = (_PIECE, min(_PIECE, max(1, _TILE // wide)), wide, acc)
    arrays = (g.contiguous(), rows, places, out, part)
    pieces((count, blocks(width, wide)), arrays, (count, number, width, padding, *tile), max(1, wide // 256))
    if left > 1:
        narrow = min(wide, 128 if blocks(width, 128) <= MOST_BLOCKS else 1024)
        tile = (_PIECE, 16, narrow, acc)
        whole_rows((left - 1, blocks(width, narrow)), (part, rows, out), (count, width, padding, *tile), 4)
    return out


def _like(g: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    return prims.embedding_backward(g, indices, num_weights, padding_idx, scale_grad_by_freq)


def _takes(g: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: bool) -> bool | str:
    """Return True, or the reason why the kernels do not support the call."""
    reason = unusable_device(g.device)
    if reason is not None:
        return reason
    if scale_grad_by_freq:
        return "the kernels do not support scale_grad_by_freq"
    if g.dtype not in TAKEN:
        return f"the kernels do not support gradients in {g.dtype}"
    return True


def _workspace(g: Any, indices: Any, num_weights: int, *how: Any) -> int:
    return workspace_of_sums(g.dtype, math.prod(known_shape(indices)), known_shape(g)[-1])


def workspace_of_sums(dtype: Any, count: int, width: int) -> int:
    """Return the bytes of the sorted indices and of the partial sums."""
    order = 8 * count if count <= _MOST_COMPARED else 48 * count
    return int(order + blocks(count, _PIECE) * 2 * width * max(4, dtype.bytes))


def register(registry: Any, executor: str) -> None:
    """Register the operator as the implementation of the gradient of embedding tables."""
    found = registry.register_operator(
        "triton_embedding_backward", executor=executor, like=_like, fn=embedding_backward, workspace=_workspace
    )
    registry.register_implementation(prims.embedding_backward, found, executor=executor, checker=_takes)
