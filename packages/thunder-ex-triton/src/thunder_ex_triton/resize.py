# SPDX-License-Identifier: Apache-2.0
"""Resampling of images (`interpolate`) and its gradient: nearest, nearest-exact, linear, bilinear, trilinear.

An output position reads one input position (nearest) or two adjacent positions (linear) of each dimension. The position
and the weights are computed as in torch's kernels for GPUs, in float32: `source = max((position + SHIFT) * scale -
BACK, 0)`. Backward gathers: each input element sums over the output positions that read it. These are consecutive in
each dimension, and their first position and maximal number follow from the scale. There are no atomics: sums are
computed in float32 in a fixed order and rounded once, so repeated runs are bitwise equal.

Images with fewer than three spatial dimensions have leading dimensions of size 1. Tiles are those of `images`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from thunder import prims
from thunder.extend import dtypes
from thunder_ex_triton.images import Limits, new_like, strides, three, tile_of, tiles
from thunder_ex_triton.launch import Kernel, kernel
from thunder_ex_triton.probe import unusable_device
from thunder_ex_triton.vectors import longest, multiple

__all__ = ["TAKEN", "like", "like_backward", "register", "resize", "resize_backward", "takes", "write"]

_LINEAR = frozenset({"linear", "bilinear", "trilinear"})
_NEAREST = frozenset({"nearest", "nearest-exact"})
TAKEN = (dtypes.float32, dtypes.float16, dtypes.bfloat16)
# Tuned on an H200: tiles of images that are not channels-last, and of those that are.
SAMPLE = (Limits(elements=2048, steps=8), Limits(elements=1024, steps=8, lengths=(128, 64)))
GATHER = Limits(elements=512, steps=8)
_UNROLLED = 16  # at most this many positions along the width are unrolled


@triton.jit
def _source(position, scale, size, SHIFT: tl.constexpr, BACK: tl.constexpr):
    """Return the first input position that an output position reads, and the weight of the second."""
    source = tl.maximum((position.to(tl.float32) + SHIFT) * scale - BACK, 0.0)
    first = tl.minimum(source.to(tl.int32), size - 1)
    return first, source - first.to(tl.float32)


@triton.jit
def _tap(first, fraction, size, TAP: tl.constexpr):
    """Return one of the input positions that an output position reads, and its weight."""
    if TAP == 0:
        return first, 1.0 - fraction
    else:
        return tl.minimum(first + 1, size - 1), fraction


@triton.jit
def _begin(index, inverse, start):
    """Return the first output position that may read the input position `index`."""
    return tl.maximum(tl.ceil(index.to(tl.float32) * inverse + start).to(tl.int32), 0)


@triton.jit
def _read(position, end, index, scale, size, SHIFT: tl.constexpr, BACK: tl.constexpr, LINEAR: tl.constexpr):
    """Return the weight with which an output position reads the input position `index`, and whether it reads it."""
    first, fraction = _source(position, scale, size, SHIFT, BACK)
    if LINEAR:
        second = tl.minimum(first + 1, size - 1)
        weight = tl.where(first == index, 1.0 - fraction, 0.0) + tl.where(second == index, fraction, 0.0)
        return weight, (position < end) & ((first == index) | (second == index))
    else:
        return 1.0, (position < end) & (first == index)


@triton.jit
def _of_row(
    image, first_d, fraction_d, at_h, first_w, fraction_w, size_d, size_w, a_d, a_h, a_w, there, total,
    TAPS_D: tl.constexpr,
):  # fmt: skip
    """Interpolate between the columns of an input row (and between rows of two depths). `total` is zero."""
    for tap_d in tl.static_range(TAPS_D):
        at_d, weight_d = _tap(first_d, fraction_d, size_d, tap_d)
        row = image + at_d.to(tl.int64) * a_d + at_h.to(tl.int64) * a_h
        of_row = total * 0.0
        for tap_w in tl.static_range(2):
            at_w, weight_w = _tap(first_w, fraction_w, size_w, tap_w)
            value = tl.load(row + at_w.to(tl.int64) * a_w, mask=there, other=0.0)
            of_row += weight_w * value.to(tl.float32)
        total += weight_d * of_row
    return total


@kernel
def sample(
    a_ptr, out_ptr,
    channels, depth, height, width, size_d, size_h, size_w, scale_d, scale_h, scale_w,
    a_n, a_c, a_d, a_h, a_w, out_n, out_c, out_d, out_h, out_w,
    SHIFT: tl.constexpr, BACK: tl.constexpr, LINEAR: tl.constexpr, TAPS_D: tl.constexpr, TAPS_H: tl.constexpr,
    UNIT: tl.constexpr, CB: tl.constexpr, XB: tl.constexpr, BY_CHANNEL: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Compute a tile of several rows of the output. `size_*` are the sizes of the input.

    Rows that lie between the same two rows of the input follow each other. These two are read and interpolated once.
    """
    if BY_CHANNEL:
        channels = multiple(channels, UNIT)
        a_n, a_d, a_h, a_w = multiple(a_n, UNIT), multiple(a_d, UNIT), multiple(a_h, UNIT), multiple(a_w, UNIT)
        out_n, out_d = multiple(out_n, UNIT), multiple(out_d, UNIT)
        out_h, out_w = multiple(out_h, UNIT), multiple(out_w, UNIT)
    n, c, z, first_y, x = tile_of(channels, depth, height, width, CB, XB, BY_CHANNEL, STEPS)
    first_d, fraction_d = _source(z, scale_d, size_d, SHIFT, BACK)
    first_w, fraction_w = _source(x, scale_w, size_w, SHIFT, BACK)
    if BY_CHANNEL:
        there = c < channels  # all positions are those of the input, also beyond the width of the output
        image = a_ptr + n * a_n + c * a_c
    else:
        there = x >= 0
        image = a_ptr + n * a_n + tl.minimum(c, channels - 1) * a_c
    inside = (c < channels) & (x < width)
    place = out_ptr + n * out_n + c * out_c + z.to(tl.int64) * out_d + x.to(tl.int64) * out_w
    held = first_y * 0 - 1
    above = tl.zeros(inside.shape, tl.float32)
    below = above
    for step in range(STEPS):
        y = tl.minimum(first_y + step, height - 1)  # the last row again, if there are no more
        first_h, fraction_h = _source(y, scale_h, size_h, SHIFT, BACK)
        if LINEAR:
            if first_h != held:
                zero = tl.zeros(inside.shape, tl.float32)
                above = _of_row(
                    image, first_d, fraction_d, first_h, first_w, fraction_w, size_d, size_w, a_d, a_h, a_w, there,
                    zero, TAPS_D,
                )  # fmt: skip
                if TAPS_H == 2:
                    second_h = tl.minimum(first_h + 1, size_h - 1)
                    below = _of_row(
                        image, first_d, fraction_d, second_h, first_w, fraction_w, size_d, size_w, a_d, a_h, a_w,
                        there, zero, TAPS_D,
                    )  # fmt: skip
                held = first_h
            value = ((1.0 - fraction_h) * above + fraction_h * below).to(out_ptr.dtype.element_ty)
        else:
            row = image + first_d.to(tl.int64) * a_d + first_h.to(tl.int64) * a_h
            value = tl.load(row + first_w.to(tl.int64) * a_w, mask=there, other=0.0)
        tl.store(place + y.to(tl.int64) * out_h, value, mask=inside)


