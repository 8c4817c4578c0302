# SPDX-License-Identifier: Apache-2.0
"""Pooling of the torch language: maxima, means and p-norms of windows, given or chosen for an output size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.errors import check
from thunder.core.prims.pooling import _all_different
from thunder.core.samples import MakeTensor, SampleInput
from thunder.torch.base import torchsymbol

_WORDS = {1: "one int", 2: "two ints", 3: "three ints"}


def _numbers(name: str, what: str, value: Any, spatial: int) -> tuple[int, ...]:
    """A number for each pooled dimension, where one number may stand for all."""
    if not isinstance(value, Sequence):
        return (value,) * spatial
    check(
        len(value) in (1, spatial),
        lambda: f"{name}: {what} must either be a single int, or a tuple of {_WORDS[spatial]}",
    )
    return tuple(value) * spatial if len(value) == 1 else tuple(value)


def _windows(name: str, kernel_size: Any, stride: Any, padding: Any) -> tuple[Any, Any, Any]:
    spatial = int(name[-2])
    kernel_size = _numbers(name, "kernel_size", kernel_size, spatial)
    if stride is None or (isinstance(stride, Sequence) and not stride):
        stride = kernel_size
    return kernel_size, _numbers(name, "stride", stride, spatial), _numbers(name, "padding", padding, spatial)


# -- maximum -----------------------------------------------------------------------------------------------------------
def _max_pool(
    name: str, input: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[Any, Any]:
    kernel_size, stride, padding = _windows(name, kernel_size, stride, padding)
    dilation = _numbers(name, "dilation", dilation, len(kernel_size))
    return prims.max_pool(input, kernel_size, stride, padding, dilation, ceil_mode)


@torchsymbol(F.max_pool1d, torch.max_pool1d, is_method=False)
def max_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window of `(batch, channels, length)`."""
    pair = _max_pool("max_pool1d", input, kernel_size, stride, padding, dilation, ceil_mode)
    return pair if return_indices else pair[0]


@torchsymbol(F.max_pool2d, torch.max_pool2d, is_method=False)
def max_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window of `(batch, channels, height, width)`."""
    pair = _max_pool("max_pool2d", input, kernel_size, stride, padding, dilation, ceil_mode)
    return pair if return_indices else pair[0]


@torchsymbol(F.max_pool3d, torch.max_pool3d, is_method=False)
def max_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window of `(batch, channels, depth, height, width)`."""
    pair = _max_pool("max_pool3d", input, kernel_size, stride, padding, dilation, ceil_mode)
    return pair if return_indices else pair[0]


