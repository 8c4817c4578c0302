# SPDX-License-Identifier: Apache-2.0
"""Kernels of grouped convolutions in two dimensions, and of their gradients, as products on tensor cores.

In each group, a convolution is the product of a matrix of windows, of which a row has the elements of the input that a
position reads, with the matrix of the weight. The windows are never stored: the kernels read them where they are, and
all channels of a group that an element of the filter reads (a "tap") are contiguous in memory. Sums are computed in
float32 in a fixed order, without atomics.
"""

# mypy: disable-error-code="assignment"

from __future__ import annotations

import triton
import triton.language as tl

from thunder_ex_triton.launch import kernel

__all__ = ["convolve", "pack", "sum_parts", "weight_parts"]


@triton.jit
def position_of(m, height, width):
    """Return the batch entry, the row and the column of positions."""
    row = m // width
    n = row // height
    return n.to(tl.int64), row - n * height, m - row * width


@triton.jit
def tap_of(k, CHANNELS: tl.constexpr, KERNEL_W: tl.constexpr):
    """Return the row and the column of the taps of a window's elements, and their channels."""
    tap = k // CHANNELS
    return tap // KERNEL_W, tap % KERNEL_W, k % CHANNELS


@kernel
def convolve(
    a_ptr, w_ptr, bias_ptr, out_ptr,
    groups, positions, height, width, size_h, size_w, a_n, a_h, a_w, out_n, out_c, out_h, out_w, w_group, w_h, w_w,
    pad_h, pad_w,
    CHANNELS: tl.constexpr, FILTERS: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, STEP: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute ROWS positions of COLUMNS of the filters of a group.

    `size_*` are the sizes of the input. The next tap reads the next position of the input, or with a STEP of -1 the
    previous one. A tap's part of the weight has the shape (CHANNELS, FILTERS).
    """
    across = tl.cdiv(FILTERS, COLUMNS)
    group = tl.program_id(0) % groups
    o = tl.program_id(0) // groups % across * COLUMNS + tl.arange(0, COLUMNS)
    m = tl.program_id(0) // (groups * across) * ROWS + tl.arange(0, ROWS)
    n, y, x = position_of(m, height, width)
    top, left = y * STRIDE_H - pad_h, x * STRIDE_W - pad_w
    windows = a_ptr + group * CHANNELS + n * a_n + top.to(tl.int64) * a_h + left.to(tl.int64) * a_w
    weights = w_ptr + group.to(tl.int64) * w_group + o
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(0, KERNEL_H * KERNEL_W * CHANNELS, INNER, num_stages=STAGES):
        k = start + tl.arange(0, INNER)
        i, j, c = tap_of(k, CHANNELS, KERNEL_W)
        exists = k < KERNEL_H * KERNEL_W * CHANNELS
        at_h, at_w = top[:, None] + (i * STEP)[None, :], left[:, None] + (j * STEP)[None, :]
        inside = (at_h >= 0) & (at_h < size_h) & (at_w >= 0) & (at_w < size_w)
        inside = inside & (m < positions)[:, None] & exists[None, :]
        offset = (i.to(tl.int64) * a_h + j.to(tl.int64) * a_w) * STEP + c
        a = tl.load(windows[:, None] + offset[None, :], mask=inside, other=0.0)
        row = i * w_h + j * w_w + c * FILTERS
        w = tl.load(weights[None, :] + row[:, None], mask=exists[:, None] & (o < FILTERS)[None, :], other=0.0)
        total = tl.dot(a, w, total, input_precision="ieee")
    channel = group * FILTERS + o
    if BIAS:
        total += tl.load(bias_ptr + channel, mask=o < FILTERS, other=0.0).to(tl.float32)[None, :]
    place = out_ptr + n * out_n + y.to(tl.int64) * out_h + x.to(tl.int64) * out_w
    at = place[:, None] + (channel.to(tl.int64) * out_c)[None, :]
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=(m < positions)[:, None] & (o < FILTERS)[None, :])


@kernel
def weight_parts(
    g_ptr, a_ptr, part_ptr,
    groups, positions, height, width, size_h, size_w, per_part, g_n, g_h, g_w, a_n, a_h, a_w, pad_h, pad_w,
    CHANNELS: tl.constexpr, FILTERS: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    POSITIONS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute a part of the gradient of a group's weight: the sum over `per_part` tiles of POSITIONS.

    A program computes ROWS elements of a window, for COLUMNS of the filters. The parts have the shape
    `(parts, groups, KERNEL_H, KERNEL_W, CHANNELS, FILTERS)`.
    """
    across = tl.cdiv(FILTERS, COLUMNS)
    group = tl.program_id(0) % groups
    o = tl.program_id(0) // groups % across * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.program_id(0) // (groups * across) * ROWS + tl.arange(0, ROWS)
    i, j, c = tap_of(k, CHANNELS, KERNEL_W)
    exists = k < KERNEL_H * KERNEL_W * CHANNELS
    elements = a_ptr + group * CHANNELS + i.to(tl.int64) * a_h + j.to(tl.int64) * a_w + c
    filters = g_ptr + group * FILTERS + o
    first = tl.program_id(1) * per_part
    last = tl.minimum(first + per_part, tl.cdiv(positions, POSITIONS))
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in tl.range(first, last, num_stages=STAGES):
        m = tile * POSITIONS + tl.arange(0, POSITIONS)
        n, y, x = position_of(m, height, width)
        top, left = y * STRIDE_H - pad_h, x * STRIDE_W - pad_w
        at_h, at_w = top[None, :] + i[:, None], left[None, :] + j[:, None]
        inside = (at_h >= 0) & (at_h < size_h) & (at_w >= 0) & (at_w < size_w)
        inside = inside & (m < positions)[None, :] & exists[:, None]
        window = n * a_n + top.to(tl.int64) * a_h + left.to(tl.int64) * a_w
        a = tl.load(elements[:, None] + window[None, :], mask=inside, other=0.0)
        place = n * g_n + y.to(tl.int64) * g_h + x.to(tl.int64) * g_w
        g = tl.load(
            filters[None, :] + place[:, None], mask=(m < positions)[:, None] & (o < FILTERS)[None, :], other=0.0
        )
        total = tl.dot(a, g, total, input_precision="ieee")
    block = (tl.program_id(1) * groups + group).to(tl.int64) * (KERNEL_H * KERNEL_W * CHANNELS * FILTERS)
    at = part_ptr + block + k[:, None] * FILTERS + o[None, :]
    tl.store(at, total, mask=exists[:, None] & (o < FILTERS)[None, :])


@triton.jit
def tile_of(taps, OUTER: tl.constexpr, INNER: tl.constexpr, TAPS: tl.constexpr, CB: tl.constexpr):
    """Return the group, the outer channel, the taps and the inner channels of a program that transposes a weight."""
    across = tl.cdiv(INNER, CB)
    inner = tl.program_id(0) % across * CB + tl.arange(0, CB)
    rest = tl.program_id(0) // across
    tap = rest % tl.cdiv(taps, TAPS) * TAPS + tl.arange(0, TAPS)
    rest = rest // tl.cdiv(taps, TAPS)
    return (rest // OUTER).to(tl.int64), rest % OUTER, tap, inner, (tap < taps)[:, None] & (inner < INNER)[None, :]


@kernel
def pack(
    w_ptr, out_ptr, taps, w_group, w_outer, w_inner, w_h, w_w,
    KERNEL_W: tl.constexpr, OUTER: tl.constexpr, INNER: tl.constexpr, TAPS: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """Order a weight as `(groups, taps, OUTER, INNER)`, where OUTER and INNER are its channels and filters."""
    group, outer, tap, inner, exists = tile_of(taps, OUTER, INNER, TAPS, CB)
    source = (tap // KERNEL_W).to(tl.int64) * w_h + (tap % KERNEL_W).to(tl.int64) * w_w
    source = source[:, None] + inner.to(tl.int64)[None, :] * w_inner
    w = tl.load(w_ptr + group * w_group + outer.to(tl.int64) * w_outer + source, mask=exists)
    place = (group * taps + tap)[:, None] * (OUTER * INNER) + outer * INNER + inner[None, :]
    tl.store(out_ptr + place, w, mask=exists)


@kernel
def sum_parts(
    part_ptr, out_ptr, taps, parts, part_size,
    OUTER: tl.constexpr, INNER: tl.constexpr, TAPS: tl.constexpr, CB: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Sum the parts of a weight's gradient, of shape `(groups, taps, OUTER, INNER)`, as `(groups, INNER, OUTER, taps)`.

    PARTS parts are read at a time.
    """
    group, outer, tap, inner, exists = tile_of(taps, OUTER, INNER, TAPS, CB)
    source = (group * taps + tap)[:, None] * (OUTER * INNER) + outer * INNER + inner[None, :]
    total = tl.zeros((TAPS, CB), tl.float32)
    for start in range(0, parts, PARTS):
        part = (start + tl.arange(0, PARTS))[:, None, None]
        at = part_ptr + part.to(tl.int64) * part_size + source[None, :, :]
        total += tl.sum(tl.load(at, mask=(part < parts) & exists[None, :, :], other=0.0), 0)
    place = ((group * INNER + inner)[None, :] * OUTER + outer) * taps + tap[:, None]
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=exists)
