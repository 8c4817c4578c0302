# SPDX-License-Identifier: Apache-2.0
"""Pooling of the torch language: maxima, means and p-norms of windows, also for a given output size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from thunder.core import prims
from thunder.core.errors import check
from thunder.core.prims.pooling import _all_different
from thunder.core.samples import MakeTensor, SampleInput
from thunder.torch.base import for_dims, torchsymbol
from thunder.torch.base import operations as ltorch

_PLACES = ("torch.nn.functional", "torch", "torch._C._nn")  # modules in which torch has the same function
_WORDS = {1: "one int", 2: "two ints", 3: "three ints"}


def _numbers(name: str, what: str, value: Any, spatial: int) -> tuple[int, ...]:
    """Return one number for each pooled dimension. A single number is used for all dimensions."""
    if not isinstance(value, Sequence):
        return (value,) * spatial
    check(
        len(value) in (1, spatial),
        lambda: f"{name}: {what} must either be a single int, or a tuple of {_WORDS[spatial]}",
    )
    return tuple(value) * spatial if len(value) == 1 else tuple(value)


def _windows(name: str, spatial: int, kernel_size: Any, stride: Any, padding: Any) -> tuple[Any, Any, Any]:
    kernel_size = _numbers(name, "kernel_size", kernel_size, spatial)
    if stride is None or (isinstance(stride, Sequence) and not stride):
        stride = kernel_size
    return kernel_size, _numbers(name, "stride", stride, spatial), _numbers(name, "padding", padding, spatial)


# -- maximum -----------------------------------------------------------------------------------------------------------
def _maxima(
    spatial: int, input: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[Any, Any]:
    name = f"max_pool{spatial}d"
    kernel_size, stride, padding = _windows(name, spatial, kernel_size, stride, padding)
    dilation = _numbers(name, "dilation", dilation, spatial)
    return prims.max_pool(input, kernel_size, stride, padding, dilation, ceil_mode)


@for_dims(1, 2, 3, name="max_pool{}d_with_indices", torch=[f"{place}.max_pool{{}}d_with_indices" for place in _PLACES])
def _max_pool_with_indices(
    spatial: int, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Return the result of max_pool{}d, and the positions of the maxima."""
    return _maxima(spatial, input, kernel_size, stride, padding, dilation, ceil_mode)


max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices = _max_pool_with_indices


