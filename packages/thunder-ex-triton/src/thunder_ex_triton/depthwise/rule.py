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
from thunder_ex_triton.norms import HALF

__all__ = [
    "COLUMNS", "DEFAULTS", "TILES", "TORCH", "Depthwise", "Row", "choose", "compute", "default_of", "tile_named",
    "tiles_of",
]  # fmt: skip

TORCH = "torch"


def _named(*tiles: Any) -> dict[str, Any]:
    """Return tiles by name: their sizes without the number of warps."""
    return {"x".join(map(str, tile[:-1])): tile for tile in tiles}


#: The tiles of convolutions and of gradients of inputs, by name, for images that are channels-last or not.
COLUMNS = {
    True: _named(Columns(8, 512, 4), Columns(7, 512, 4), Columns(4, 512, 4), Columns(4, 1024, 4)),
    False: _named(Columns(4, 256, 4), Columns(1, 512, 4), Columns(4, 128, 4)),
}
#: The tiles of gradients of weights.
TILES = {
    True: _named(Tile(4, 8, 64, 4), Tile(4, 8, 32, 4), Tile(8, 8, 64, 4), Tile(7, 2, 64, 4)),
    False: _named(Tile(4, 128, 1, 4), Tile(1, 512, 1, 4), Tile(1, 256, 1, 4)),
}
_TILES = {name: tile for tiles in (*COLUMNS.values(), *TILES.values()) for name, tile in tiles.items()}


def tile_named(name: str) -> Any:
    """Return the tile of a name."""
    return _TILES[name]


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
    """A row of the table: the convolutions in half precision that a tile computes faster than torch."""

    operation: str
    channels_last: bool
    spatial: int  # the number of spatial dimensions
    taps: range  # elements of the weight for each channel
    strides: tuple[int, ...]
    fewest: int  # elements of the input
    tile: str


_SMALL, _LARGE = range(9, 26), range(26, 50)
_FEWEST = 1 << 21  # the smallest images that were measured
#: The first row that fits decides; torch computes all other convolutions.
DEFAULTS = (
    Row("forward", True, 2, _SMALL, (1, 2), _FEWEST, "8x512"),
    Row("forward", True, 2, _LARGE, (1,), _FEWEST, "7x512"),
    Row("input", True, 2, _SMALL, (1, 2), _FEWEST, "8x512"),
    Row("input", True, 2, _LARGE, (1,), _FEWEST, "7x512"),
    # cuDNN computes most of these faster.
    Row("weight", True, 2, range(9, 10), (1,), 1 << 24, "4x8x64"),
    Row("weight", True, 2, range(9, 10), (2,), 1 << 26, "4x8x32"),
    Row("forward", False, 2, range(9, 50), (1, 2), _FEWEST, "4x256"),
    Row("input", False, 2, range(9, 50), (1, 2), _FEWEST, "4x256"),
    Row("weight", False, 2, range(9, 50), (1, 2), _FEWEST, "4x128x1"),
    Row("forward", False, 1, range(2, 8), (1,), _FEWEST, "1x512"),
    Row("input", False, 1, range(2, 8), (1,), _FEWEST, "1x512"),
    Row("weight", False, 1, range(2, 8), (1,), _FEWEST, "1x512x1"),
)


def default_of(call: Depthwise) -> str:
    """Return the name of the tile that the table selects, or torch."""
    if call.a.dtype not in HALF:
        return TORCH
    taps, elements = math.prod(call.weight.shape[2:]), math.prod(call.a.shape)
    for row in DEFAULTS:
        fits = row[:3] == (call.operation, call.channels_last, call.a.ndim - 2)
        if fits and taps in row.taps and set(call.stride) <= set(row.strides) and elements >= row.fewest:
            tile = tile_named(row.tile)
            # A tile that channels do not fill is slow.
            if call.operation != "weight" or call.a.shape[1] % tile.channels == 0:
                return row.tile
    return TORCH


def tiles_of(call: Depthwise) -> dict[str, Any]:
    """Return the tiles to measure."""
    return (TILES if call.operation == "weight" else COLUMNS)[call.channels_last]


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
            return convolution(a, weight, bias, stride, padding, tile_named(name))
        if operation == "input":
            return input_gradient(g, a, weight, stride, padding, tile_named(name))
        return weight_gradient(g, a, weight, stride, padding, bool(bias), tile_named(name))
    zeros = [0] * len(stride)
    how = [*map(list, (stride, padding)), [1] * len(stride), False, zeros, weight.shape[0]]
    if operation == "forward":
        return torch.ops.aten.convolution(a, weight, bias, *how)
    mask = [operation == "input", operation == "weight", operation == "weight" and bool(bias)]
    return torch.ops.aten.convolution_backward(g, a, weight, [weight.shape[0]], *how, mask)
