# SPDX-License-Identifier: Apache-2.0
"""Mean pooling of images (`avg_pool2d`) and its gradient.

The gradient gathers: each input element sums over the windows that contain it. Sums are computed in float32 in a fixed
order and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from thunder import prims
from thunder.extend import dtypes
from thunder_ex_triton.images import new_like, tile_of, tiles
from thunder_ex_triton.launch import blocks, kernel
from thunder_ex_triton.probe import unusable_device

__all__ = [
    "TAKEN", "avg_pool", "avg_pool_backward", "first_window", "like", "like_backward", "number_of_windows", "register",
    "takes_windows",
]  # fmt: skip

TAKEN = (dtypes.float32, dtypes.float16, dtypes.bfloat16)
_LARGEST = 8  # windows are unrolled


@triton.jit
def _extent(position, size, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, WITH_PAD: tl.constexpr):
    """Return the length of a window, which ends at the padding's end at most, with or without its padding."""
    start = position * STRIDE - PAD
    end = tl.minimum(start + KERNEL, size + PAD)
    if WITH_PAD:
        return end - start
    else:
        return tl.minimum(end, size) - tl.maximum(start, 0)


@kernel
def pool(
    a_ptr, out_ptr,
    channels, height, width, size_h, size_w, a_n, a_c, a_h, a_w, out_n, out_c, out_h, out_w,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, WITH_PAD: tl.constexpr, DIVISOR: tl.constexpr,
    CB: tl.constexpr, XB: tl.constexpr, BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the output. `size_*` are the sizes of the input. With DIVISOR 0, the window's size divides."""
    n, c, _, y, x = tile_of(channels, 1, height, width, CB, XB, BY_CHANNEL)
    inside = (c < channels) & (x < width)
    image = a_ptr + n * a_n + c * a_c
    total = tl.zeros(inside.shape, tl.float32)
    for i in tl.static_range(KERNEL_H):
        at_h = y * STRIDE_H - PAD_H + i
        if (at_h >= 0) & (at_h < size_h):
            row = image + at_h.to(tl.int64) * a_h
            for j in tl.static_range(KERNEL_W):
                at_w = x * STRIDE_W - PAD_W + j
                there = inside & (at_w >= 0) & (at_w < size_w)
                total += tl.load(row + at_w.to(tl.int64) * a_w, mask=there, other=0.0).to(tl.float32)
    if DIVISOR == 0:
        rows = _extent(y, size_h, KERNEL_H, STRIDE_H, PAD_H, WITH_PAD)
        count = rows * _extent(x, size_w, KERNEL_W, STRIDE_W, PAD_W, WITH_PAD)
        total = total / tl.maximum(count, 1).to(tl.float32)  # outside of the image there are no elements
    else:
        total = total / DIVISOR
    place = out_ptr + n * out_n + c * out_c + y.to(tl.int64) * out_h + x.to(tl.int64) * out_w
    tl.store(place, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def first_window(index, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr):
    """Return the first window that contains the input position `index`."""
    return tl.maximum(index + PAD - KERNEL + STRIDE, 0) // STRIDE


@kernel
def gather(
    g_ptr, out_ptr,
    channels, height, width, end_h, end_w, g_n, g_c, g_h, g_w, out_n, out_c, out_h, out_w,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, WITH_PAD: tl.constexpr, DIVISOR: tl.constexpr,
    COUNT_H: tl.constexpr, COUNT_W: tl.constexpr, CB: tl.constexpr, XB: tl.constexpr, BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the input's gradient. `end_*` are the sizes of the output, whose gradient is `g`."""
    n, c, _, y, x = tile_of(channels, 1, height, width, CB, XB, BY_CHANNEL)
    inside = (c < channels) & (x < width)
    image = g_ptr + n * g_n + c * g_c
    total = tl.zeros(inside.shape, tl.float32)
    for i in tl.static_range(COUNT_H):
        at_h = first_window(y, KERNEL_H, STRIDE_H, PAD_H) + i
        if (at_h < end_h) & (at_h * STRIDE_H <= y + PAD_H):  # the window exists, and begins here or before
            row = image + at_h.to(tl.int64) * g_h
            rows = _extent(at_h, height, KERNEL_H, STRIDE_H, PAD_H, WITH_PAD)
            for j in tl.static_range(COUNT_W):
                at_w = first_window(x, KERNEL_W, STRIDE_W, PAD_W) + j
                there = inside & (at_w < end_w) & (at_w * STRIDE_W <= x + PAD_W)
                value = tl.load(row + at_w.to(tl.int64) * g_w, mask=there, other=0.0).to(tl.float32)
                if DIVISOR == 0:
                    count = rows * _extent(at_w, width, KERNEL_W, STRIDE_W, PAD_W, WITH_PAD)
                    total += value / tl.maximum(count, 1).to(tl.float32)  # windows that do not exist have no elements
                else:
                    total += value / DIVISOR
    place = out_ptr + n * out_n + c * out_c + y.to(tl.int64) * out_h + x.to(tl.int64) * out_w
    tl.store(place, total.to(out_ptr.dtype.element_ty), mask=inside)


# -- operators ---------------------------------------------------------------------------------------------------------
def number_of_windows(size: int, kernel_size: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """Return the number of windows. The last one begins inside of the image or of its left padding."""
    count = (size + 2 * padding - kernel_size + (stride - 1 if ceil_mode else 0)) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def avg_pool(
    a: torch.Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> torch.Tensor:  # fmt: skip
    """Return the means of the windows of `a`."""
    windows = zip(kernel_size, stride, padding)
    ends = [number_of_windows(n, *window, ceil_mode) for n, window in zip(a.shape[2:], windows)]
    out, channels_last = new_like(a, ends)
    if out.numel() == 0:
        return out
    programs, tile, warps = tiles(*a.shape[:2], 1, *ends, channels_last)
    numbers = (
        a.shape[1], *ends, *a.shape[2:], *a.stride(), *out.stride(),
        *kernel_size, *stride, *padding, count_include_pad, divisor_override or 0, *tile, channels_last,
    )  # fmt: skip
    pool(programs, (a, out), numbers, warps)
    return out


def avg_pool_backward(
    g: torch.Tensor, a: torch.Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of `avg_pool` for the image `a`, of which the shape and the layout are read."""
    out, channels_last = new_like(a, a.shape[2:])
    if out.numel() == 0:
        return out
    programs, tile, warps = tiles(*a.shape[:2], 1, *a.shape[2:], channels_last)
    numbers = (
        a.shape[1], *a.shape[2:], *g.shape[2:], *g.stride(), *out.stride(),
        *kernel_size, *stride, *padding, count_include_pad, divisor_override or 0,
        *[blocks(k, s) for k, s in zip(kernel_size, stride)], *tile, channels_last,
    )  # fmt: skip
    gather(programs, (g, out), numbers, warps)
    return out


# -- registration ------------------------------------------------------------------------------------------------------
def takes_windows(a: Any, kernel_size: Sequence[Any], *numbers: Sequence[Any]) -> bool | str:
    """Return True, or the reason why kernels do not support windows with these numbers (strides, padding, …)."""
    reason = unusable_device(a.device)
    if reason is not None:
        return reason
    if a.ndim != 4 or len(kernel_size) != 2 or a.dtype not in TAKEN:
        return f"the kernels do not support windows of {len(kernel_size)} of {a.ndim} dimensions in {a.dtype}"
    if not all(type(n) is int for n in (*a.shape, *kernel_size, *(n for given in numbers for n in given))):
        return "the kernels do not support symbolic sizes"
    if max(kernel_size) > _LARGEST:
        return f"torch's kernels are used for windows of more than {_LARGEST} elements"
    return True


def _takes(
    a: Any, kernel_size: Sequence[Any], stride: Sequence[Any], padding: Sequence[Any], ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> bool | str:  # fmt: skip
    return takes_windows(a, kernel_size, stride, padding)


def _takes_backward(g: Any, a: Any, *how: Any) -> bool | str:
    return _takes(a, *how)


def like(a: Any, *how: Any) -> Any:
    return prims.avg_pool(a, *how)


def like_backward(g: Any, a: Any, *how: Any) -> Any:
    return prims.avg_pool_backward(g, a, *how)


def register(registry: Any, executor: str) -> None:
    """Register the operators as implementations of mean pooling and of its gradient."""
    forward = registry.register_operator("triton_avg_pool", executor=executor, like=like, fn=avg_pool)
    backward = registry.register_operator(
        "triton_avg_pool_backward", executor=executor, like=like_backward, fn=avg_pool_backward
    )
    registry.register_implementation(prims.avg_pool, forward, executor=executor, checker=_takes)
    registry.register_implementation(prims.avg_pool_backward, backward, executor=executor, checker=_takes_backward)
