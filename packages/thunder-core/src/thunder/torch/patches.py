# SPDX-License-Identifier: Apache-2.0
"""`torch.nn.functional.unfold` and `fold`: convert images to columns of patches, and back.

The operations have torch's internal names `im2col` and `col2im`, because `unfold` is another method of tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from thunder import clang
from thunder.clang.shape import numel
from thunder.core import dtypes, prims
from thunder.core.errors import check
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.base import torchsymbol

_SHAPE = (OpTags.SHAPE_OP,)


def _pair(x: Any) -> tuple[int, int]:
    if isinstance(x, Sequence):
        first, second = x if len(x) == 2 else (x[0], x[0])
        return operator.index(first), operator.index(second)
    return operator.index(x), operator.index(x)


class _Geometry:
    """The geometry of the patches of an image, in two dimensions."""

    def __init__(self, size: Sequence[int], kernel_size: Any, dilation: Any, padding: Any, stride: Any):
        self.kernel, self.dilation = _pair(kernel_size), _pair(dilation)
        self.padding, self.stride = _pair(padding), _pair(stride)
        for name, pair, least in (
            ("kernel size", self.kernel, 1),
            ("dilation", self.dilation, 1),
            ("stride", self.stride, 1),
        ):
            if min(pair) < least:
                raise RuntimeError(f"{name} should be greater than zero, but got {name}: {pair}")
        check(min(self.padding) >= 0, lambda: f"padding should be non-negative, but got padding: {self.padding}")
        self.size = tuple(size)
        self.padded = tuple([n + 2 * p for n, p in zip(size, self.padding)])
        self.reach = tuple([d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation)])
        self.counts = tuple([(n - r) // s + 1 for n, r, s in zip(self.padded, self.reach, self.stride)])

    def margins(self, batch: int, sign: int) -> tuple[tuple[int, int, int], ...]:
        """Return the arguments of `prims.pad` that add the padding (or remove it, if `sign` is -1)."""
        return (*((0, 0, 0),) * batch, *[(sign * p, sign * p, 0) for p in self.padding])

    def says(self) -> str:
        """Return the part that two error messages share."""
        return (
            f"kernel_size={self.kernel}, dilation={self.dilation}, padding={self.padding}, calculated shape of the "
            f"array of sliding blocks as {self.counts}"
        )


@torchsymbol(torch.nn.functional.unfold, id="torch.nn.functional.unfold", is_method=False, tags=_SHAPE)
def im2col(input: TensorProxy, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> TensorProxy:
    """Return the patches of images `(n, c, h, w)` as columns `(n, c * kernel elements, patches)`."""
    check(
        input.ndim in (3, 4) and all(input.shape[-3:]),
        lambda: (
            "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, "
            f"but got: {list(input.shape)}"
        ),
    )
    geometry = _Geometry(input.shape[-2:], kernel_size, dilation, padding, stride)
    check(
        min(geometry.counts) > 0,
        lambda: (
            f"Given input with spatial size {geometry.size}, {geometry.says()}, but its components must be at least "
            "one."
        ),
    )
    batch = input.ndim - 2
    a = prims.pad(input, _zero(input), geometry.margins(batch, 1)) if any(geometry.padding) else input
    for d in (0, 1):
        a = prims.unfold(a, batch + d, geometry.reach[d], geometry.stride[d])
    # (…, c, patches down, patches across, reach down, reach across): select every dilation-th element of each patch.
    for d in (0, 1):
        a = clang.slice_in_dim(a, 0, geometry.reach[d], geometry.dilation[d], dim=a.ndim - 2 + d)
    rank = a.ndim
    a = clang.transpose(a, (*range(rank - 4), rank - 2, rank - 1, rank - 4, rank - 3))
    columns = (a.shape[batch - 1] * numel(geometry.kernel), numel(geometry.counts))
    return clang.reshape(a, (*input.shape[: batch - 1], *columns))


def _zero(a: TensorProxy) -> Any:
    return dtypes.dtype_to_numbertype(a.dtype)(0)


@im2col.vjp
def _(g: Any, out: Any, input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    return col2im(g, input.shape[-2:], kernel_size, dilation, padding, stride)


@torchsymbol(torch.nn.functional.fold, id="torch.nn.functional.fold", is_method=False, tags=_SHAPE)
def col2im(
    input: TensorProxy, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> TensorProxy:
    """Sum columns of patches into images, the transpose of `im2col`. Overlapping elements are added."""
    check(
        input.ndim in (2, 3),
        lambda: f"Expected 2D or 3D (batch mode) tensor for input, but got: {list(input.shape)}",
    )
    size = _pair(output_size)
    geometry = _Geometry(size, kernel_size, dilation, padding, stride)
    *batch, rows, patches = input.shape
    elements = numel(geometry.kernel)
    check(
        rows % elements == 0,
        lambda: (
            "Expected size of input's dimension 1 to be divisible by the product of kernel_size, but got "
            f"input.size(1)={rows} and kernel_size={geometry.kernel}."
        ),
    )
    check(
        min(geometry.counts) > 0 and patches == numel(geometry.counts),
        lambda: (
            f"Given output_size={size}, {geometry.says()}, expected size of input's dimension 2 to match the "
            f"calculated number of sliding blocks, but got input.size(2)={patches}."
        ),
    )
    channels = rows // elements
    width = geometry.padded[1]
    # Compute the position of element (i, j) of patch (y, x) in the padded image.
    where = prims.arithmetic_index(
        (*geometry.kernel, *geometry.counts),
        (geometry.dilation[0] * width, geometry.dilation[1], geometry.stride[0] * width, geometry.stride[1]),
        0,
        input.device,
    )
    blank = prims.full((*batch, channels, numel(geometry.padded)), _zero(input), device=input.device, dtype=input.dtype)
    added = prims.index_add(blank, len(batch) + 1, where, clang.reshape(input, (*batch, channels, elements * patches)))
    image = clang.reshape(added, (*batch, channels, *geometry.padded))
    if not any(geometry.padding):
        return image
    return prims.pad(image, _zero(input), geometry.margins(len(batch) + 1, -1))


@col2im.vjp
def _(
    g: Any,
    out: Any,
    input: Any,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Any:
    return im2col(g, kernel_size, dilation, padding, stride)


_GEOMETRIES = (
    ((2, 3, 6, 5), {"kernel_size": 2}),
    ((2, 1, 6, 5), {"kernel_size": (3, 2), "stride": 2, "padding": (1, 0)}),
    ((1, 2, 7, 7), {"kernel_size": 2, "dilation": (2, 3), "stride": (1, 2)}),
    ((2, 4, 4), {"kernel_size": 4}),
    ((0, 1, 3, 3), {"kernel_size": 2}),
)


@im2col.samples
def _(make: MakeTensor) -> Any:
    for shape, options in _GEOMETRIES:
        yield SampleInput(make(shape), **options)


@im2col.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((1, 1, 2, 2)), 5), RuntimeError, "calculated shape of the array of sliding blocks"
    yield SampleInput(make((1, 0, 3, 3)), 2), RuntimeError, r"Expected 3D or 4D \(batch mode\) tensor"
    yield SampleInput(make((1, 1, 3, 3)), 0), RuntimeError, "kernel"


@col2im.samples
def _(make: MakeTensor) -> Any:
    for shape, options in _GEOMETRIES:
        columns = torch.nn.functional.unfold(torch.empty(shape, device="cpu"), **options).shape
        yield SampleInput(make(tuple(columns)), shape[-2:], **options)


@col2im.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((1, 3, 4)), (2, 2), 2), RuntimeError, "divisible by the product of kernel_size"
    yield SampleInput(make((1, 4, 3)), (3, 3), 2), RuntimeError, "calculated.number of sliding blocks"
