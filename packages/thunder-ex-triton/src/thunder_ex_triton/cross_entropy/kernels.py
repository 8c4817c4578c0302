# SPDX-License-Identifier: Apache-2.0
"""Kernels of cross-entropy with class indices, and their launches.

Logits are rows of classes. Each batch entry has `inner` rows. Row `i` of entry `n` begins at `n * stride_outer + i *
stride_inner`, and the stride of its classes is `stride_class`. Each kernel instance (Triton: program) processes a tile
of rows of one batch entry. Forward loops over the classes once, with a running maximum and a running sum of
exponentials (online softmax). For backward it saves one number per row: the log of the sum of exponentials. Backward
computes each element of the gradient from this number and one element of the logits.

A tile consists of parts, each with the same rows and its own classes. Triton distributes warps over the classes of a
part first, and then over the rows. With few classes, a part is not longer than what a warp loads, so that a row stays
within one warp, and reductions over the parts within one thread. With many classes, there is one part.

The loss of a row with target class y is `(1 - s) w[y] (lse - x[y]) + s/C sum_c w[c] (lse - x[c])`, where s is the label
smoothing.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from thunder_ex_triton.launch import INTERPRETED, blocks, kernel, power_of_two
from thunder_ex_triton.vectors import longest, multiple

__all__ = [
    "BACKWARD", "FORWARD", "WARPS", "Limits", "Rows", "backward", "exponential", "finish", "forward", "in_two",
    "joined", "rows_of_tile", "tile", "unit", "wide_dtype",
]  # fmt: skip


# -- kernels -----------------------------------------------------------------------------------------------------------
@triton.jit
def rows_of_tile(tile, inner, ROWS: tl.constexpr):
    """Return the batch entry of a tile, its rows in this entry, and its rows among all rows."""
    across = tl.cdiv(inner, ROWS)
    entry = (tile // across).to(tl.int64)
    places = (tile % across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    return entry, places, entry * inner + places


if INTERPRETED:

    def exponential(x):
        """Return `exp(x)`."""
        return tl.exp(x)

else:

    @triton.jit
    def exponential(x):
        """Return `exp(x)`. Subnormal results are flushed to zero, which takes half as many instructions."""
        if x.dtype == tl.float64:
            return tl.exp(x)
        else:
            return tl.inline_asm_elementwise(
                "{ .reg .f32 t; mul.f32 t, $1, 0f3fb8aa3b; ex2.approx.ftz.f32 $0, t; }",
                "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1,
            )  # fmt: skip


@triton.jit
def _whole_vectors(base, VECTOR: tl.constexpr):
    """Round a row's offset down to a 16-byte boundary. Return the result and the number of elements before the row."""
    before = base % VECTOR
    return tl.multiple_of(base - before, VECTOR), before.to(tl.int32)


@triton.jit
def _load(x_ptr, offsets, mask, inside, other: tl.constexpr, VECTOR: tl.constexpr):
    """Load under a mask. Interior tiles need no mask, so their loads are vectorized."""
    if VECTOR > 1:
        if inside:
            x = tl.load(x_ptr + offsets)
        else:
            x = tl.load(x_ptr + offsets, mask=mask, other=other)
    else:
        x = tl.load(x_ptr + offsets, mask=mask, other=other)
    return x


