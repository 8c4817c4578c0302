# SPDX-License-Identifier: Apache-2.0
"""Kernels of depthwise convolutions in two dimensions, and of their gradients.

A thread computes several rows of one column of the output: a row of the input that it loads is used by all rows of the
output that it contributes to, while everything is in registers. Sums are computed in float32 in a fixed order.
"""

# mypy: disable-error-code="assignment"
# Tuples of Triton's language grow while loops are unrolled.

from __future__ import annotations

import triton
import triton.language as tl

from thunder_ex_triton.launch import kernel

__all__ = ["convolve", "gather", "sum_parts", "weight_parts"]


@triton.jit
def columns_of(index, channels, width, elements, BLOCK: tl.constexpr, CB: tl.constexpr, BY_CHANNEL: tl.constexpr):
    """Return the batch entry, channel and width of a program's columns, which channels and which columns exist.

    With CB channels, the columns are a tile of several channels and widths, for operands of different layouts: both are
    read and written along their contiguous dimension. Otherwise (CB is 1) columns are numbered along the dimension that
    is contiguous in all operands, and no program but the last has columns that do not exist.
    """
    if CB > 1:
        across = tl.cdiv(width, BLOCK // CB)
        groups = tl.cdiv(channels, CB)
        x = (index % across) * (BLOCK // CB) + tl.arange(0, BLOCK // CB)[:, None]
        c = (index // across % groups) * CB + tl.arange(0, CB)[None, :]
        n = (index // (across * groups)).to(tl.int64)
        exists = c < channels
        inside = exists & (x < width)
    else:
        e = index * BLOCK + tl.arange(0, BLOCK)
        if BY_CHANNEL:
            c = e % channels
            x = e // channels % width
        else:
            x = e % width
            c = e // width % channels
        n = (e // (channels * width)).to(tl.int64)
        exists = e < elements
        inside = exists
    return n, c, x, exists, inside


@kernel
def convolve(
    a_ptr, w_ptr, bias_ptr, out_ptr,
    channels, height, width, size_h, size_w, elements, a_n, a_c, a_h, a_w, out_n, out_c, out_h, out_w, w_c, w_tap,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    CB: tl.constexpr, BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """Compute ROWS rows of BLOCK columns of the output, where a column is a batch entry, a channel and a width.

    `size_*` are the sizes of the input, and `elements` is the number of columns.
    """
    strips = tl.cdiv(height, ROWS)
    index = tl.program_id(0) // strips
    n, c, x, exists, inside = columns_of(index, channels, width, elements, BLOCK, CB, BY_CHANNEL)
    y = (tl.program_id(0) % strips) * ROWS + tl.zeros(inside.shape, tl.int32)  # the interpreter has no scalar masks
    image = a_ptr + n * a_n + c.to(tl.int64) * a_c
    first = tl.zeros(inside.shape, tl.float32)
    if BIAS:
        first += tl.load(bias_ptr + c, mask=exists, other=0.0).to(tl.float32)
    sums = ()
    for _t in tl.static_range(ROWS):
        sums = sums + (first,)
    for j in tl.static_range(KERNEL_W):
        at_w = x * STRIDE_W - PAD_W + j
        there = inside & (at_w >= 0) & (at_w < size_w)
        column = image + at_w.to(tl.int64) * a_w
        weights = ()
        for i in tl.static_range(KERNEL_H):
            w = tl.load(w_ptr + c * w_c + (i * KERNEL_W + j) * w_tap, mask=exists, other=0.0).to(tl.float32)
            weights = weights + (w,)
        for r in tl.static_range((ROWS - 1) * STRIDE_H + KERNEL_H):
            at_h = y * STRIDE_H - PAD_H + r
            is_row = (at_h >= 0) & (at_h < size_h)
            value = tl.load(column + at_h.to(tl.int64) * a_h, mask=there & is_row, other=0.0).to(tl.float32)
            new = ()
            for t in tl.static_range(ROWS):
                if r >= t * STRIDE_H and r < t * STRIDE_H + KERNEL_H:
                    new = new + (sums[t] + value * weights[r - t * STRIDE_H],)
                else:
                    new = new + (sums[t],)
            sums = new
    place = out_ptr + n * out_n + c.to(tl.int64) * out_c + x.to(tl.int64) * out_w
    for t in tl.static_range(ROWS):
        at = place + (y + t).to(tl.int64) * out_h
        tl.store(at, sums[t].to(out_ptr.dtype.element_ty), mask=inside & (y + t < height))


@kernel
def gather(
    g_ptr, w_ptr, out_ptr,
    channels, height, width, end_h, end_w, elements, g_n, g_c, g_h, g_w, out_n, out_c, out_h, out_w, w_c, w_tap,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CB: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """Compute ROWS rows of BLOCK columns of the input's gradient. `end_*` are the sizes of the output's gradient.

    ROWS is a multiple of STRIDE_H, so that the elements of the weight which a row reads are known at compile time.
    """
    strips = tl.cdiv(height, ROWS)
    index = tl.program_id(0) // strips
    n, c, x, exists, inside = columns_of(index, channels, width, elements, BLOCK, CB, BY_CHANNEL)
    strip = tl.program_id(0) % strips + tl.zeros(inside.shape, tl.int32)
    image = g_ptr + n * g_n + c.to(tl.int64) * g_c
    sums = ()
    for _t in tl.static_range(ROWS):
        sums = sums + (tl.zeros(inside.shape, tl.float32),)
    for j in tl.static_range(KERNEL_W):
        steps = x + PAD_W - j
        at_w = steps // STRIDE_W
        there = inside & (steps >= 0) & (steps % STRIDE_W == 0) & (at_w < end_w)
        column = image + at_w.to(tl.int64) * g_w
        for i in tl.static_range(KERNEL_H):
            w = tl.load(w_ptr + c * w_c + (i * KERNEL_W + j) * w_tap, mask=exists, other=0.0).to(tl.float32)
            new = ()
            for t in tl.static_range(ROWS):
                if (t + PAD_H - i) % STRIDE_H == 0:
                    at_h = strip * (ROWS // STRIDE_H) + (t + PAD_H - i) // STRIDE_H
                    is_row = (at_h >= 0) & (at_h < end_h)
                    value = tl.load(column + at_h.to(tl.int64) * g_h, mask=there & is_row, other=0.0)
                    new = new + (sums[t] + value.to(tl.float32) * w,)
                else:
                    new = new + (sums[t],)
            sums = new
    y = strip * ROWS
    place = out_ptr + n * out_n + c.to(tl.int64) * out_c + x.to(tl.int64) * out_w
    for t in tl.static_range(ROWS):
        at = place + (y + t).to(tl.int64) * out_h
        tl.store(at, sums[t].to(out_ptr.dtype.element_ty), mask=inside & (y + t < height))


@kernel
def weight_parts(
    g_ptr, a_ptr, part_ptr,
    channels, height, width, size_h, size_w, columns, per_part, g_n, g_c, g_h, g_w, a_n, a_c, a_h, a_w,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, PB: tl.constexpr,
    CB: tl.constexpr,
):  # fmt: skip
    """Compute a part of the gradients of the weight and the bias of CB channels: the sums over `per_part` tiles.

    A tile is ROWS rows of PB columns, where a column is a batch entry and a width of `g`. The parts have the shape
    `(parts, elements of the weight, and one for the bias, channels)`.
    """
    c = tl.program_id(0) * CB + tl.arange(0, CB)[None, :]
    strips = tl.cdiv(height, ROWS)
    first = tl.program_id(1) * per_part
    last = tl.minimum(first + per_part, strips * tl.cdiv(columns, PB))
    sums = ()
    for _k in tl.static_range(KERNEL_H * KERNEL_W):
        sums = sums + (tl.zeros((PB, CB), tl.float32),)
    total = tl.zeros((PB, CB), tl.float32)
    for tile in range(first, last):
        position = (tile // strips) * PB + tl.arange(0, PB)[:, None]
        y = tile % strips * ROWS + tl.zeros((PB, 1), tl.int32)
        inside = (position < columns) & (c < channels)
        x = position % width
        n = (position // width).to(tl.int64)
        place = g_ptr + n * g_n + c.to(tl.int64) * g_c + x.to(tl.int64) * g_w
        rows = ()
        for t in tl.static_range(ROWS):
            g = tl.load(place + (y + t).to(tl.int64) * g_h, mask=inside & (y + t < height), other=0.0).to(tl.float32)
            rows = rows + (g,)
            if BIAS:
                total += g
        image = a_ptr + n * a_n + c.to(tl.int64) * a_c
        found = ()
        for j in tl.static_range(KERNEL_W):
            at_w = x * STRIDE_W - PAD_W + j
            there = inside & (at_w >= 0) & (at_w < size_w)
            column = image + at_w.to(tl.int64) * a_w
            taps = ()
            for i in tl.static_range(KERNEL_H):
                taps = taps + (sums[j * KERNEL_H + i],)
            for r in tl.static_range((ROWS - 1) * STRIDE_H + KERNEL_H):
                at_h = y * STRIDE_H - PAD_H + r
                is_row = (at_h >= 0) & (at_h < size_h)
                value = tl.load(column + at_h.to(tl.int64) * a_h, mask=there & is_row, other=0.0).to(tl.float32)
                new = ()
                for i in tl.static_range(KERNEL_H):
                    if r >= i and (r - i) % STRIDE_H == 0 and (r - i) // STRIDE_H < ROWS:
                        new = new + (taps[i] + value * rows[(r - i) // STRIDE_H],)
                    else:
                        new = new + (taps[i],)
                taps = new
            found = found + taps
        sums = found
    at = part_ptr + (tl.program_id(1) * (KERNEL_H * KERNEL_W + BIAS)).to(tl.int64) * channels
    channel = tl.program_id(0) * CB + tl.arange(0, CB)
    for j in tl.static_range(KERNEL_W):
        for i in tl.static_range(KERNEL_H):
            of_tap = tl.sum(sums[j * KERNEL_H + i], 0)
            tl.store(at + (i * KERNEL_W + j) * channels + channel, of_tap, mask=channel < channels)
    if BIAS:
        tl.store(at + KERNEL_H * KERNEL_W * channels + channel, tl.sum(total, 0), mask=channel < channels)


@kernel
def sum_parts(
    part_ptr, weight_ptr, bias_ptr, channels, parts, taps, w_c, w_tap,
    BIAS: tl.constexpr, PARTS: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """Sum the parts of one element of the weights of CB channels, or of their biases."""
    tap = tl.program_id(1)
    c = tl.program_id(0) * CB + tl.arange(0, CB)
    total = tl.zeros((PARTS, CB), tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)[:, None]
        at = part_ptr + (part.to(tl.int64) * (taps + BIAS) + tap) * channels + c[None, :]
        total += tl.load(at, mask=(part < parts) & (c < channels)[None, :], other=0.0)
    result = tl.sum(total, 0)
    if tap < taps:
        tl.store(weight_ptr + c * w_c + tap * w_tap, result.to(weight_ptr.dtype.element_ty), mask=c < channels)
    elif BIAS:
        tl.store(bias_ptr + c, result.to(bias_ptr.dtype.element_ty), mask=c < channels)