@torchsymbol(F.max_pool1d_with_indices, torch.max_pool1d_with_indices, is_method=False)
def max_pool1d_with_indices(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """max_pool1d, and where the maxima are."""
    return _max_pool("max_pool1d", input, kernel_size, stride, padding, dilation, ceil_mode)


@torchsymbol(F.max_pool2d_with_indices, torch._C._nn.max_pool2d_with_indices, is_method=False)
def max_pool2d_with_indices(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """max_pool2d, and where the maxima are."""
    return _max_pool("max_pool2d", input, kernel_size, stride, padding, dilation, ceil_mode)


@torchsymbol(F.max_pool3d_with_indices, torch._C._nn.max_pool3d_with_indices, is_method=False)
def max_pool3d_with_indices(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """max_pool3d, and where the maxima are."""
    return _max_pool("max_pool3d", input, kernel_size, stride, padding, dilation, ceil_mode)


def _shapes(spatial: int) -> tuple[tuple[int, ...], ...]:
    size = (6, 5, 4)[:spatial]
    return (2, 3, *size), (3, *size), (0, 3, *size)


def _max_samples(spatial: int) -> Any:
    def samples(make: MakeTensor) -> Any:
        for shape in _shapes(spatial):
            yield SampleInput(_all_different(make, shape), 2)
        shape = _shapes(spatial)[0]
        yield SampleInput(_all_different(make, shape), 3, 2, 1)
        yield SampleInput(_all_different(make, shape), (3,) * spatial, 2, 1, 1, True)
        yield SampleInput(_all_different(make, shape), 2, 1, dilation=2)
        yield SampleInput(_all_different(make, shape), 2, stride=[])

    return samples


def _max_errors(spatial: int) -> Any:
    def errors(make: MakeTensor) -> Any:
        x = make((2, 3, *(4,) * spatial))
        yield SampleInput(x, 2, padding=2), RuntimeError, "at most half of"
        yield SampleInput(x, 2, padding=-1), RuntimeError, "non-negative"
        if spatial > 1:
            yield SampleInput(x, 9), RuntimeError, "Output size is too small"
            yield SampleInput(x, (2,) * (spatial + 1)), RuntimeError, "must either be a single int, or a tuple of"
            yield SampleInput(make((4,)), 2), RuntimeError, "tensor expected for input"

    return errors


for _sym in (max_pool1d, max_pool2d, max_pool3d):
    _sym.samples(_max_samples(int(_sym.name[-2])))
    _sym.errors(_max_errors(int(_sym.name[-2])))
for _n, _sym in enumerate((max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices), start=1):
    _sym.samples(_max_samples(_n))


# -- mean --------------------------------------------------------------------------------------------------------------
def _check_1d(name: str, input: Any) -> None:
    check(
        input.ndim in (2, 3),
        lambda: (
            f"Expected 2 to 3 dimensions, but got {input.ndim}-dimensional tensor for argument #1 'self' (while "
            "checking "
            f"arguments for {name})"
        ),
    )


@torchsymbol(torch.avg_pool1d, is_method=False)
def avg_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """The mean of each window of `(batch, channels, length)`."""
    _check_1d("avg_pool1d", input)
    windows = _windows("avg_pool1d", kernel_size, stride, padding)
    return prims.avg_pool(input, *windows, ceil_mode, count_include_pad, None)


@torchsymbol(torch._C._nn.avg_pool2d, is_method=False)
def avg_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of each window of `(batch, channels, height, width)`."""
    windows = _windows("avg_pool2d", kernel_size, stride, padding)
    return prims.avg_pool(input, *windows, ceil_mode, count_include_pad, divisor_override)


@torchsymbol(torch._C._nn.avg_pool3d, is_method=False)
def avg_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of each window of `(batch, channels, depth, height, width)`."""
    windows = _windows("avg_pool3d", kernel_size, stride, padding)
    return prims.avg_pool(input, *windows, ceil_mode, count_include_pad, divisor_override)


def _avg_samples(spatial: int) -> Any:
    def samples(make: MakeTensor) -> Any:
        for shape in _shapes(spatial):
            yield SampleInput(make(shape), 2)
        shape = _shapes(spatial)[0]
        yield SampleInput(make(shape), 3, 2, 1)
        yield SampleInput(make(shape), (3,) * spatial, 2, 1, True)
        yield SampleInput(make(shape), 3, 2, 1, True, False)
        if spatial > 1:
            yield SampleInput(make(shape), 2, divisor_override=3)

    return samples


def _avg_errors(spatial: int) -> Any:
    def errors(make: MakeTensor) -> Any:
        x = make((2, 3, *(4,) * spatial))
        yield SampleInput(x, 9), RuntimeError, "Output size is too small"
        yield SampleInput(x, 2, padding=2), RuntimeError, "at most half of"
        if spatial > 1:
            yield SampleInput(x, 2, divisor_override=0), RuntimeError, "divisor must be not zero"

    return errors


for _sym in (avg_pool1d, avg_pool2d, avg_pool3d):
    _sym.samples(_avg_samples(int(_sym.name[-2])))
    _sym.errors(_avg_errors(int(_sym.name[-2])))


# -- windows for an output size ----------------------------------------------------------------------------------------
def _output_size(name: str, input: Any, size: Any) -> tuple[int, ...]:
    """The output size with None read as the input's own."""
    spatial = int(name[-2])
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


def _adaptive_avg(name: str, input: Any, output_size: Any) -> Any:
    size = _output_size(name, input, output_size)
    if len(size) == 1:
        _check_1d(name, input)
    if set(size) == {1} and 0 not in input.shape[-len(size) :] and input.ndim in (len(size) + 1, len(size) + 2):
        return ltorch.mean(input, tuple(range(-len(size), 0)), True)
    return prims.adaptive_avg_pool(input, size)


@torchsymbol(torch.adaptive_avg_pool1d, is_method=False)
def adaptive_avg_pool1d(input: Any, output_size: Any) -> Any:
    """The means of `output_size` windows of `(batch, channels, length)`."""
    return _adaptive_avg("adaptive_avg_pool1d", input, output_size)


@torchsymbol(F.adaptive_avg_pool2d, torch._C._nn.adaptive_avg_pool2d, is_method=False)
def adaptive_avg_pool2d(input: Any, output_size: Any) -> Any:
    """The means of `output_size` windows of `(batch, channels, height, width)`."""
    return _adaptive_avg("adaptive_avg_pool2d", input, output_size)


@torchsymbol(F.adaptive_avg_pool3d, torch._C._nn.adaptive_avg_pool3d, is_method=False)
def adaptive_avg_pool3d(input: Any, output_size: Any) -> Any:
    """The means of `output_size` windows of `(batch, channels, depth, height, width)`."""
    return _adaptive_avg("adaptive_avg_pool3d", input, output_size)


def _adaptive_max(name: str, input: Any, output_size: Any) -> tuple[Any, Any]:
    size = _output_size(name, input, output_size)
    return prims.adaptive_max_pool(input, size)


@torchsymbol(F.adaptive_max_pool1d, is_method=False)
def adaptive_max_pool1d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The maxima of `output_size` windows of `(batch, channels, length)`."""
    pair = _adaptive_max("adaptive_max_pool1d", input, output_size)
    return pair if return_indices else pair[0]


@torchsymbol(F.adaptive_max_pool2d, is_method=False)
def adaptive_max_pool2d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The maxima of `output_size` windows of `(batch, channels, height, width)`."""
    pair = _adaptive_max("adaptive_max_pool2d", input, output_size)
    return pair if return_indices else pair[0]


@torchsymbol(F.adaptive_max_pool3d, is_method=False)
def adaptive_max_pool3d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The maxima of `output_size` windows of `(batch, channels, depth, height, width)`."""
    pair = _adaptive_max("adaptive_max_pool3d", input, output_size)
    return pair if return_indices else pair[0]


@torchsymbol(F.adaptive_max_pool1d_with_indices, torch.adaptive_max_pool1d, is_method=False)
def adaptive_max_pool1d_with_indices(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """adaptive_max_pool1d, and where the maxima are."""
    return _adaptive_max("adaptive_max_pool1d", input, output_size)


@torchsymbol(F.adaptive_max_pool2d_with_indices, torch._C._nn.adaptive_max_pool2d, is_method=False)
def adaptive_max_pool2d_with_indices(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """adaptive_max_pool2d, and where the maxima are."""
    return _adaptive_max("adaptive_max_pool2d", input, output_size)


@torchsymbol(F.adaptive_max_pool3d_with_indices, torch._C._nn.adaptive_max_pool3d, is_method=False)
def adaptive_max_pool3d_with_indices(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """adaptive_max_pool3d, and where the maxima are."""
    return _adaptive_max("adaptive_max_pool3d", input, output_size)


def _adaptive_samples(spatial: int) -> Any:
    def samples(make: MakeTensor) -> Any:
        for shape in _shapes(spatial):
            yield SampleInput(_all_different(make, shape), 3)
        shape = _shapes(spatial)[0]
        yield SampleInput(_all_different(make, shape), (1,) * spatial)
        if spatial > 1:
            yield SampleInput(_all_different(make, shape), (2, *(None,) * (spatial - 1)))

    return samples


def _adaptive_errors(spatial: int) -> Any:
    def errors(make: MakeTensor) -> Any:
        if spatial > 1:
            yield SampleInput(make((5,) * spatial), 2), RuntimeError, "D tensor, but got"
            yield SampleInput(make((2, 3, 0, *(5,) * (spatial - 1))), 2), RuntimeError, "with dimension 2 being empty"

    return errors


for _n in (1, 2, 3):
    for _name in (f"adaptive_avg_pool{_n}d", f"adaptive_max_pool{_n}d"):
        globals()[_name].samples(_adaptive_samples(_n))
        globals()[_name].errors(_adaptive_errors(_n))
    globals()[f"adaptive_max_pool{_n}d_with_indices"].samples(_adaptive_samples(_n))


# -- p-norm ------------------------------------------------------------------------------------------------------------
def _lp_pool(spatial: int, input: Any, norm_type: float, kernel_size: Any, stride: Any, ceil_mode: bool) -> Any:
    kernel_size = _numbers(f"lp_pool{spatial}d", "kernel_size", kernel_size, spatial)
    if norm_type in (math.inf, -math.inf):
        max_pool = (max_pool1d, max_pool2d, max_pool3d)[spatial - 1]
        if norm_type > 0:
            return max_pool(ltorch.abs(input), kernel_size, stride, 0, 1, ceil_mode)
        return -max_pool(-ltorch.abs(input), kernel_size, stride, 0, 1, ceil_mode)
    avg_pool = (avg_pool1d, avg_pool2d, avg_pool3d)[spatial - 1]
    mean = avg_pool(input**norm_type, kernel_size, stride, 0, ceil_mode)
    total = ltorch.sign(mean) * ltorch.relu(ltorch.abs(mean)) * math.prod(kernel_size)
    return total ** (1.0 / norm_type)


@torchsymbol(F.lp_pool1d, is_method=False)
def lp_pool1d(input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Any:
    """The p-norm of each window of `(batch, channels, length)`."""
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


@torchsymbol(F.lp_pool2d, is_method=False)
def lp_pool2d(input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Any:
    """The p-norm of each window of `(batch, channels, height, width)`."""
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


@torchsymbol(F.lp_pool3d, is_method=False)
def lp_pool3d(input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Any:
    """The p-norm of each window of `(batch, channels, depth, height, width)`."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)


def _lp_samples(spatial: int) -> Any:
    def samples(make: MakeTensor) -> Any:
        shape = _shapes(spatial)[0]
        yield SampleInput(make(shape, low=0.1), 2, 2)
        yield SampleInput(make(shape, low=0.1), 3.0, 2, 1, True)

    return samples


for _sym in (lp_pool1d, lp_pool2d, lp_pool3d):
    _sym.samples(_lp_samples(int(_sym.name[-2])))
