# SPDX-License-Identifier: Apache-2.0
"""Tiles and memory of kernels that compute images: a tile has several channels, and positions along the width.

The tile is long along the dimension that is contiguous in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from thunder_ex_triton.launch import blocks, power_of_two

__all__ = [
    "Limits", "image", "is_by_channel", "is_channels_last", "new_convolved", "new_like", "ordered", "strides", "three",
    "tile_of", "tiles", "two",
]  # fmt: skip


class Limits(NamedTuple):
    """What a program computes at most."""

    elements: int = 512  # of a tile
    warps: int = 4
    steps: int = 1  # rows of a program's tile
    lengths: tuple[int, ...] = (128, 64, 32)  # of tiles along the contiguous dimension


_SMALLEST_TILE = 64
_PROGRAMS = 1024  # tiles are smaller if there are fewer programs than this


@triton.jit
def tile_of(
    channels, depth, height, width,
    CB: tl.constexpr, XB: tl.constexpr, BY_CHANNEL: tl.constexpr, STEPS: tl.constexpr = 1,
):  # fmt: skip
    """Return this program's batch, channels, depth, first row (of STEPS rows), and positions along the width.

    If channels are contiguous, the tile has two dimensions, and threads load vectors of channels. Otherwise the tile is
    flat: Triton does not know that input positions are close to each other if output positions are, and would choose
    either dimension for the threads of a warp.
    """
    if BY_CHANNEL:
        c = tl.arange(0, CB)[:, None]
        x = tl.arange(0, XB)[None, :]
    else:
        c = tl.arange(0, CB * XB) // XB
        x = tl.arange(0, CB * XB) % XB
    tile = tl.program_id(0)
    across = tl.cdiv(width, XB)
    x += (tile % across) * XB
    tile = tile // across
    groups = tl.cdiv(channels, CB)
    c += (tile % groups) * CB
    tile = tile // groups
    lines = tl.cdiv(height, STEPS)
    y = (tile % lines) * STEPS
    tile = tile // lines
    return (tile // depth).to(tl.int64), c.to(tl.int64), tile % depth, y, x


def is_channels_last(x: torch.Tensor) -> bool:
    """Check whether torch's result for `x` is channels-last: strides grow from the channels over the width outwards."""
    sizes, strides = x.shape, x.stride()
    if x.ndim < 4 or strides[1] == 0:
        return False
    least = 0
    for dim in (1, *range(x.ndim - 1, 1, -1), 0):
        # If channels and batch alone have more than one element, the strides fit both orders.
        if sizes[dim] == 0 or strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * sizes[dim]
    return True


def image(x: torch.Tensor) -> torch.Tensor:
    """Return an image of two dimensions."""
    return x.unsqueeze(2) if x.ndim == 3 else x


def two(values: Sequence[int], missing: int) -> tuple[int, int]:
    """Add the missing first dimension to a value for each spatial dimension."""
    return (missing, values[0]) if len(values) == 1 else (values[0], values[1])


def _format(channels_last: bool) -> torch.memory_format:
    return torch.channels_last if channels_last else torch.contiguous_format


def new_convolved(shape: Sequence[int], a: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Allocate the result of a convolution, or the gradient of its input `a`, in the layout that torch's has.

    torch computes convolutions of sequences as those of contiguous images of height one.
    """
    channels_last = is_channels_last(a) or is_channels_last(image(weight))
    size = (*shape[:2], 1, shape[2]) if len(shape) == 3 else tuple(shape)
    out = torch.empty(size, dtype=a.dtype, device=a.device, memory_format=_format(channels_last))
    return out.squeeze(2) if len(shape) == 3 else out


def is_by_channel(x: torch.Tensor) -> bool:
    """Check whether neighbours in memory are neighbouring channels."""
    return x.stride(1) == 1


def ordered(x: torch.Tensor, by_channel: bool) -> torch.Tensor:
    """Return an image whose neighbours in memory are those of a tile."""
    return x if is_by_channel(x) == by_channel else x.contiguous(memory_format=_format(by_channel))


def new_like(x: torch.Tensor, sizes: Sequence[int], contiguous: bool = False) -> tuple[torch.Tensor, bool]:
    """Allocate the result for `x`, with other spatial sizes, and return whether it is channels-last."""
    shape = (*x.shape[:2], *sizes)
    if contiguous or not is_channels_last(x):
        return torch.empty(shape, dtype=x.dtype, device=x.device), False
    order = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=order), True


def three(values: Sequence[int], missing: int) -> tuple[int, ...]:
    """Add the missing leading dimensions to a value for each spatial dimension."""
    return (*[missing] * (3 - len(values)), *values)


def strides(x: torch.Tensor) -> tuple[int, ...]:
    strides = x.stride()
    return (*strides[:2], *three(strides[2:], 0))


def _length(size: int, lengths: Sequence[int]) -> int:
    """Return the length of tiles along the contiguous dimension which covers `size` with the fewest elements."""
    return min(power_of_two(size), min(lengths, key=lambda length: blocks(size, length) * length))


@functools.lru_cache(maxsize=1024)
def tiles(
    batch: int, channels: int, depth: int, height: int, width: int, channels_last: bool, limits: Limits
) -> tuple[int, tuple[int, int], int, int]:
    """Return the number of programs, the sizes of a tile (channels, width), the number of warps, and that of rows."""
    rows = batch * depth * height
    inner, outer = (channels, width) if channels_last else (width, channels)
    room = min(limits.elements, max(_SMALLEST_TILE, power_of_two(rows * channels * width // _PROGRAMS + 1)))
    long = min(_length(inner, limits.lengths), room)
    wide = min(room // long, power_of_two(outer))
    tile = (long, wide) if channels_last else (wide, long)
    across = blocks(inner, long) * blocks(outer, wide)
    steps = max(1, min(limits.steps, height, rows * across // _PROGRAMS))
    programs = batch * depth * blocks(height, steps) * across
    return programs, tile, min(limits.warps, max(1, long * wide // 128)), steps
