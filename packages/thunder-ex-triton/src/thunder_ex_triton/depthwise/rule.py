# SPDX-License-Identifier: Apache-2.0
"""The rule that decides which depthwise convolutions Triton's kernels compute, and with which tiles.

`DEFAULTS` is the table of what was measured on an H200. With `thunder.jit(…, measured=True)`, it is only the default,
and measurements decide between torch and all tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from thunder.extend import TensorProxy
from thunder.toolkit.measuring import Candidate, example_tensor, measured_choice, size_class
from thunder_ex_triton.depthwise.launches import Columns, Tile, convolution, input_gradient, weight_gradient

__all__ = ["COLUMNS", "DEFAULTS", "TILES", "TORCH", "Depthwise", "Row", "choose", "default_of"]

TORCH = "torch"

#: The tiles of convolutions and of gradients of inputs, by name.
COLUMNS = {f"{tile.rows}x{tile.block}": tile for tile in (
    Columns(1, 256, 4), Columns(4, 128, 4), Columns(4, 256, 4), Columns(7, 256, 4), Columns(4, 512, 4),
)}  # fmt: skip
#: The tiles of gradients of weights, by name.
TILES = {f"{tile.rows}x{tile.positions}x{tile.channels}": tile for tile in (
    Tile(1, 256, 1, 4), Tile(4, 128, 1, 4), Tile(4, 8, 32, 4), Tile(4, 8, 64, 4), Tile(4, 4, 32, 4),
)}  # fmt: skip


class Depthwise(NamedTuple):
    """A depthwise convolution or one of its gradients.

    `operation` is "forward", "input" or "weight". `a` is the input, of which the gradient for the input reads only the
    shape, and `g` the gradient of the result, or None. `bias` is the bias, or whether to compute its gradient.
    """

    operation: str
    a: TensorProxy
    g: TensorProxy | None
    weight: TensorProxy
    bias: Any
    stride: Sequence[int]
    padding: Sequence[int]
    channels_last: bool


class Row(NamedTuple):
    """A row of the table: the convolutions that a tile computes faster than torch."""

    operation: str
    channels_last: bool
    spatial: int  # the number of spatial dimensions
    taps: range  # elements of the weight for each channel
    stride: int  # the largest stride
    fewest: int  # elements of the input
    tile: str


#: The first row that fits decides; otherwise torch computes the convolution.
DEFAULTS: tuple[Row, ...] = ()


def default_of(call: Depthwise) -> str:
    """Return the name of the tile that the table selects, or torch."""
    taps, elements = math.prod(call.weight.shape[2:]), math.prod(call.a.shape)
    for row in DEFAULTS:
        fits = row[:3] == (call.operation, call.channels_last, call.a.ndim - 2)
        if fits and taps in row.taps and max(call.stride) <= row.stride and elements >= row.fewest:
            return row.tile
    return TORCH


def tiles_of(call: Depthwise) -> dict[str, Any]:
    """Return the tiles to measure: those with several channels if channels are contiguous."""
    if call.operation == "weight":
        return {name: tile for name, tile in TILES.items() if (tile.channels > 1) == call.channels_last}
    return {name: tile for name, tile in COLUMNS.items() if (tile.rows > 1) or not call.channels_last}


def choose(call: Depthwise) -> str:
    """Return the candidate for a convolution: the name of a tile, or torch."""
    default, tiles = default_of(call), tiles_of(call)
    names = [default, *[name for name in (*tiles, TORCH) if name != default]]
    candidates = [Candidate(name, _preparing(call, name), repr(tiles.get(name))) for name in names]
    sizes = [*map(size_class, call.a.shape), *call.weight.shape[2:], *call.stride, *call.padding]
    how = [str(call.a.dtype), call.channels_last, call.bias is not None and call.bias is not False]
    return measured_choice(f"depthwise convolution, {call.operation}", [*sizes, *how], candidates, call.a.device)


def _preparing(call: Depthwise, name: str) -> Callable[[], Callable[[], Any]]:
    def prepare() -> Callable[[], Any]:
        operands = [None if p is None else _example(p, call.channels_last) for p in (call.a, call.g)]
        weight = example_tensor(call.weight)
        bias = example_tensor(call.bias) if isinstance(call.bias, TensorProxy) else call.bias
        a, g = operands
        return lambda: compute(call.operation, a, g, weight, bias, call.stride, call.padding, name)

    return prepare


def _example(p: TensorProxy, channels_last: bool) -> torch.Tensor:
    return example_tensor(p).contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def compute(
    operation: str, a: Any, g: Any, weight: torch.Tensor, bias: Any, stride: Sequence[int], padding: Sequence[int],
    name: str,
) -> Any:  # fmt: skip
    """Compute a convolution or a gradient with a tile, or by torch."""
    if name != TORCH:
        if operation == "forward":
            return convolution(a, weight, bias, stride, padding, COLUMNS[name])
        if operation == "input":
            return input_gradient(g, a, weight, stride, padding, COLUMNS[name])
        return weight_gradient(g, a, weight, stride, padding, bool(bias), TILES[name])
    zeros = [0] * len(stride)
    how = [*map(list, (stride, padding)), [1] * len(stride), False, zeros, weight.shape[0]]
    if operation == "forward":
        return torch.ops.aten.convolution(a, weight, bias, *how)
    mask = [operation == "input", operation == "weight", operation == "weight" and bool(bias)]
    return torch.ops.aten.convolution_backward(g, a, weight, [weight.shape[0]], *how, mask)
