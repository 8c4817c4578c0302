# SPDX-License-Identifier: Apache-2.0
"""Convolutions of the torch language with one to three spatial dimensions, and transposed convolutions.

They decompose into the `convolution` primitive. In addition, they support inputs without a batch dimension, single
numbers for all dimensions, and padding by name (e.g. "same").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core import dtypes, prims
from thunder.core.errors import check
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.base import for_dims, torchsymbol
from thunder.torch.base import operations as ltorch

_TAGS = (OpTags.MATMUL_OP, OpTags.LAYOUT_OF_KERNEL)


def per_dimension(value: Any, count: int) -> tuple[int, ...]:
    """Return one number for each spatial dimension. A single number is used for all dimensions."""
    if isinstance(value, Sequence):
        return tuple(value) * count if len(value) == 1 else tuple(value)
    return (value,) * count


def _batched(name: str, input: Any, spatial: int) -> tuple[Any, bool]:
    check(
        input.ndim in (spatial + 1, spatial + 2),
        lambda: (
            f"Expected {spatial + 1}D (unbatched) or {spatial + 2}D (batched) input to {name}, but got input of size: "
            f"{list(input.shape)}"
        ),
    )
    return (input, False) if input.ndim == spatial + 2 else (ltorch.unsqueeze(input, 0), True)


def _padded(input: Any, weight: Any, padding: str, stride: Any, dilation: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the input and the symmetric padding for padding by name. The input may be padded further."""
    spatial = weight.ndim - 2
    check(padding in ("same", "valid"), lambda: f"Invalid padding string: '{padding}'")
    if padding == "valid":
        return input, (0,) * spatial
    check(all(s == 1 for s in stride), lambda: "padding='same' is not supported for strided convolutions")
    totals = [d * (k - 1) for k, d in zip(weight.shape[2:], dilation)]
    if any(t % 2 for t in totals):
        # An odd total adds one element on the right.
        extra = [n for t in reversed(totals) for n in (0, t % 2)]
        input = ltorch.pad(input, tuple(extra))
    return input, tuple(t // 2 for t in totals)


def _convolved(input: Any, weight: Any, bias: Any, *how: Any) -> Any:
    """Compute a convolution of real or complex numbers. The primitive only supports real numbers."""
    if not dtypes.is_complex_dtype(input.dtype):
        return prims.convolution(input, weight, bias, *how)
    parts = [(ltorch.real(x), ltorch.imag(x)) for x in (input, weight)]
    (a, b), (c, d) = parts

    def product(x: Any, w: Any) -> Any:
        return prims.convolution(x, w, None, *how)

    out = ltorch.complex(product(a, c) - product(b, d), product(a, d) + product(b, c))
    return out if bias is None else out + ltorch.reshape(bias, (1, -1, *([1] * (out.ndim - 2))))


def _check_weight(name: str, weight: Any, spatial: int) -> None:
    check(
        weight.ndim == spatial + 2,
        lambda: f"{name}: the weight must have {spatial + 2} dimensions, but has the shape {list(weight.shape)}",
    )


@for_dims(1, 2, 3, name="conv{}d", torch="torch.conv{}d", tags=_TAGS, autocast="lower")
def _conv(
    spatial: int, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    """Compute the convolution of a tensor with dimensions `(batch, channels, {sizes})`."""
    name = f"conv{spatial}d"
    input, alone = _batched(name, input, spatial)
    _check_weight(name, weight, spatial)
    stride, dilation = per_dimension(stride, spatial), per_dimension(dilation, spatial)
    if isinstance(padding, str):
        input, padding = _padded(input, weight, padding, stride, dilation)
    padding = per_dimension(padding, spatial)
    out = _convolved(input, weight, bias, stride, padding, dilation, False, (0,) * spatial, groups)
    return ltorch.squeeze(out, 0) if alone else out


conv1d, conv2d, conv3d = _conv


@_conv.samples
def _(spatial: int, make: MakeTensor) -> Any:
    size, kernel = (6, 5, 4)[:spatial], (3, 2, 2)[:spatial]
    x, w = (2, 4, *size), (6, 4, *kernel)
    yield SampleInput(make(x), make(w), make((6,)))
    yield SampleInput(make(x), make(w), None, 2, 1)
    yield SampleInput(make(x), make(w), make((6,)), 1, 1, 2 if spatial == 1 else (2, *(1,) * (spatial - 1)))
    yield SampleInput(make(x), make((6, 2, *kernel)), make((6,)), groups=2)
    yield SampleInput(make(x), make((4, 1, *kernel)), groups=4)
    yield SampleInput(make(x[1:]), make(w), make((6,)))
    yield SampleInput(make(x), make(w), make((6,)), padding="same")
    yield SampleInput(make(x), make(w), make((6,)), padding="valid", stride=[2])
    yield SampleInput(make((0, 4, *size)), make(w), make((6,)))


@_conv.errors
def _(spatial: int, make: MakeTensor) -> Any:
    x, w = make((2, 3, *(5,) * spatial)), make((4, 3, *(3,) * spatial))
    few, large = make((4, 2, *(3,) * spatial)), make((4, 3, *(9,) * spatial))
    unbatched = rf"\(batched\) input to conv{spatial}d, but got input of size"
    yield SampleInput(make((3,)), w), RuntimeError, unbatched
    yield SampleInput(x, few), RuntimeError, "to have 2 channels, but got 3 channels instead"
    yield SampleInput(x, large), RuntimeError, "Kernel size can't be greater than actual input"
    yield SampleInput(x, w, make((3,))), RuntimeError, "expected bias to be 1-dimensional with 4 elements"
    yield SampleInput(x, w, padding="same", stride=2), RuntimeError, "not supported for strided convolutions"
    yield SampleInput(x, w, padding="most"), RuntimeError, "Invalid padding string"
    yield SampleInput(x, w, stride=0), RuntimeError, "non-positive stride is not supported"


@for_dims(1, 2, 3, name="conv_transpose{}d", torch="torch.conv_transpose{}d", tags=_TAGS, autocast="lower")
def _conv_transpose(
    spatial: int, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    """Compute the transposed convolution of a tensor with dimensions `(batch, channels, {sizes})`."""
    name = f"conv_transpose{spatial}d"
    input, alone = _batched(name, input, spatial)
    _check_weight(name, weight, spatial)
    stride, padding, output_padding, dilation = (
        per_dimension(x, spatial) for x in (stride, padding, output_padding, dilation)
    )
    out = _convolved(input, weight, bias, stride, padding, dilation, True, output_padding, groups)
    return ltorch.squeeze(out, 0) if alone else out


conv_transpose1d, conv_transpose2d, conv_transpose3d = _conv_transpose


@_conv_transpose.samples
def _(spatial: int, make: MakeTensor) -> Any:
    size, kernel = (4, 3, 3)[:spatial], (3, 2, 2)[:spatial]
    x, w = (2, 4, *size), (4, 3, *kernel)
    yield SampleInput(make(x), make(w), make((3,)))
    yield SampleInput(make(x), make(w), None, 2, 1, 1)
    yield SampleInput(make(x), make(w), make((6,)), 1, 0, 0, 2, 2)
    yield SampleInput(make(x[1:]), make(w), make((3,)))


@_conv_transpose.errors
def _(spatial: int, make: MakeTensor) -> Any:
    x, w = make((2, 3, *(5,) * spatial)), make((3, 4, *(3,) * spatial))
    few = make((4, 4, *(3,) * spatial))
    yield SampleInput(x, few), RuntimeError, "to have 4 channels, but got 3 channels instead"
    yield SampleInput(x, w, output_padding=1), RuntimeError, "output padding must be smaller than either stride or"
    yield SampleInput(x, w, make((3,))), RuntimeError, "expected bias to be 1-dimensional with 4 elements"


@torchsymbol(torch.convolution, is_method=False, tags=_TAGS, autocast={"cuda": "lower"})
def convolution(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    """Compute a convolution with any number of spatial dimensions, transposed or not."""
    spatial = weight.ndim - 2
    input, alone = _batched("convolution", input, spatial)
    stride, padding, dilation, output_padding = (
        per_dimension(x, spatial) for x in (stride, padding, dilation, output_padding)
    )
    out = _convolved(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    return ltorch.squeeze(out, 0) if alone else out


@convolution.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3, 6)), make((4, 3, 2)), make((4,)), [2], [1], [1], False, [0], 1)
    yield SampleInput(make((2, 3, 4, 4)), make((3, 4, 2, 2)), None, (2, 2), (0, 0), (1, 1), True, (1, 1), 1)