def _gather(
    g_ptr, out_ptr,
    channels, depth, height, width, end_d, end_h, end_w, scale_d, scale_h, scale_w,
    inverse_d, inverse_h, inverse_w, start_d, start_h, start_w,
    g_n, g_c, g_d, g_h, g_w, out_n, out_c, out_d, out_h, out_w,
    SHIFT: tl.constexpr, BACK: tl.constexpr, LINEAR: tl.constexpr,
    COUNT_D: tl.constexpr, COUNT_H: tl.constexpr, COUNT_W: tl.constexpr, UNROLLED: tl.constexpr, UNIT: tl.constexpr,
    CB: tl.constexpr, XB: tl.constexpr, BY_CHANNEL: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Compute a tile of several rows of the input's gradient. `end_*` are the sizes of the output, `g` its gradient."""
    if BY_CHANNEL:
        channels = multiple(channels, UNIT)
        g_n, g_d, g_h, g_w = multiple(g_n, UNIT), multiple(g_d, UNIT), multiple(g_h, UNIT), multiple(g_w, UNIT)
        out_n, out_d = multiple(out_n, UNIT), multiple(out_d, UNIT)
        out_h, out_w = multiple(out_h, UNIT), multiple(out_w, UNIT)
    n, c, z, first_y, x = tile_of(channels, depth, height, width, CB, XB, BY_CHANNEL, STEPS)
    inside = (c < channels) & (x < width)
    image = g_ptr + n * g_n + c * g_c
    place = out_ptr + n * out_n + c * out_c + z.to(tl.int64) * out_d + x.to(tl.int64) * out_w
    begin_d = _begin(z, inverse_d, start_d)
    begin_w = _begin(x, inverse_w, start_w)
    for step in range(STEPS):
        y = tl.minimum(first_y + step, height - 1)  # the last row again, if there are no more
        begin_h = _begin(y, inverse_h, start_h)
        total = tl.zeros(inside.shape, tl.float32)
        for i in range(COUNT_D):
            at_d = begin_d + i
            weight_d, reads_d = _read(at_d, end_d, z, scale_d, depth, SHIFT, BACK, LINEAR)
            for j in range(COUNT_H):
                at_h = begin_h + j
                weight_h, reads_h = _read(at_h, end_h, y, scale_h, height, SHIFT, BACK, LINEAR)
                if reads_d & reads_h:
                    row = image + at_d.to(tl.int64) * g_d + at_h.to(tl.int64) * g_h
                    of_row = tl.zeros(inside.shape, tl.float32)
                    for first in range(0, COUNT_W, UNROLLED):
                        for k in tl.static_range(UNROLLED):
                            at_w = begin_w + (first + k)
                            weight_w, reads_w = _read(at_w, end_w, x, scale_w, width, SHIFT, BACK, LINEAR)
                            value = tl.load(row + at_w.to(tl.int64) * g_w, mask=inside & reads_w, other=0.0)
                            of_row += weight_w * value.to(tl.float32)
                    total += (weight_d * weight_h) * of_row
        tl.store(place + y.to(tl.int64) * out_h, total.to(out_ptr.dtype.element_ty), mask=inside)


# If Triton knew that the width is contiguous in the result, a thread would compute several adjacent elements, and the
# distances at which the threads of a warp read the gradient would be larger by this number.
gather = Kernel(triton.jit(_gather, do_not_specialize=["out_w"]))


# -- positions ---------------------------------------------------------------------------------------------------------
class _Dimension(NamedTuple):
    """The positions of one dimension.

    The output positions that read an input position `index` are among `most` positions from
    `ceil(index * inverse + start)`.
    """

    scale: float
    inverse: float
    start: float
    most: int


_ABSENT = _Dimension(1.0, 1.0, 0.0, 1)  # a dimension of size 1 that becomes one of size 1


def _shifts(mode: str, align_corners: bool) -> tuple[float, float]:
    """Return the constants SHIFT and BACK of a source position."""
    if mode in _LINEAR:
        return (0.0, 0.0) if align_corners else (0.5, 0.5)
    return (0.5, 0.0) if mode == "nearest-exact" else (0.0, 0.0)


@functools.lru_cache(maxsize=1024)
def _dimension(size: int, end: int, mode: str, align_corners: bool, factor: float | None) -> _Dimension:
    """Return the positions for an input of `size` elements, an output of `end` elements, and the user's factor."""
    linear = mode in _LINEAR
    shift, back = _shifts(mode, align_corners)
    if linear and align_corners:
        scale = (size - 1) / (end - 1) if end > 1 else 0.0
    else:
        scale = size / end if factor is None else 1 / factor
    if scale == 0.0:  # all positions read the first element
        return _Dimension(0.0, 0.0, 0.0, end)
    # Source positions from `index - 1` (linear) or `index` (nearest) to `index + 1` read the element `index`. With a
    # power of two, float32 computes the limits exactly. Otherwise they are extended by half a position.
    slack = 0.0 if math.frexp(scale)[0] == 0.5 else 0.5
    reach = 1 if linear else 0
    start = (back - reach) / scale - shift - slack
    most = math.ceil((1 + reach) / scale + 2 * slack)
    return _Dimension(scale, 1 / scale, start, min(most, end))


def _dimensions(
    sizes: Sequence[int], ends: Sequence[int], mode: str, align_corners: bool, scales: Sequence[float | None]
) -> list[_Dimension]:
    """Return the three dimensions, for the spatial sizes of the input and the output."""
    found = [_dimension(n, m, mode, align_corners, s) for n, m, s in zip(sizes, ends, scales)]
    return [_ABSENT] * (3 - len(found)) + found


# -- operators ---------------------------------------------------------------------------------------------------------
def _unit(x: torch.Tensor, out: torch.Tensor, channels_last: bool) -> int:
    """Return the number of adjacent channels that are a vector in both tensors, for all positions."""
    if not channels_last or x.stride(1) != 1:
        return 1
    return longest(x.dtype, x.shape[1], *[n for t in (x, out) for dim, n in enumerate(t.stride()) if dim != 1])


def resize(
    a: torch.Tensor, output_size: Sequence[int], mode: str, align_corners: bool, scales: Sequence[float | None],
    antialias: bool,
) -> torch.Tensor:  # fmt: skip
    """Resample `a` to `output_size`."""
    out, channels_last = new_like(a, output_size)
    if out.numel() != 0:
        write(a, out, channels_last, mode, align_corners, scales)
    return out


def write(
    a: torch.Tensor, out: torch.Tensor, channels_last: bool, mode: str, align_corners: bool,
    scales: Sequence[float | None],
) -> None:  # fmt: skip
    """Resample `a` to the sizes of `out`, which may be a part of an image, channels-last or not."""
    sizes, ends = a.shape[2:], three(out.shape[2:], 1)
    dimensions = _dimensions(sizes, out.shape[2:], mode, align_corners, scales)
    programs, tile, warps, steps = tiles(*a.shape[:2], *ends, channels_last, SAMPLE[channels_last])
    taps = [1 if d is _ABSENT else 2 for d in dimensions[:2]]
    numbers = (
        a.shape[1], *ends, *three(sizes, 1), *[d.scale for d in dimensions], *strides(a), *strides(out),
        *_shifts(mode, align_corners), mode in _LINEAR, *taps, _unit(a, out, channels_last),
        *tile, channels_last, steps,
    )  # fmt: skip
    sample(programs, (a, out), numbers, warps)


def resize_backward(
    g: torch.Tensor, input_shape: Sequence[int], mode: str, align_corners: bool, scales: Sequence[float | None],
    antialias: bool,
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of `resize` for an input of `input_shape`."""
    # torch's gradient of nearest positions in volumes is always contiguous.
    out, channels_last = new_like(g, input_shape[2:], contiguous=g.ndim == 5 and mode in _NEAREST)
    if out.numel() == 0:
        return out
    sizes, ends = three(input_shape[2:], 1), g.shape[2:]
    dimensions = _dimensions(input_shape[2:], ends, mode, align_corners, scales)
    programs, tile, warps, steps = tiles(*g.shape[:2], *sizes, channels_last, GATHER)
    scale, inverse, start, count = zip(*dimensions)
    unrolled = count[2] if count[2] <= _UNROLLED else _UNROLLED // 2
    numbers = (
        g.shape[1], *sizes, *three(ends, 1), *scale, *inverse, *start, *strides(g), *strides(out),
        *_shifts(mode, align_corners), mode in _LINEAR, *count, unrolled, _unit(g, out, channels_last),
        *tile, channels_last, steps,
    )  # fmt: skip
    gather(programs, (g, out), numbers, warps)
    return out


# -- registration ------------------------------------------------------------------------------------------------------
def takes(
    x: Any, sizes: Sequence[Any], ends: Sequence[Any], mode: str, scales: Sequence[Any], antialias: bool
) -> bool | str:
    """Return True, or the reason why the kernels do not support the call."""
    reason = unusable_device(x.device)
    if reason is not None:
        return reason
    if antialias or mode not in _LINEAR | _NEAREST:
        return f"the kernels do not support mode={mode!r}{' with antialias' if antialias else ''}"
    if x.dtype not in TAKEN:
        return f"the kernels do not support images in {x.dtype}"
    if not all(type(n) is int for n in (*x.shape, *sizes, *ends)):
        return "the kernels do not support symbolic sizes"
    if not all(s is None or type(s) is float for s in scales):
        return "the kernels do not support symbolic scale factors"
    if any(s is not None and (s <= 0 or math.floor(n * s) != m) for n, m, s in zip(sizes, ends, scales)):
        return "the output size is not the input size times the scale factor"
    if tuple(sizes) == tuple(ends):
        return "torch copies an image whose size does not change"
    return True


def _takes_forward(
    a: Any, output_size: Sequence[Any], mode: str, align_corners: bool, scales: Sequence[Any], antialias: bool
) -> bool | str:
    return takes(a, a.shape[2:], output_size, mode, scales, antialias)


def _takes_backward(
    g: Any, input_shape: Sequence[Any], mode: str, align_corners: bool, scales: Sequence[Any], antialias: bool
) -> bool | str:
    return takes(g, input_shape[2:], g.shape[2:], mode, scales, antialias)


def like(a: Any, output_size: Any, mode: str, align_corners: bool, scales: Any, antialias: bool) -> Any:
    return prims.resize(a, output_size, mode, align_corners, scales, antialias)


def like_backward(g: Any, input_shape: Any, mode: str, align_corners: bool, scales: Any, antialias: bool) -> Any:
    return prims.resize_backward(g, input_shape, mode, align_corners, scales, antialias)


def register(registry: Any, executor: str) -> None:
    """Register the operators as implementations of resampling and of its gradient."""
    forward = registry.register_operator("triton_resize", executor=executor, like=like, fn=resize)
    backward = registry.register_operator(
        "triton_resize_backward", executor=executor, like=like_backward, fn=resize_backward
    )
    registry.register_implementation(prims.resize, forward, executor=executor, checker=_takes_forward)
    registry.register_implementation(prims.resize_backward, backward, executor=executor, checker=_takes_backward)