@kernel
def forward_kernel(
    x_ptr, target_ptr, weight_ptr, loss_ptr, lse_ptr, partial_ptr,
    classes, inner, stride_outer, stride_inner, stride_class, ignore_index, smoothing_high, smoothing_low, programs,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, KEEP_ROWS: tl.constexpr, SAVE_LSE: tl.constexpr,
    ACC: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    BY_ROW: tl.constexpr, UNIT: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Compute the losses of a tile of rows (or their sum), the sum of weights, and the number of invalid targets."""
    pid = tl.program_id(0)
    stride_outer = multiple(stride_outer, UNIT)
    if BY_ROW:
        inner = multiple(inner, UNIT)
        stride_class = multiple(stride_class, UNIT)
    else:
        classes = multiple(classes, UNIT)
        stride_inner = multiple(stride_inner, UNIT)
    entry, places, rows = rows_of_tile(pid, inner, ROWS)
    exists = places < inner
    target = tl.load(target_ptr + rows, mask=exists, other=0).to(tl.int64)
    counts = exists & (target != ignore_index)
    inside = counts & (target >= 0) & (target < classes)
    base = entry * stride_outer + places * stride_inner
    picked = tl.load(x_ptr + base + target * stride_class, mask=inside, other=0.0).to(ACC)
    peak = tl.full((ROWS,), float("-inf"), ACC)
    total = tl.zeros((ROWS,), ACC)
    spread = tl.zeros((ROWS,), ACC)
    weights = tl.zeros((ROWS,), ACC)
    stop = tl.max(inside.to(tl.int32), 0) * classes  # the kernel does not read ignored rows
    read = inside
    if BY_ROW:  # except between others: a mask that changes from row to row would prevent vectorized loads
        read = exists
    aligned, before = base, 0
    if VECTOR > 1:
        aligned, before = _whole_vectors(base, VECTOR)
        before = tl.max(before, 0)
    for start in range(0, stop + before, PARTS * BLOCK):
        parts = ()
        highest = peak
        for i in tl.static_range(PARTS):
            at = start + i * BLOCK + tl.arange(0, BLOCK)
            real = (at >= before) & (at < classes + before)
            there = read[:, None] & real[None, :]
            offsets = aligned[:, None] + at.to(tl.int64)[None, :] * stride_class
            whole = (start > 0) & (start + PARTS * BLOCK <= stop + before)
            x = _load(x_ptr, offsets, there, whole, float("-inf"), VECTOR).to(ACC)
            parts += (x,)  # type: ignore[assignment]
            if i == 0:
                highest = x
            else:
                highest = tl.maximum(highest, x)
            if SMOOTH:
                if HAS_WEIGHT:
                    w = tl.load(weight_ptr + at - before, mask=real, other=0.0).to(ACC)
                    spread += tl.sum(tl.where(there, x * w[None, :], 0.0), 1)
                    weights += tl.sum(tl.where(there, w[None, :], 0.0), 1)
                else:
                    spread += tl.sum(tl.where(there, x, 0.0), 1)
                    weights += tl.sum(tl.where(there, 1.0, 0.0), 1)
        higher = tl.maximum(peak, tl.max(highest, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        powers = exponential(parts[0] - shift[:, None])  # type: ignore[misc]
        for i in tl.static_range(1, PARTS):
            powers += exponential(parts[i] - shift[:, None])
        total = total * exponential(peak - shift) + tl.sum(powers, 1)
        peak = higher
    lse = tl.where(peak == float("-inf"), 0.0, peak) + tl.log(tl.where(inside, total, 1.0))
    lse = tl.where(inside, lse, 0.0)
    of_row = tl.where(inside, 1.0, 0.0).to(ACC)
    if HAS_WEIGHT:
        of_row = tl.load(weight_ptr + target, mask=inside, other=0.0).to(ACC)
    loss = (lse - picked) * of_row
    if SMOOTH:
        smoothing = tl.full((), smoothing_high, ACC) + tl.full((), smoothing_low, ACC)
        loss = loss * (1.0 - smoothing) + (lse * weights - spread) * (smoothing / classes)
    loss = tl.where(inside, loss, 0.0)
    if SAVE_LSE:
        tl.store(lse_ptr + rows, lse, mask=exists)
    if KEEP_ROWS:
        tl.store(loss_ptr + rows, loss, mask=exists)
    tl.store(partial_ptr + pid, tl.sum(loss, 0))
    tl.store(partial_ptr + programs + pid, tl.sum(of_row, 0))
    tl.store(partial_ptr + 2 * programs + pid, tl.sum((counts & (inside == 0)).to(ACC), 0))


@kernel
def finish_kernel(
    partial_ptr, out_ptr, total_ptr, fine_ptr, programs,
    MEAN: tl.constexpr, ZERO: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Reduce the partial sums of all tiles in a fixed order, so that results are deterministic."""
    loss = tl.zeros((BLOCK,), ACC)
    weight = tl.zeros((BLOCK,), ACC)
    wrong = tl.zeros((BLOCK,), ACC)
    for start in range(0, programs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        loss += tl.load(partial_ptr + at, mask=at < programs, other=0.0)
        weight += tl.load(partial_ptr + programs + at, mask=at < programs, other=0.0)
        wrong += tl.load(partial_ptr + 2 * programs + at, mask=at < programs, other=0.0)
    total = tl.sum(weight, 0)
    out = tl.sum(loss, 0)
    if MEAN:
        out = out / total
        if ZERO:
            out = tl.where(total == 0.0, 0.0, out)
    tl.store(out_ptr, out)
    tl.store(total_ptr, total)
    tl.store(fine_ptr, (tl.sum(wrong, 0) == 0.0).to(tl.int8))


@kernel
def backward_kernel(
    x_ptr, g_ptr, target_ptr, weight_ptr, lse_ptr, total_ptr, weights_ptr, out_ptr,
    classes, inner, stride_outer, stride_inner, stride_class, out_classes, out_outer, out_inner, out_class,
    ignore_index, smoothing_high, smoothing_low, chunks,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, G_BY_ROW: tl.constexpr, MEAN: tl.constexpr,
    ACC: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    BY_ROW: tl.constexpr, UNIT: tl.constexpr, VECTOR: tl.constexpr, SAME_LAYOUT: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a tile of rows and classes. It is zero for classes that the logits do not have."""
    pid = tl.program_id(0)
    stride_outer, out_outer = multiple(stride_outer, UNIT), multiple(out_outer, UNIT)
    if BY_ROW:
        inner = multiple(inner, UNIT)
        stride_class, out_class = multiple(stride_class, UNIT), multiple(out_class, UNIT)
    else:
        classes, out_classes = multiple(classes, UNIT), multiple(out_classes, UNIT)
        stride_inner, out_inner = multiple(stride_inner, UNIT), multiple(out_inner, UNIT)
    entry, places, rows = rows_of_tile(pid // chunks, inner, ROWS)
    start = (pid % chunks) * (PARTS * BLOCK)
    base = entry * stride_outer + places * stride_inner
    before = 0
    if VECTOR > 1:
        base, before = _whole_vectors(base, VECTOR)
        before = tl.max(before, 0)
    exists = places < inner
    target = tl.load(target_ptr + rows, mask=exists, other=0).to(tl.int64)
    inside = exists & (target != ignore_index) & (target >= 0) & (target < classes)
    if g_ptr is None:
        share = tl.where(inside, 1.0, 0.0).to(ACC)
    elif G_BY_ROW:
        share = tl.load(g_ptr + rows, mask=inside, other=0.0).to(ACC)
    else:
        share = tl.where(inside, tl.load(g_ptr).to(ACC), 0.0)
    if MEAN:
        share = share / tl.load(total_ptr).to(ACC)
    on_class = share
    if HAS_WEIGHT:
        on_class = share * tl.load(weight_ptr + target, mask=inside, other=0.0).to(ACC)
    on_all = share * 0.0
    of_softmax = on_class
    if SMOOTH:
        smoothing = tl.full((), smoothing_high, ACC) + tl.full((), smoothing_low, ACC)
        on_class = on_class * (1.0 - smoothing)
        on_all = share * (smoothing / classes)
        if HAS_WEIGHT:
            of_softmax = on_class + on_all * tl.load(weights_ptr).to(ACC)
        else:
            of_softmax = on_class + on_all * classes
    lse = tl.load(lse_ptr + rows, mask=inside, other=0.0).to(ACC)
    read = inside
    if BY_ROW:
        read = exists
    out_base = entry * out_outer + places * out_inner
    chosen = tl.where(inside, target, -1).to(tl.int32)
    for i in tl.static_range(PARTS):
        begin = start + i * BLOCK
        cols = begin - before + tl.arange(0, BLOCK)
        real = (cols >= 0) & (cols < classes)
        wide = (begin + tl.arange(0, BLOCK)).to(tl.int64)[None, :]
        whole = (begin > 0) & (begin + BLOCK <= classes + before) & (tl.min(inside.to(tl.int32), 0) > 0)
        x = _load(x_ptr, base[:, None] + wide * stride_class, read[:, None] & real[None, :], whole, 0.0, VECTOR).to(ACC)
        out = exponential(x - lse[:, None]) * of_softmax[:, None]
        out -= tl.where(cols[None, :] == chosen[:, None], on_class[:, None], 0.0)
        if SMOOTH:
            if HAS_WEIGHT:
                w = tl.load(weight_ptr + cols, mask=real, other=0.0).to(ACC)
                out -= on_all[:, None] * w[None, :]
            else:
                out -= on_all[:, None]
        out = tl.where(inside[:, None] & real[None, :], out, 0.0)
        written = exists[:, None] & ((cols >= 0) & (cols < out_classes))[None, :]
        if VECTOR > 1 and SAME_LAYOUT:
            if whole:
                tl.store(out_ptr + base[:, None] + wide, out)
            else:
                tl.store(out_ptr + base[:, None] + wide, out, mask=written)
        else:
            tl.store(out_ptr + out_base[:, None] + cols.to(tl.int64)[None, :] * out_class, out, mask=written)


# -- launching ---------------------------------------------------------------------------------------------------------
class Rows(NamedTuple):
    """A tensor of logits as rows of classes."""

    tensor: torch.Tensor
    number: int
    classes: int
    inner: int
    stride_outer: int
    stride_inner: int
    stride_class: int

    @staticmethod
    def of(x: torch.Tensor) -> Rows:
        """Return the rows of `(classes,)`, `(rows, classes)` or `(batch, classes, …)`."""
        if x.ndim == 1:
            return Rows(x, 1, x.shape[0], 1, 0, 0, x.stride(0))
        if x.ndim == 2:
            return Rows(x, x.shape[0], x.shape[1], x.shape[0], 0, *x.stride())
        places = x[0, 0].numel()
        if places == 1:
            return Rows.of(x.view(*x.shape[:2]))
        try:
            flat = x.view(*x.shape[:2], places)
        except RuntimeError:  # the inner dimensions are not evenly spaced
            flat = x.reshape(*x.shape[:2], places)
        return Rows(flat, x.shape[0] * places, x.shape[1], places, flat.stride(0), flat.stride(2), flat.stride(1))

    @property
    def strides(self) -> tuple[int, int, int]:
        """The strides of the batch dimension, the inner dimensions and the classes."""
        return self.stride_outer, self.stride_inner, self.stride_class

    @property
    def accumulator(self) -> Any:
        """The dtype of accumulations: float64 for float64, otherwise float32."""
        return tl.float64 if self.tensor.dtype is torch.float64 else tl.float32

    @property
    def vector(self) -> int:
        """The elements of a 16-byte vector."""
        return 16 // self.tensor.element_size()

    @property
    def by_row(self) -> bool:
        """Whether adjacent rows are closer in memory than adjacent classes."""
        return 0 < self.stride_inner < self.stride_class

    def tiles(self, rows: int) -> int:
        """Return the number of tiles of `rows` rows."""
        return self.number // self.inner * blocks(self.inner, rows)

    def uneven(self, parts: int, rows: int, block: int) -> int:
        """Return the elements of a 16-byte vector if a long row begins or ends inside of vectors, otherwise 1."""
        size = self.vector
        uneven = any(n % size != 0 for n in (self.stride_outer, self.stride_inner, self.classes))
        one_by_one = self.stride_class == 1 and parts == rows == 1 and block >= 1024
        return size if uneven and one_by_one and self.tensor.data_ptr() % 16 == 0 else 1


def joined(*tensors: Rows) -> list[Rows]:
    """Return rows as those of a single batch entry, if their distances allow it in all tensors."""
    if all(x.stride_outer == x.inner * x.stride_inner for x in tensors):
        return [x._replace(inner=x.number, stride_outer=0) for x in tensors]
    return list(tensors)


def unit(*tensors: Rows) -> int:
    """Return the elements of the largest vector at whose multiples all rows begin, or all lines of adjacent rows."""
    x = tensors[0]
    numbers = []
    for t in tensors:
        if t.by_row != x.by_row or (t.stride_inner if t.by_row else t.stride_class) != 1:
            return 1
        numbers += [t.stride_outer, *((t.inner, t.stride_class) if t.by_row else (t.classes, t.stride_inner))]
    return longest(x.tensor.dtype, *numbers)


class Limits(NamedTuple):
    """What a tile of logits contains at most, for kernels with four warps."""

    bytes: int  # of all rows
    long: int  # bytes of one long row
    line: int  # 16-byte vectors of adjacent rows
    lanes: int  # threads that load the classes of a part


# Tuned on an H200. In forward, a thread has all classes of adjacent rows, so that it computes their sums alone.
WARPS = 4
FORWARD, BACKWARD = Limits(16384, 16384, 32 * WARPS, lanes=8), Limits(8192, 4096, 64, lanes=16)
_SHORT_LINE = 128  # adjacent rows, if there are few rows
_FEWEST_ROWS = 2 * WARPS  # of a tile whose rows are within warps
_PROGRAMS = 1024  # tiles have fewer rows if there are fewer programs than this


def tile(x: Rows, limits: Limits, size: int) -> tuple[int, int, int]:
    """Return the parts, the rows and the classes of a part of a tile, which is long where `x` is contiguous in memory.

    `size` is the number of elements that a thread loads at once.
    """
    classes, adjacent, itemsize = power_of_two(x.classes), power_of_two(x.inner), x.tensor.element_size()
    elements, most = limits.bytes // itemsize, power_of_two(x.number // _PROGRAMS)
    if x.by_row:
        rows = min(adjacent, max(_SHORT_LINE, min(limits.line * x.vector, most)))
        return 1, rows, max(1, min(classes, elements // rows))
    if elements // classes >= _FEWEST_ROWS:
        block = min(classes, limits.lanes * size)
        return blocks(x.classes, block), min(adjacent, elements // classes, max(_FEWEST_ROWS, most)), block
    block = min(classes, limits.long // itemsize)
    return 1, max(1, min(adjacent, limits.long // itemsize // block)), block


def in_two(number: float) -> tuple[float, float]:
    """Split a number into a sum of two float32 numbers, because kernel arguments have single precision."""
    high = struct.unpack("f", struct.pack("f", number))[0]
    return high, number - high


def wide_dtype(x: Rows) -> torch.dtype:
    return torch.float64 if x.tensor.dtype is torch.float64 else torch.float32


def forward(
    x: Rows, target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int, smoothing: float, *,
    rows_dtype: torch.dtype | None, save_lse: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor]:  # fmt: skip
    """Return the losses of the rows and the log-sum-exps (if requested), and the partial sums of the tiles.

    The losses of the rows are returned in `rows_dtype`, and not at all if it is None.
    """
    (x,) = joined(x)
    size = unit(x)
    parts, rows, block = tile(x, FORWARD, size)
    vector = x.uneven(parts, rows, block)
    block = block // 2 if vector > 1 and block >= 2048 else block
    programs = x.tiles(rows)
    wide, device = wide_dtype(x), x.tensor.device
    loss = torch.empty(x.number, dtype=rows_dtype, device=device) if rows_dtype is not None else None
    lse = torch.empty(x.number, dtype=wide, device=device) if save_lse else None
    partial = torch.empty(3 * programs, dtype=wide, device=device)
    tensors = (x.tensor, target, weight, loss, lse, partial)
    numbers = (
        x.classes, x.inner, *x.strides, ignore_index, *in_two(smoothing), programs,
        weight is not None, smoothing != 0, loss is not None, save_lse, x.accumulator, parts, rows, block,
        x.by_row, size, vector,
    )  # fmt: skip
    forward_kernel(programs, tensors, numbers, WARPS)
    return loss, lse, partial


def finish(
    x: Rows, partial: torch.Tensor, *, mean: bool, dtype: torch.dtype | None = None, single: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss and the sum of weights, and check that targets are in bounds.

    `dtype` defaults to that of the logits.
    """
    out = torch.empty((), dtype=dtype or x.tensor.dtype, device=partial.device)
    total = torch.empty((), dtype=partial.dtype, device=partial.device)
    fine = torch.empty((), dtype=torch.int8, device=partial.device)
    programs = partial.numel() // 3
    block = min(power_of_two(programs), 4096)
    # torch's mean over a single ignored row is 0 / 0 on the CPU, but 0 on a GPU.
    zero = single and partial.is_cuda
    finish_kernel(1, (partial, out, total, fine), (programs, mean, zero, x.accumulator, block), 8)
    refuse_unless(fine, x.classes)
    return out, total


def refuse_unless(fine: torch.Tensor, classes: int) -> None:
    """Raise if a target is out of bounds: immediately on the CPU, by an asynchronous assertion on a GPU."""
    message = f"cross_entropy: a target is out of bounds: it must be ignore_index or one of the {classes} classes"
    if not INTERPRETED:
        torch._assert_async(fine, message)
    elif not fine.item():
        raise IndexError(message)


def backward(
    g: torch.Tensor | None, x: Rows, target: torch.Tensor, lse: torch.Tensor, total: torch.Tensor | None,
    weight: torch.Tensor | None, ignore_index: int, smoothing: float, *, by_row: bool, mean: bool, out: Rows,
) -> None:  # fmt: skip
    """Write the gradient of the logits to `out`, which may alias the logits. Without `g` the cotangent is 1.

    `out` may have more classes than the logits. Their gradient is zero.
    """
    x, out = joined(x, out)
    size = unit(x, out)
    parts, rows, block = tile(x, BACKWARD, size)
    same = x.strides == out.strides and out.tensor.data_ptr() % 16 == 0
    vector = x.uneven(parts, rows, block) if same or out.classes > x.classes else 1
    chunks = blocks(out.classes + vector - 1, parts * block)
    weights = weight.sum(dtype=lse.dtype) if weight is not None and smoothing else None
    tensors = (x.tensor, g, target, weight, lse, total, weights, out.tensor)
    numbers = (
        x.classes, x.inner, *x.strides, out.classes, *out.strides, ignore_index, *in_two(smoothing), chunks,
        weight is not None, smoothing != 0, by_row, mean, x.accumulator, parts, rows, block,
        x.by_row, size, vector, same,
    )  # fmt: skip
    backward_kernel(x.tiles(rows) * chunks, tensors, numbers, WARPS)
