# SPDX-License-Identifier: Apache-2.0
"""Launches of the kernels of depthwise convolutions.

One-dimensional convolutions are two-dimensional ones of height one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from thunder_ex_triton.depthwise import kernels
from thunder_ex_triton.images import image, is_by_channel, new_convolved, ordered, two
from thunder_ex_triton.launch import blocks

__all__ = ["BOTH_LAYOUTS", "Columns", "Tile", "convolution", "input_gradient", "parts_of", "weight_gradient"]

_PROGRAMS = 528  # programs of the gradient of a weight to aim for: four for each multiprocessor
_MOST_PARTS = 512
_SIDE = 64  # channels and widths of tiles for operands of different layouts


class Columns(NamedTuple):
    """The tile of a convolution or of the gradient of its input: rows and columns that a program computes."""

    rows: int
    block: int
    warps: int


class Tile(NamedTuple):
    """The tile of the gradient of a weight: rows, positions and channels that a program reads at a time."""

    rows: int
    positions: int
    channels: int
    warps: int


#: For sequences, of which operands often are transposed views. (An image's weight has too many elements for it.)
BOTH_LAYOUTS = Tile(1, 32, 32, 4)


def _columns(source: torch.Tensor, result: torch.Tensor, tile: Columns) -> tuple[int, int, int, int]:
    """Return the rows, the number of tiles of columns, the columns of each, and its channels.

    See `kernels.columns_of`.
    """
    n, c, _, w = result.shape
    if is_by_channel(source) == is_by_channel(result):
        return tile.rows, blocks(n * c * w, tile.block), tile.block, 1
    return 1, n * blocks(w, _SIDE) * blocks(c, _SIDE), _SIDE * _SIDE, _SIDE


def _packed(weight: torch.Tensor, by_channel: bool) -> torch.Tensor:
    """Return the weight as `(channels, elements)`, in memory ordered as the threads that read it."""
    flat = weight.reshape(weight.shape[0], -1)
    return flat.t().contiguous().t() if by_channel else flat.contiguous()


def convolution(
    a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Sequence[int], padding: Sequence[int],
    tile: Columns,
) -> torch.Tensor:  # fmt: skip
    """Return the convolution, in the layout of torch's result."""
    size = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(a.shape[2:], weight.shape[2:], stride, padding)]
    out = new_convolved((*a.shape[:2], *size), a, weight)
    _convolve(a, weight, bias, two(stride, 1), two(padding, 0), False, out, tile)
    return out


def _convolve(
    a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: tuple[int, int],
    padding: tuple[int, int], flipped: bool, out: torch.Tensor, tile: Columns,
) -> None:  # fmt: skip
    """Write the convolution to `out`."""
    if out.numel() == 0:
        return
    a, result = image(a), image(out)
    packed = _packed(weight, is_by_channel(a))
    w_c, w_tap = packed.stride()
    if flipped:  # from the last element backwards, so that a convolution and its gradient share a kernel
        packed, w_tap = packed[:, -1:], -w_tap
    n, c, h, w = result.shape
    rows, count, *block = _columns(a, result, tile)
    numbers = (
        c, h, w, *a.shape[2:], n * c * w, *a.stride(), *result.stride(), w_c, w_tap,
        *image(weight).shape[2:], *stride, *padding, bias is not None, rows, *block, is_by_channel(a),
    )  # fmt: skip
    tensors = a, packed, None if bias is None else bias.contiguous(), result
    kernels.convolve(blocks(h, rows) * count, tensors, numbers, tile.warps)


def input_gradient(
    g: torch.Tensor, a: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int],
    tile: Columns,
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of the input `a`, of which only the shape and the layout are read."""
    out = new_convolved(a.shape, a, weight)
    kernel_size = image(weight).shape[2:]
    strides, paddings = two(stride, 1), two(padding, 0)
    if strides == (1, 1):
        turned = kernel_size[0] - 1 - paddings[0], kernel_size[1] - 1 - paddings[1]
        _convolve(g, weight, None, (1, 1), turned, True, out, tile)
        return out
    if out.numel() == 0:
        return out
    source, result = image(g), image(out)
    packed = _packed(weight, is_by_channel(source))
    n, c, h, w = result.shape
    rows, count, *block = _columns(source, result, tile)
    rows = blocks(rows, strides[0]) * strides[0]
    numbers = (
        c, h, w, *source.shape[2:], n * c * w, *source.stride(), *result.stride(), *packed.stride(),
        *kernel_size, *strides, *paddings, rows, *block, is_by_channel(source),
    )  # fmt: skip
    kernels.gather(blocks(h, rows) * count, (source, packed, result), numbers, tile.warps)
    return out


def parts_of(shape: Sequence[int], tile: Tile) -> tuple[int, int]:
    """Return the number of parts of the gradient of a weight, and the tiles of each, for the shape of `g`."""
    n, c, h, w = (*shape[:2], *two(shape[2:], 1))
    number = blocks(h, tile.rows) * blocks(n * w, tile.positions)
    per_part = blocks(number, min(_MOST_PARTS, max(1, _PROGRAMS // blocks(c, tile.channels))))
    return blocks(number, per_part), per_part


def weight_gradient(
    g: torch.Tensor, a: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int],
    with_bias: bool, tile: Tile,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Return the gradients of the weight and of the bias."""
    out = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    of_bias = torch.empty(weight.shape[:1], dtype=weight.dtype, device=weight.device) if with_bias else None
    if g.numel() == 0:
        return out.zero_(), None if of_bias is None else of_bias.zero_()
    if g.ndim == 4:
        g, a = [ordered(x, tile.channels > 1) for x in (g, a)]
    elif is_by_channel(g) or is_by_channel(a):
        tile = BOTH_LAYOUTS
    g, a, kernel_size = image(g), image(a), image(weight).shape[2:]
    parts, per_part = parts_of(g.shape, tile)
    n, c, h, w = g.shape
    taps = kernel_size.numel()
    part = torch.empty((parts, taps + with_bias, c), dtype=torch.float32, device=g.device)
    numbers = (
        c, h, w, *a.shape[2:], n * w, per_part, *g.stride(), *a.stride(),
        *kernel_size, *two(stride, 1), *two(padding, 0), with_bias, tile.rows, tile.positions, tile.channels,
    )  # fmt: skip
    kernels.weight_parts((blocks(c, tile.channels), parts), (g, a, part), numbers, tile.warps)
    kernels.sum_parts(
        (blocks(c, 32), taps + with_bias), (part, out, of_bias), (c, parts, taps, taps, 1, with_bias, 32, 32), 4
    )
    return out, of_bias
