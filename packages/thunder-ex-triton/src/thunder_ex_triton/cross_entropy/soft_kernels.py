# SPDX-License-Identifier: Apache-2.0
"""Kernels of cross-entropy with class probabilities, and their launches.

Let t be the probabilities of a row, s the label smoothing, and `u = (1 - s) t + s/C`. The loss of the row is `sum_c
w[c] u[c] (lse - x[c])`. This equals `a lse - b` with `a = sum_c w[c] u[c]` and `b = sum_c w[c] u[c] x[c]`. Forward
reads logits and probabilities once, and saves lse and a of each row for backward.
"""

from __future__ import annotations

import torch
import triton.language as tl

from thunder_ex_triton.cross_entropy.kernels import (
    BACKWARD,
    WARPS,
    Limits,
    Rows,
    exponential,
    in_two,
    joined,
    rows_of_tile,
    tile,
    unit,
    wide_dtype,
)
from thunder_ex_triton.launch import blocks, kernel
from thunder_ex_triton.vectors import multiple

__all__ = ["backward", "forward"]

_FORWARD = Limits(8192, 8192, 16 * WARPS, lanes=8)  # half as many logits as if there were no probabilities


@kernel
def soft_forward_kernel(
    x_ptr, t_ptr, weight_ptr, loss_ptr, lse_ptr, mass_ptr, partial_ptr,
    classes, inner, stride_outer, stride_inner, stride_class, t_outer, t_inner, t_class,
    smoothing_high, smoothing_low, programs,
    HAS_WEIGHT: tl.constexpr, KEEP_ROWS: tl.constexpr, SAVE: tl.constexpr,
    ACC: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    BY_ROW: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Compute the losses of a tile of rows, or their sum."""
    pid = tl.program_id(0)
    stride_outer, t_outer = multiple(stride_outer, UNIT), multiple(t_outer, UNIT)
    if BY_ROW:
        inner = multiple(inner, UNIT)
        stride_class, t_class = multiple(stride_class, UNIT), multiple(t_class, UNIT)
    else:
        classes = multiple(classes, UNIT)
        stride_inner, t_inner = multiple(stride_inner, UNIT), multiple(t_inner, UNIT)
    entry, places, rows = rows_of_tile(pid, inner, ROWS)
    exists = places < inner
    base = (entry * stride_outer + places * stride_inner)[:, None]
    t_base = (entry * t_outer + places * t_inner)[:, None]
    smoothing = tl.full((), smoothing_high, ACC) + tl.full((), smoothing_low, ACC)
    peak = tl.full((ROWS,), float("-inf"), ACC)
    total = tl.zeros((ROWS,), ACC)
    mass = tl.zeros((ROWS,), ACC)
    product = tl.zeros((ROWS,), ACC)
    for start in range(0, classes, PARTS * BLOCK):
        parts = ()
        highest = tl.full((ROWS, BLOCK), float("-inf"), ACC)
        for i in tl.static_range(PARTS):
            cols = start + i * BLOCK + tl.arange(0, BLOCK)
            there = exists[:, None] & (cols < classes)[None, :]
            wide = cols.to(tl.int64)[None, :]
            x = tl.load(x_ptr + base + wide * stride_class, mask=there, other=float("-inf")).to(ACC)
            t = tl.load(t_ptr + t_base + wide * t_class, mask=there, other=0.0).to(ACC)
            t = t * (1.0 - smoothing) + smoothing / classes
            if HAS_WEIGHT:
                t = t * tl.load(weight_ptr + cols, mask=cols < classes, other=0.0).to(ACC)[None, :]
            t = tl.where(there, t, 0.0)
            mass += tl.sum(t, 1)
            product += tl.sum(t * tl.where(there, x, 0.0), 1)
            parts += (x,)  # type: ignore[assignment]
            highest = tl.maximum(highest, x)
        higher = tl.maximum(peak, tl.max(highest, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        powers = tl.zeros((ROWS, BLOCK), ACC)
        for i in tl.static_range(PARTS):
            powers += exponential(parts[i] - shift[:, None])
        total = total * exponential(peak - shift) + tl.sum(powers, 1)
        peak = higher
    lse = tl.where(peak == float("-inf"), 0.0, peak) + tl.log(tl.where(exists, total, 1.0))
    loss = tl.where(exists, mass * lse - product, 0.0)
    if SAVE:
        tl.store(lse_ptr + rows, lse, mask=exists)
        tl.store(mass_ptr + rows, mass, mask=exists)
    if KEEP_ROWS:
        tl.store(loss_ptr + rows, loss, mask=exists)
    tl.store(partial_ptr + pid, tl.sum(loss, 0))
    tl.store(partial_ptr + programs + pid, tl.sum(exists.to(ACC), 0))
    tl.store(partial_ptr + 2 * programs + pid, 0.0)


@kernel
def soft_backward_kernel(
    g_ptr, x_ptr, t_ptr, weight_ptr, lse_ptr, mass_ptr, out_ptr,
    n_rows, classes, inner, stride_outer, stride_inner, stride_class, t_outer, t_inner, t_class,
    out_outer, out_inner, out_class, smoothing_high, smoothing_low, chunks,
    HAS_WEIGHT: tl.constexpr, G_BY_ROW: tl.constexpr, MEAN: tl.constexpr,
    ACC: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    BY_ROW: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the logits for a tile of rows and classes."""
    pid = tl.program_id(0)
    stride_outer, t_outer, out_outer = multiple(stride_outer, UNIT), multiple(t_outer, UNIT), multiple(out_outer, UNIT)
    if BY_ROW:
        inner = multiple(inner, UNIT)
        stride_class, t_class = multiple(stride_class, UNIT), multiple(t_class, UNIT)
        out_class = multiple(out_class, UNIT)
    else:
        classes = multiple(classes, UNIT)
        stride_inner, t_inner = multiple(stride_inner, UNIT), multiple(t_inner, UNIT)
        out_inner = multiple(out_inner, UNIT)
    entry, places, rows = rows_of_tile(pid // chunks, inner, ROWS)
    start = (pid % chunks) * (PARTS * BLOCK)
    exists = places < inner
    smoothing = tl.full((), smoothing_high, ACC) + tl.full((), smoothing_low, ACC)
    if G_BY_ROW:
        g = tl.load(g_ptr + rows, mask=exists, other=0.0).to(ACC)
    else:
        g = tl.where(exists, tl.load(g_ptr).to(ACC), 0.0)
    if MEAN:
        g = g / n_rows
    base = (entry * stride_outer + places * stride_inner)[:, None]
    t_base = (entry * t_outer + places * t_inner)[:, None]
    out_base = (entry * out_outer + places * out_inner)[:, None]
    lse = tl.load(lse_ptr + rows, mask=exists, other=0.0)
    mass = tl.load(mass_ptr + rows, mask=exists, other=0.0)
    for i in tl.static_range(PARTS):
        cols = start + i * BLOCK + tl.arange(0, BLOCK)
        there = exists[:, None] & (cols < classes)[None, :]
        wide = cols.to(tl.int64)[None, :]
        x = tl.load(x_ptr + base + wide * stride_class, mask=there, other=0.0).to(ACC)
        t = tl.load(t_ptr + t_base + wide * t_class, mask=there, other=0.0).to(ACC)
        t = t * (1.0 - smoothing) + smoothing / classes
        if HAS_WEIGHT:
            t = t * tl.load(weight_ptr + cols, mask=cols < classes, other=0.0).to(ACC)[None, :]
        out = g[:, None] * (exponential(x - lse[:, None]) * mass[:, None] - t)
        tl.store(out_ptr + out_base + wide * out_class, out, mask=there)


def forward(
    x: Rows, t: Rows, weight: torch.Tensor | None, smoothing: float, *, keep_rows: bool, save: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
    """Return the losses, lse and mass of the rows (each only if requested), and the partial sums of the tiles."""
    x, t = joined(x, t)
    size = unit(x, t)
    parts, rows, block = tile(x, _FORWARD, size)
    programs = x.tiles(rows)
    wide, device = wide_dtype(x), x.tensor.device
    loss = torch.empty(x.number, dtype=x.tensor.dtype, device=device) if keep_rows else None
    lse = torch.empty(x.number, dtype=wide, device=device) if save else None
    mass = torch.empty(x.number, dtype=wide, device=device) if save else None
    partial = torch.empty(3 * programs, dtype=wide, device=device)
    tensors = (x.tensor, t.tensor, weight, loss, lse, mass, partial)
    numbers = (
        x.classes, x.inner, *x.strides, *t.strides, *in_two(smoothing), programs,
        weight is not None, keep_rows, save, x.accumulator, parts, rows, block, x.by_row, size,
    )  # fmt: skip
    soft_forward_kernel(programs, tensors, numbers, WARPS)
    return loss, lse, mass, partial


def backward(
    g: torch.Tensor, x: Rows, t: Rows, lse: torch.Tensor, mass: torch.Tensor, weight: torch.Tensor | None,
    smoothing: float, *, by_row: bool, mean: bool, out: Rows,
) -> None:  # fmt: skip
    """Write the gradient of the logits to `out`."""
    x, t, out = joined(x, t, out)
    size = unit(x, t, out)
    parts, rows, block = tile(x, BACKWARD, size)
    chunks = blocks(x.classes, parts * block)
    tensors = (g, x.tensor, t.tensor, weight, lse, mass, out.tensor)
    numbers = (
        x.number, x.classes, x.inner, *x.strides, *t.strides, *out.strides, *in_two(smoothing), chunks,
        weight is not None, by_row, mean, x.accumulator, parts, rows, block, x.by_row, size,
    )  # fmt: skip
    soft_backward_kernel(x.tiles(rows) * chunks, tensors, numbers, WARPS)
