# SPDX-License-Identifier: Apache-2.0
"""Families of kernels for convolutions: which convolutions they compute, and the rule that decides between tiles.

The table of a family is what was measured on an H200. With `thunder.jit(…, measured=True)`, it is only the default, and
measurements decide between torch and all tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from thunder.extend import TensorProxy
from thunder.toolkit.measuring import Candidate, example_tensor, measured_choice, size_class
from thunder_ex_triton.norms import HALF
from thunder_ex_triton.probe import unusable_device

__all__ = ["TORCH", "Convolution", "Family", "Row"]

TORCH = "torch"
_MOST_ELEMENTS = 1 << 31  # the kernels number positions with 32 bits


class Convolution(NamedTuple):
    """A convolution or one of its gradients.

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

    @property
    def tensors(self) -> list[TensorProxy]:
        return [p for p in (self.a, self.g, self.weight, self.bias) if isinstance(p, TensorProxy)]

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape of the convolution, whose gradient `g` is."""
        sizes = zip(self.a.shape[2:], self.weight.shape[2:], self.stride, self.padding)
        return (self.a.shape[0], self.weight.shape[0], *[(n + 2 * p - k) // s + 1 for n, k, s, p in sizes])

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel has one filter."""
        return bool(self.weight.shape[1] == 1 and self.weight.shape[0] == self.a.shape[1])


class Row(NamedTuple):
    """A row of a table: the convolutions in half precision that a tile computes faster than torch."""

    operation: str
    channels_last: bool
    spatial: int  # the number of spatial dimensions
    taps: range  # elements of the weight for each channel
    strides: tuple[int, ...]
    fewest: int  # elements of the input
    tile: str
    channels: range = range(1, 2)  # of a group


class Family:
    """Kernels of one kind of convolutions.

    A tile is a tuple that ends with the number of warps. `defaults` is the table: the first row that fits decides, and
    torch computes all other convolutions.
    """

    largest_stride = 4

    def __init__(self, name: str, defaults: Sequence[Row]):
        self.name = name
        self.defaults = defaults

    def tiles(self, operation: str, channels_last: bool) -> dict[str, Any]:
        """Return the tiles of an operation by name, for images that are channels-last or not."""
        raise NotImplementedError

    def run(
        self, operation: str, a: Any, g: Any, weight: torch.Tensor, bias: Any, stride: Any, padding: Any, tile: Any
    ) -> Any:
        """Compute a convolution or a gradient: that of the weight with that of the bias, or None."""
        raise NotImplementedError

    def workspace(self, operation: str, a: Any, g: Any, weight: Any, stride: Any, padding: Any, tile: Any) -> int:
        """Return the most bytes that an operation allocates for itself."""
        raise NotImplementedError

    def supports(self, call: Convolution) -> bool:
        """Check whether the kernels compute a convolution: here, what all families require."""
        a, tensors = call.a, call.tensors
        if a.ndim not in (3, 4) or not all(type(n) is int and n > 0 for p in tensors for n in p.shape):
            return False
        if any(p.dtype is not a.dtype or p.device is not a.device for p in tensors):
            return False
        if any(math.prod(shape) >= _MOST_ELEMENTS for shape in (call.result_shape, *[p.shape for p in tensors])):
            return False
        return (
            max(call.stride) <= min(self.largest_stride, *call.weight.shape[2:]) and unusable_device(a.device) is None
        )

    def tile(self, operation: str, name: str) -> Any:
        """Return the tile of a name."""
        found = self.tiles(operation, True).get(name)
        return self.tiles(operation, False)[name] if found is None else found

    def default_of(self, call: Convolution) -> str:
        """Return the name of the tile that the table selects, or torch."""
        if call.a.dtype not in HALF:
            return TORCH
        taps, elements = math.prod(call.weight.shape[2:]), math.prod(call.a.shape)
        for row in self.defaults:
            fits = row[:3] == (call.operation, call.channels_last, call.a.ndim - 2) and taps in row.taps
            fits = fits and call.weight.shape[1] in row.channels and set(call.stride) <= set(row.strides)
            if fits and elements >= row.fewest and self.is_filled(call, row):
                return row.tile
        return TORCH

    def is_filled(self, call: Convolution, row: Row) -> bool:
        """Check whether the channels fill the tile of a row that fits."""
        return True

    def choose(self, call: Convolution) -> str:
        """Return the candidate for a convolution: the name of a tile, or torch."""
        default, tiles = self.default_of(call), self.tiles(call.operation, call.channels_last)
        names = [default, *[name for name in (*tiles, TORCH) if name != default]]
        candidates = [Candidate(name, self._preparing(call, name), repr(tiles.get(name))) for name in names]
        sizes = [*map(size_class, call.a.shape), *call.weight.shape, *call.stride, *call.padding]
        how = [str(call.a.dtype), call.channels_last, call.bias is not None and call.bias is not False]
        return measured_choice(f"{self.name} convolution, {call.operation}", [*sizes, *how], candidates, call.a.device)

    def _preparing(self, call: Convolution, name: str) -> Callable[[], Callable[[], Any]]:
        def prepare() -> Callable[[], Any]:
            a, g = [None if p is None else _example(p, call.channels_last) for p in (call.a, call.g)]
            weight = example_tensor(call.weight)
            bias = example_tensor(call.bias) if isinstance(call.bias, TensorProxy) else call.bias
            return lambda: self.compute(call.operation, a, g, weight, bias, call.stride, call.padding, name)

        return prepare

    def compute(
        self, operation: str, a: Any, g: Any, weight: torch.Tensor, bias: Any, stride: Sequence[int],
        padding: Sequence[int], name: str,
    ) -> Any:  # fmt: skip
        """Compute a convolution or a gradient with a tile, or by torch."""
        if name != TORCH:
            return self.run(operation, a, g, weight, bias, stride, padding, self.tile(operation, name))
        how = [*map(list, (stride, padding)), [1] * len(stride), False, [0] * len(stride)]
        groups = a.shape[1] // weight.shape[1]
        if operation == "forward":
            return torch.ops.aten.convolution(a, weight, bias, *how, groups)
        mask = [operation == "input", operation == "weight", operation == "weight" and bool(bias)]
        return torch.ops.aten.convolution_backward(g, a, weight, [weight.shape[0]], *how, groups, mask)


def _example(p: TensorProxy, channels_last: bool) -> torch.Tensor:
    return example_tensor(p).contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
