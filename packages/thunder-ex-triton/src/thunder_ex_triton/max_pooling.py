# SPDX-License-Identifier: Apache-2.0
"""Maximum pooling of images (`max_pool2d`) and its gradient.

As in torch, of equal elements the first one counts, and a NaN is larger than all others. The gradient gathers: each
input element sums over the windows whose index it is. Sums are computed in float32 in a fixed order and rounded once,
so that they are deterministic, which torch's are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl

from thunder import prims
from thunder_ex_triton.images import Limits, new_like, tile_of, tiles
from thunder_ex_triton.launch import blocks, kernel
from thunder_ex_triton.pooling import TAKEN, first_window, number_of_windows, takes_windows

__all__ = ["TAKEN", "like", "like_backward", "max_pool", "max_pool_backward", "register"]

_MOST_ELEMENTS = 1 << 31  # of an image: kernels compute indices with 32 bits


@kernel
def largest(
    a_ptr, out_ptr, indices_ptr,
    channels, height, width, size_h, size_w, a_n, a_c, a_h, a_w, out_n, out_c, out_h, out_w,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, APART_H: tl.constexpr, APART_W: tl.constexpr,
    CB: tl.constexpr, XB: tl.constexpr, BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the output and of the indices, which have its strides. `APART_*` is the dilation."""
    n, c, _, y, x = tile_of(channels, 1, height, width, CB, XB, BY_CHANNEL)
    inside = (c < channels) & (x < width)
    image = a_ptr + n * a_n + c * a_c
    best = tl.full(inside.shape, float("-inf"), tl.float32)
    index = tl.full(inside.shape, -1, tl.int32)
    for i in tl.static_range(KERNEL_H):
        at_h = y * STRIDE_H - PAD_H + i * APART_H
        if (at_h >= 0) & (at_h < size_h):
            row = image + at_h.to(tl.int64) * a_h
            for j in tl.static_range(KERNEL_W):
                at_w = x * STRIDE_W - PAD_W + j * APART_W
                there = inside & (at_w >= 0) & (at_w < size_w)
                value = tl.load(row + at_w.to(tl.int64) * a_w, mask=there, other=float("-inf")).to(tl.float32)
                # The first element of a window counts in any case: all may be -inf.
                better = there & ((index < 0) | (value > best) | (value != value))
                best = tl.where(better, value, best)
                index = tl.where(better, at_h * size_w + at_w, index)
    place = n * out_n + c * out_c + y.to(tl.int64) * out_h + x.to(tl.int64) * out_w
    tl.store(out_ptr + place, best.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(indices_ptr + place, index.to(tl.int64), mask=inside)


@kernel
def gather(
    g_ptr, indices_ptr, out_ptr,
    channels, height, width, end_h, end_w, g_n, g_c, g_h, g_w, i_n, i_c, i_h, i_w, out_n, out_c, out_h, out_w,
    REACH_H: tl.constexpr, REACH_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, COUNT_H: tl.constexpr, COUNT_W: tl.constexpr,
    CB: tl.constexpr, XB: tl.constexpr, BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the input's gradient. `end_*` are the sizes of the output, `REACH_*` the lengths of windows."""
    n, c, _, y, x = tile_of(channels, 1, height, width, CB, XB, BY_CHANNEL)
    inside = (c < channels) & (x < width)
    gradients = g_ptr + n * g_n + c * g_c
    indices = indices_ptr + n * i_n + c * i_c
    here = y * width + x
    total = tl.zeros(inside.shape, tl.float32)
    for i in tl.static_range(COUNT_H):
        at_h = first_window(y, REACH_H, STRIDE_H, PAD_H) + i
        if (at_h < end_h) & (at_h * STRIDE_H <= y + PAD_H):  # the window exists, and begins here or before
            for j in tl.static_range(COUNT_W):
                at_w = first_window(x, REACH_W, STRIDE_W, PAD_W) + j
                there = inside & (at_w < end_w) & (at_w * STRIDE_W <= x + PAD_W)
                row, column = at_h.to(tl.int64), at_w.to(tl.int64)
                index = tl.load(indices + row * i_h + column * i_w, mask=there, other=-1)
                value = tl.load(gradients + row * g_h + column * g_w, mask=there & (index == here), other=0.0)
                total += value.to(tl.float32)
    place = out_ptr + n * out_n + c * out_c + y.to(tl.int64) * out_h + x.to(tl.int64) * out_w
    tl.store(place, total.to(out_ptr.dtype.element_ty), mask=inside)


# -- operators ---------------------------------------------------------------------------------------------------------
def _reach(kernel_size: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Return the lengths of windows, from their first to their last element."""
    return [(k - 1) * d + 1 for k, d in zip(kernel_size, dilation)]


def max_pool(
    a: torch.Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the largest elements of the windows of `a`, and their positions in the image."""
    windows = zip(a.shape[2:], _reach(kernel_size, dilation), stride, padding)
    ends = [number_of_windows(*window, ceil_mode) for window in windows]
    out, channels_last = new_like(a, ends)
    indices = torch.empty_like(out, dtype=torch.int64)
    if out.numel() == 0:
        return out, indices
    programs, tile, warps, _ = tiles(*a.shape[:2], 1, *ends, channels_last, Limits())
    numbers = (
        a.shape[1], *ends, *a.shape[2:], *a.stride(), *out.stride(),
        *kernel_size, *stride, *padding, *dilation, *tile, channels_last,
    )  # fmt: skip
    largest(programs, (a, out, indices), numbers, warps)
    return out, indices


def max_pool_backward(
    g: torch.Tensor, a: torch.Tensor, indices: torch.Tensor, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool,
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of `max_pool` for the image `a`, of which the shape and the layout are read."""
    out, channels_last = new_like(a, a.shape[2:])
    if out.numel() == 0:
        return out
    programs, tile, warps, _ = tiles(*a.shape[:2], 1, *a.shape[2:], channels_last, Limits())
    reach = _reach(kernel_size, dilation)
    numbers = (
        a.shape[1], *a.shape[2:], *g.shape[2:], *g.stride(), *indices.stride(), *out.stride(),
        *reach, *stride, *padding, *[blocks(r, s) for r, s in zip(reach, stride)], *tile, channels_last,
    )  # fmt: skip
    gather(programs, (g, indices, out), numbers, warps)
    return out


# -- registration ------------------------------------------------------------------------------------------------------
def _takes(
    a: Any, kernel_size: Sequence[Any], stride: Sequence[Any], padding: Sequence[Any], dilation: Sequence[Any],
    ceil_mode: bool,
) -> bool | str:  # fmt: skip
    """Return True, or the reason why the kernels do not support the call."""
    found = takes_windows(a, kernel_size, stride, padding, dilation)
    if found is True and a.shape[2] * a.shape[3] >= _MOST_ELEMENTS:
        return f"the kernels do not support images of {_MOST_ELEMENTS} elements"
    if found is True and any(p > 0 and d > 1 for p, d in zip(padding, dilation)):
        return "windows with padding and dilation may contain no element, and torch's index of those is not defined"
    return found


def _takes_backward(g: Any, a: Any, indices: Any, *how: Any) -> bool | str:
    return _takes(a, *how)


def like(a: Any, *how: Any) -> Any:
    """Decompose into torch's operation."""
    return prims.max_pool(a, *how)


def like_backward(g: Any, a: Any, indices: Any, *how: Any) -> Any:
    """Decompose into torch's operation."""
    return prims.max_pool_backward(g, a, indices, *how)


def register(registry: Any, executor: str) -> None:
    """Register the operators as implementations of maximum pooling and of its gradient."""
    forward = registry.register_operator("triton_max_pool", executor=executor, like=like, fn=max_pool)
    backward = registry.register_operator(
        "triton_max_pool_backward", executor=executor, like=like_backward, fn=max_pool_backward
    )
    registry.register_implementation(prims.max_pool, forward, executor=executor, checker=_takes)
    registry.register_implementation(prims.max_pool_backward, backward, executor=executor, checker=_takes_backward)