@for_dims(1, 2, 3, name="max_pool{}d", torch=("torch.nn.functional.max_pool{}d", "torch.max_pool{}d"))
def _max_pool(
    spatial: int, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Return the largest element of each window, for dimensions `(batch, channels, {sizes})`."""
    pair = _maxima(spatial, input, kernel_size, stride, padding, dilation, ceil_mode)
    return pair if return_indices else pair[0]


max_pool1d, max_pool2d, max_pool3d = _max_pool
max_pool3d.declare(autocast={"cpu": "float32"})


def _shapes(spatial: int) -> tuple[tuple[int, ...], ...]:
    size = (6, 5, 4)[:spatial]
    return (2, 3, *size), (3, *size), (0, 3, *size)


@_max_pool.samples
@_max_pool_with_indices.samples
def _(spatial: int, make: MakeTensor) -> Any:
    for shape in _shapes(spatial):
        yield SampleInput(_all_different(make, shape), 2)
    shape = _shapes(spatial)[0]
    yield SampleInput(_all_different(make, shape), 3, 2, 1)
    yield SampleInput(_all_different(make, shape), (3,) * spatial, 2, 1, 1, True)
    yield SampleInput(_all_different(make, shape), 2, 1, dilation=2)
    yield SampleInput(_all_different(make, shape), 2, stride=[])


@_max_pool.errors
def _(spatial: int, make: MakeTensor) -> Any:
    x = make((2, 3, *(4,) * spatial))
    yield SampleInput(x, 2, padding=2), RuntimeError, "at most half of"
    yield SampleInput(x, 2, padding=-1), RuntimeError, "non-negative"
    if spatial > 1:
        yield SampleInput(x, 9), RuntimeError, "Output size is too small"
        yield SampleInput(x, (2,) * (spatial + 1)), RuntimeError, "must either be a single int, or a tuple of"
        yield SampleInput(make((4,)), 2), RuntimeError, "tensor expected for input"


# -- mean --------------------------------------------------------------------------------------------------------------
def _check_1d(name: str, input: Any) -> None:
    check(
        input.ndim in (2, 3),
        lambda: (
            f"Expected 2 to 3 dimensions, but got {input.ndim}-dimensional tensor for argument #1 'self' (while "
            f"checking arguments for {name})"
        ),
    )


@torchsymbol(torch.avg_pool1d, is_method=False)
def avg_pool1d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:  # fmt: skip
    """Return the mean of each window, for dimensions `(batch, channels, length)`."""
    _check_1d("avg_pool1d", input)
    windows = _windows("avg_pool1d", 1, kernel_size, stride, padding)
    return prims.avg_pool(input, *windows, ceil_mode, count_include_pad, None)


@for_dims(2, 3, name="avg_pool{}d", torch="torch._C._nn.avg_pool{}d")
def _avg_pool(
    spatial: int, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    """Return the mean of each window, for dimensions `(batch, channels, {sizes})`."""
    windows = _windows(f"avg_pool{spatial}d", spatial, kernel_size, stride, padding)
    return prims.avg_pool(input, *windows, ceil_mode, count_include_pad, divisor_override)


avg_pool2d, avg_pool3d = _avg_pool
avg_pool3d.declare(autocast={"cpu": "float32"})


@_avg_pool.samples
def _avg_samples(spatial: int, make: MakeTensor) -> Any:
    for shape in _shapes(spatial):
        yield SampleInput(make(shape), 2)
    shape = _shapes(spatial)[0]
    yield SampleInput(make(shape), 3, 2, 1)
    yield SampleInput(make(shape), (3,) * spatial, 2, 1, True)
    yield SampleInput(make(shape), 3, 2, 1, True, False)
    if spatial > 1:
        yield SampleInput(make(shape), 2, divisor_override=3)


@_avg_pool.errors
def _avg_errors(spatial: int, make: MakeTensor) -> Any:
    x = make((2, 3, *(4,) * spatial))
    yield SampleInput(x, 9), RuntimeError, "Output size is too small"
    yield SampleInput(x, 2, padding=2), RuntimeError, "at most half of"
    if spatial > 1:
        yield SampleInput(x, 2, divisor_override=0), RuntimeError, "divisor must be not zero"


avg_pool1d.samples(partial(_avg_samples, 1))
avg_pool1d.errors(partial(_avg_errors, 1))


# -- windows for an output size ----------------------------------------------------------------------------------------
def _output_size(name: str, spatial: int, input: Any, size: Any) -> tuple[int, ...]:
    """Return the output size, with None replaced by the size of the input."""
    if isinstance(size, Sequence):
        size = tuple(size) * spatial if len(size) == 1 and spatial == 1 else tuple(size)
        check(len(size) == spatial, lambda: f"{name}: output_size must be {spatial}")
    else:
        size = (size,) * spatial
    check(
        spatial > 1 or None not in size,
        lambda: f"{name}(): argument 'output_size' (position 2) must be tuple of ints, not NoneType",
        TypeError,
    )
    return tuple(n if want is None else want for want, n in zip(size, input.shape[-spatial:]))


@for_dims(
    1,
    2,
    3,
    name="adaptive_avg_pool{}d",
    torch=("torch.nn.functional.adaptive_avg_pool{}d", "torch._C._nn.adaptive_avg_pool{}d"),
)
def _adaptive_avg_pool(spatial: int, input: Any, output_size: Any) -> Any:
    """Return the means of `output_size` windows, for dimensions `(batch, channels, {sizes})`."""
    name = f"adaptive_avg_pool{spatial}d"
    size = _output_size(name, spatial, input, output_size)
    if spatial == 1:
        _check_1d(name, input)
    if set(size) == {1} and 0 not in input.shape[-spatial:] and input.ndim in (spatial + 1, spatial + 2):
        return ltorch.mean(input, tuple(range(-spatial, 0)), True)
    return prims.adaptive_avg_pool(input, size)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = _adaptive_avg_pool
adaptive_avg_pool3d.declare(autocast={"cpu": "float32"})


def _adaptive_maxima(spatial: int, input: Any, output_size: Any) -> tuple[Any, Any]:
    return prims.adaptive_max_pool(input, _output_size(f"adaptive_max_pool{spatial}d", spatial, input, output_size))


@for_dims(
    1,
    2,
    3,
    name="adaptive_max_pool{}d_with_indices",
    torch=(
        "torch.nn.functional.adaptive_max_pool{}d_with_indices",
        "torch.adaptive_max_pool{}d",
        "torch._C._nn.adaptive_max_pool{}d",
    ),
)
def _adaptive_max_pool_with_indices(spatial: int, input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Return the result of adaptive_max_pool{}d, and the positions of the maxima."""
    return _adaptive_maxima(spatial, input, output_size)


adaptive_max_pool1d_with_indices, adaptive_max_pool2d_with_indices, adaptive_max_pool3d_with_indices = (
    _adaptive_max_pool_with_indices
)
adaptive_max_pool3d_with_indices.declare(autocast={"cpu": "float32"})


@for_dims(1, 2, 3, name="adaptive_max_pool{}d", torch="torch.nn.functional.adaptive_max_pool{}d")
def _adaptive_max_pool(spatial: int, input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Return the maxima of `output_size` windows, for dimensions `(batch, channels, {sizes})`."""
    pair = _adaptive_maxima(spatial, input, output_size)
    return pair if return_indices else pair[0]


adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = _adaptive_max_pool
adaptive_max_pool3d.declare(autocast={"cpu": "float32"})


@_adaptive_avg_pool.samples
@_adaptive_max_pool.samples
@_adaptive_max_pool_with_indices.samples
def _(spatial: int, make: MakeTensor) -> Any:
    for shape in _shapes(spatial):
        yield SampleInput(_all_different(make, shape), 3)
    shape = _shapes(spatial)[0]
    yield SampleInput(_all_different(make, shape), (1,) * spatial)
    if spatial > 1:
        yield SampleInput(_all_different(make, shape), (2, *(None,) * (spatial - 1)))


@_adaptive_avg_pool.errors
@_adaptive_max_pool.errors
def _(spatial: int, make: MakeTensor) -> Any:
    if spatial > 1:
        yield SampleInput(make((5,) * spatial), 2), RuntimeError, "D tensor, but got"
        yield SampleInput(make((2, 3, 0, *(5,) * (spatial - 1))), 2), RuntimeError, "with dimension 2 being empty"


# -- p-norm ------------------------------------------------------------------------------------------------------------
@for_dims(1, 2, 3, name="lp_pool{}d", torch="torch.nn.functional.lp_pool{}d")
def _lp_pool(
    spatial: int, input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Any:
    """Return the p-norm of each window, for dimensions `(batch, channels, {sizes})`."""
    kernel_size = _numbers(f"lp_pool{spatial}d", "kernel_size", kernel_size, spatial)
    if norm_type in (math.inf, -math.inf):
        largest = _max_pool[spatial - 1]
        if norm_type > 0:
            return largest(ltorch.abs(input), kernel_size, stride, 0, 1, ceil_mode)
        return -largest(-ltorch.abs(input), kernel_size, stride, 0, 1, ceil_mode)
    average = (avg_pool1d, *_avg_pool)[spatial - 1]
    mean = average(input**norm_type, kernel_size, stride, 0, ceil_mode)
    total = ltorch.sign(mean) * ltorch.relu(ltorch.abs(mean)) * math.prod(kernel_size)
    return total ** (1.0 / norm_type)


lp_pool1d, lp_pool2d, lp_pool3d = _lp_pool


@_lp_pool.samples
def _(spatial: int, make: MakeTensor) -> Any:
    shape = _shapes(spatial)[0]
    yield SampleInput(make(shape, low=0.1), 2, 2)
    yield SampleInput(make(shape, low=0.1), 3.0, 2, 1, True)
