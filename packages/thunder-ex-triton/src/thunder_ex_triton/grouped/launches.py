# SPDX-License-Identifier: Apache-2.0
"""Launches of the kernels of grouped convolutions.

One-dimensional convolutions are two-dimensional ones of height one. The kernels read images whose channels are
contiguous, such as transposed sequences; others are copied. Results have any layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from thunder_ex_triton.grouped import kernels
from thunder_ex_triton.images import image, new_convolved, ordered, two
from thunder_ex_triton.launch import blocks, power_of_two

__all__ = ["Tile", "convolution", "input_gradient", "parts_of", "weight_gradient"]

_PROGRAMS = 528  # programs of the gradient of a weight to aim for: four for each multiprocessor
_FEWEST = 8  # tiles that a program of a part sums, at least
_SMALLEST = 16  # sizes of the operands of a product on tensor cores


class Tile(NamedTuple):
    """The tile of a product: positions, filters, elements of a window, stages of the loop's pipeline, and warps.

    A program of the gradient of a weight computes `inner` elements for `filters`, and sums over `positions` at a time.
    """

    positions: int
    filters: int
    inner: int
    stages: int
    warps: int


def _groups(weight: torch.Tensor, channels: int) -> tuple[int, int, int]:
    """Return the number of groups, and the channels and filters of each."""
    groups = channels // weight.shape[1]
    return groups, weight.shape[1], weight.shape[0] // groups


def _size(number: int, largest: int) -> int:
    """Return the size of a tile along a dimension with `number` elements."""
    return min(largest, max(_SMALLEST, power_of_two(number)))


def _packed(weight: torch.Tensor, groups: int, flipped: bool) -> torch.Tensor:
    """Return an image's weight as `(groups, height, width, channels, filters)`, or `filters, channels`."""
    filters, channels, h, w = weight.shape
    filters //= groups
    by_filter, by_channel, *of_tap = weight.stride()
    outer, inner = (filters, channels) if flipped else (channels, filters)
    of_outer, of_inner = (by_filter, by_channel) if flipped else (by_channel, by_filter)
    out = torch.empty((groups, h, w, outer, inner), dtype=weight.dtype, device=weight.device)
    taps, most = min(64, power_of_two(h * w)), min(64, power_of_two(inner))
    numbers = h * w, filters * by_filter, of_outer, of_inner, *of_tap, w, outer, inner, taps, most
    kernels.pack(groups * outer * blocks(h * w, taps) * blocks(inner, most), (weight, out), numbers, 4)
    return out


def convolution(
    a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Sequence[int], padding: Sequence[int],
    tile: Tile,
) -> torch.Tensor:  # fmt: skip
    """Return the convolution, in the layout of torch's result."""
    size = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(a.shape[2:], weight.shape[2:], stride, padding)]
    out = new_convolved((a.shape[0], weight.shape[0], *size), a, weight)
    if out.numel():
        packed = _packed(image(weight), a.shape[1] // weight.shape[1], False)
        _convolve(ordered(image(a), True), packed, bias, two(stride, 1), two(padding, 0), 1, image(out), tile)
    return out


def _convolve(
    a: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, stride: tuple[int, int],
    padding: tuple[int, int], step: int, out: torch.Tensor, tile: Tile,
) -> None:  # fmt: skip
    """Write the convolution of images to `out`. With a step of -1, the weight is applied in reverse order."""
    n, _, height, width = out.shape
    groups, kernel_h, kernel_w, channels, filters = packed.shape
    rows, columns = _size(n * height * width, tile.positions), _size(filters, tile.filters)
    inner = _size(kernel_h * kernel_w * channels, tile.inner)
    a_n, _, a_h, a_w = a.stride()
    numbers = (
        groups, n * height * width, height, width, *a.shape[2:], a_n, a_h, a_w, *out.stride(), *packed.stride()[:3],
        *padding, channels, filters, kernel_h, kernel_w, *stride, step, bias is not None,
        rows, columns, inner, tile.stages,
    )  # fmt: skip
    programs = groups * blocks(filters, columns) * blocks(n * height * width, rows)
    kernels.convolve(programs, (a, packed, None if bias is None else bias.contiguous(), out), numbers, tile.warps)


def input_gradient(
    g: torch.Tensor, a: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int], tile: Tile
) -> torch.Tensor:
    """Return the gradient of the input `a`, of which only the shape and the layout are read.

    Every `stride`-th position of the gradient reads the same taps. It is the convolution of `g` with these, in reverse
    order.
    """
    out = new_convolved(a.shape, a, weight)
    if out.numel() == 0:
        return out
    packed = _packed(image(weight), a.shape[1] // weight.shape[1], True)
    g, result, strides, paddings = ordered(image(g), True), image(out), two(stride, 1), two(padding, 0)
    for first in itertools.product(*map(range, strides)):
        part = result[:, :, first[0] :: strides[0], first[1] :: strides[1]]
        if part.numel() == 0:
            continue
        (skip_h, tap_h), (skip_w, tap_w) = [divmod(f + p, s) for f, p, s in zip(first, paddings, strides)]
        taps = packed[:, tap_h :: strides[0], tap_w :: strides[1]]
        _convolve(g, taps, None, (1, 1), (-skip_h, -skip_w), -1, part, tile)
    return out


def parts_of(g_shape: Sequence[int], a_channels: int, weight_shape: Sequence[int], tile: Tile) -> tuple[int, int]:
    """Return the number of parts of the gradient of a weight, and the tiles of positions of each."""
    groups, channels = a_channels // weight_shape[1], weight_shape[1]
    filters, taps = weight_shape[0] // groups, torch.Size(weight_shape[2:]).numel()
    number = blocks(g_shape[0] * torch.Size(g_shape[2:]).numel(), tile.positions)
    programs = groups * blocks(filters, tile.filters) * blocks(taps * channels, tile.inner)
    per_part = max(_FEWEST, blocks(number, blocks(_PROGRAMS, programs)))
    return blocks(number, per_part), per_part


def weight_gradient(
    g: torch.Tensor, a: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int], tile: Tile
) -> torch.Tensor:
    """Return the gradient of the weight."""
    out = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    if g.numel() == 0:
        return out.zero_()
    parts, per_part = parts_of(g.shape, a.shape[1], weight.shape, tile)
    g, a, kernel_size = ordered(image(g), True), ordered(image(a), True), image(weight).shape[2:]
    (g_n, _, g_h, g_w), (a_n, _, a_h, a_w), taps = g.stride(), a.stride(), kernel_size.numel()
    groups, channels, filters = _groups(weight, a.shape[1])
    part = torch.empty((parts, out.numel()), dtype=torch.float32, device=g.device)
    rows, columns = _size(taps * channels, tile.inner), _size(filters, tile.filters)
    n, _, height, width = g.shape
    numbers = (
        groups, n * height * width, height, width, *a.shape[2:], per_part, g_n, g_h, g_w, a_n, a_h, a_w,
        *two(padding, 0), channels, filters, *kernel_size, *two(stride, 1), tile.positions, columns, rows, tile.stages,
    )  # fmt: skip
    programs = groups * blocks(filters, columns) * blocks(taps * channels, rows)
    kernels.weight_parts((programs, parts), (g, a, part), numbers, tile.warps)
    at_once, most, together = min(32, power_of_two(taps)), min(32, power_of_two(filters)), min(8, power_of_two(parts))
    numbers = taps, parts, out.numel(), channels, filters, at_once, most, together
    kernels.sum_parts(groups * channels * blocks(taps, at_once) * blocks(filters, most), (part, out), numbers, 4)
    return out
