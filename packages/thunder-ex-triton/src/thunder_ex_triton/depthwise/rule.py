# SPDX-License-Identifier: Apache-2.0
"""Which depthwise convolutions Triton's kernels compute, and with which tiles."""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder.extend import dtypes
from thunder_ex_triton.convolutions.family import Convolution, Family, Row
from thunder_ex_triton.depthwise.launches import (
    BOTH_LAYOUTS,
    Columns,
    Tile,
    convolution,
    input_gradient,
    parts_of,
    weight_gradient,
)

__all__ = ["COLUMNS", "DEFAULTS", "DEPTHWISE", "TAKEN", "TILES", "Depthwise"]

TAKEN = (dtypes.float32, dtypes.float16, dtypes.bfloat16)
_LARGEST = 7  # loops over the elements of the weight are unrolled


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

_SMALL, _LARGE = range(9, 26), range(26, 50)
_FEWEST = 1 << 21  # the smallest images that were measured
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


class Depthwise(Family):
    """Convolutions with one filter for each channel."""

    def tiles(self, operation: str, channels_last: bool) -> dict[str, Any]:
        return (TILES if operation == "weight" else COLUMNS)[channels_last]

    def supports(self, call: Convolution) -> bool:
        if call.a.dtype not in TAKEN or not super().supports(call):
            return False
        return call.is_depthwise and call.a.shape[1] > 1 and max(call.weight.shape[2:]) <= _LARGEST

    def is_filled(self, call: Convolution, row: Row) -> bool:
        return call.operation != "weight" or call.a.shape[1] % self.tile("weight", row.tile).channels == 0

    def run(
        self, operation: str, a: Any, g: Any, weight: torch.Tensor, bias: Any, stride: Any, padding: Any, tile: Any
    ) -> Any:
        if operation == "forward":
            return convolution(a, weight, bias, stride, padding, tile)
        if operation == "input":
            return input_gradient(g, a, weight, stride, padding, tile)
        return weight_gradient(g, a, weight, stride, padding, bool(bias), tile)

    def workspace(self, operation: str, a: Any, g: Any, weight: Any, stride: Any, padding: Any, tile: Any) -> int:
        if operation != "weight":  # the ordered weight
            return math.prod(weight.shape) * weight.dtype.bytes
        parts = max(parts_of(g.shape, each)[0] for each in (tile, BOTH_LAYOUTS))
        return parts * (math.prod(weight.shape) + weight.shape[0]) * 4


DEPTHWISE = Depthwise("depthwise", DEFAULTS)
