# SPDX-License-Identifier: Apache-2.0
"""Which convolutions Triton's kernels compute as products, and with which tiles: grouped and narrow ones."""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder_ex_triton.convolutions.family import Convolution, Family, Row
from thunder_ex_triton.grouped.launches import Tile, convolution, input_gradient, parts_of, weight_gradient
from thunder_ex_triton.norms import HALF
from thunder_ex_triton.probe import interpreting

__all__ = ["DEFAULTS", "GROUPED", "NARROW", "NARROW_DEFAULTS", "TAKEN", "TILES", "WEIGHT_TILES", "Grouped", "Narrow"]

TAKEN = HALF[:1] if interpreting() else HALF  # the interpreter has no products in bfloat16


def _named(*tiles: Tile) -> dict[str, Tile]:
    """Return tiles by name: their sizes without the number of warps."""
    return {"x".join(map(str, tile[:-1])): tile for tile in tiles}


#: The tiles of convolutions and of gradients of inputs, by name.
TILES = _named(
    Tile(128, 64, 64, 3, 4), Tile(64, 64, 64, 4, 4), Tile(256, 64, 64, 3, 8), Tile(128, 64, 32, 4, 4),
    Tile(64, 64, 32, 3, 2), Tile(128, 128, 64, 3, 8),
)  # fmt: skip
#: The tiles of gradients of weights.
WEIGHT_TILES = _named(Tile(64, 64, 128, 3, 4), Tile(64, 64, 64, 4, 4), Tile(64, 64, 256, 3, 8), Tile(32, 64, 128, 4, 4))

# cuDNN's kernels for groups of 8, 16 and 32 channels are as fast or faster, but for gradients of inputs with strides.
_ODD, _WIDE = range(48, 57, 8), range(48, 65, 8)
_LONG, _LONGEST = range(19, 129), range(128, 129)
DEFAULTS = (
    Row("forward", False, 1, _LONG, (1,), 1 << 20, "128x64x64x3", _WIDE),
    Row("input", False, 1, _LONG, (1,), 1 << 20, "128x64x64x3", _WIDE),
    Row("weight", False, 1, _LONG, (1,), 1 << 20, "64x64x128x3", _ODD),
    Row("forward", False, 1, _LONGEST, (1,), 1 << 16, "64x64x64x4", _ODD),
    Row("input", False, 1, _LONGEST, (1,), 1 << 16, "64x64x64x4", _ODD),
    Row("weight", False, 1, _LONGEST, (1,), 1 << 18, "64x64x128x3", _ODD),
    # Operands of the gradients are contiguous, and the copies take longer than what the kernels save.
    Row("forward", False, 1, range(7, 19), (1,), 1 << 22, "128x64x64x3", _WIDE),
    Row("forward", True, 2, range(9, 10), (1,), 1 << 22, "128x64x32x4", _ODD),
    Row("input", True, 2, range(9, 10), (1,), 1 << 22, "128x64x32x4", _ODD),
    Row("weight", True, 2, range(9, 10), (1,), 1 << 22, "64x64x64x4", _ODD),
    Row("input", True, 2, range(9, 10), (2,), 1 << 23, "128x64x32x4", range(16, 33, 16)),
)
# With more channels, and for gradients, cuDNN's kernels are as fast or nearly as fast.
NARROW_DEFAULTS = (
    Row("forward", False, 1, range(10, 11), (5,), 1 << 19, "64x64x64x4", range(1, 2)),
    Row("forward", True, 2, range(9, 10), (1,), 1 << 18, "128x64x32x4", range(3, 4)),
    Row("forward", True, 2, range(49, 50), (4,), 1 << 21, "128x64x32x4", range(3, 4)),
)
_NARROW = 128  # channels, with which cuDNN's kernels are not always at their best


class Grouped(Family):
    """Convolutions with several groups, and several channels or filters in each."""

    def tiles(self, operation: str, channels_last: bool) -> dict[str, Any]:
        return WEIGHT_TILES if operation == "weight" else TILES

    def supports(self, call: Convolution) -> bool:
        if call.a.dtype not in TAKEN or not super().supports(call):
            return False
        return call.weight.shape[1] < call.a.shape[1] and not call.is_depthwise

    def run(
        self, operation: str, a: Any, g: Any, weight: torch.Tensor, bias: Any, stride: Any, padding: Any, tile: Any
    ) -> Any:
        if operation == "forward":
            return convolution(a, weight, bias, stride, padding, tile)
        if operation == "input":
            return input_gradient(g, a, weight, stride, padding, tile)
        of_bias = g.sum((0, *range(2, g.ndim))) if bias else None
        return weight_gradient(g, a, weight, stride, padding, tile), of_bias

    def workspace(self, operation: str, a: Any, g: Any, weight: Any, stride: Any, padding: Any, tile: Any) -> int:
        operands = {"forward": (a,), "input": (g,), "weight": (a, g)}[operation]  # which may be copied
        ordered = sum(math.prod(p.shape) for p in operands) * weight.dtype.bytes
        if operation != "weight":
            return ordered + math.prod(weight.shape) * weight.dtype.bytes  # the packed weight
        return ordered + parts_of(g.shape, a.shape[1], weight.shape, tile)[0] * math.prod(weight.shape) * 4


class Narrow(Grouped):
    """Convolutions of few channels without groups, such as the first one of a model."""

    largest_stride = 8

    def supports(self, call: Convolution) -> bool:
        if call.a.dtype not in TAKEN or not Family.supports(self, call):
            return False
        return call.weight.shape[1] == call.a.shape[1] <= _NARROW and math.prod(call.weight.shape[2:]) > 1


GROUPED = Grouped("grouped", DEFAULTS)
NARROW = Narrow("narrow", NARROW_DEFAULTS)
