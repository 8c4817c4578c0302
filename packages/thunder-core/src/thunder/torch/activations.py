# SPDX-License-Identifier: Apache-2.0
"""Activation functions that are piecewise linear, and functions composed of them.

`activations_smooth.py` contains the smooth ones. For most of them, torch has separate forward and backward kernels. At
the kinks, the gradients here are the same as those of torch's kernels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from thunder import clang
from thunder.core.dtypes import BOOL, COMPLEX, FLOAT, bool8, float32, int32
from thunder.core.errors import check
from thunder.core.prims.elementwise_base import unary_samples
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_unary
from thunder.torch.base import torchsymbol
from thunder.torch.elementwise_base import ELEMENTWISE, in_float32, rule_in_float32
from thunder.torch.elementwise_conditional import number_of_dtype


def check_floats(name: str, input: TensorProxy, *, complex_too: bool = False) -> None:
    """Raise torch's error for the dtypes that its kernel does not support."""
    category = input.dtype.category
    if category < FLOAT or (category == COMPLEX and not complex_too):
        raise NotImplementedError(f'"{name}" not implemented for {input.dtype}: it requires floating point tensors')


def integer_errors(make: MakeTensor) -> Any:
    """Yield the error sample of an activation that only supports floating point tensors."""
    yield SampleInput(make((2, 3), dtype=int32)), NotImplementedError, "not implemented for int32"


def _check_no_bools(name: str, input: TensorProxy) -> None:
    check(input.dtype.category != BOOL, lambda: f"Boolean inputs not supported for {name}")
    if input.dtype.category == COMPLEX:
        raise NotImplementedError(f"{name} is not supported for complex types")


def _bool_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3), dtype=bool8)), RuntimeError, "Boolean inputs not supported for"


@torchsymbol(torch.relu, F.relu, tags=ELEMENTWISE)
def relu(input: Any, inplace: bool = False) -> Any:
    """Return `input` where it is positive, otherwise 0."""
    _check_no_bools("relu", input)
    return clang.maximum(input, 0)


@relu.vjp
def _(g: Any, out: Any, input: Any, inplace: bool = False) -> Any:
    return clang.where(out <= 0, 0, g)


relu.samples(unary_samples())
relu.errors(_bool_errors)


@torchsymbol(F.hardtanh, torch._C._nn.hardtanh, tags=ELEMENTWISE)
def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """Return `input` clamped to [`min_val`, `max_val`]."""
    _check_no_bools("hardtanh", input)
    check(min_val <= max_val, lambda: f"min_val cannot be greater than max_val, but {min_val} > {max_val}", ValueError)
    low, high = number_of_dtype(min_val, input.dtype), number_of_dtype(max_val, input.dtype)
    return clang.minimum(clang.maximum(input, low), high)


@hardtanh.vjp
def _(g: Any, out: Any, input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    return _where_straight(g, input, min_val, max_val)


def _where_straight(g: Any, input: Any, low: float, high: float) -> Any:
    # NaN is not clamped: its gradient flows through.
    return clang.where(clang.logical_or(input <= low, input >= high), 0, g)


@hardtanh.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)
    yield SampleInput(make((4, 4)), 0.0, 5.0)


@hardtanh.errors
def _(make: MakeTensor) -> Any:
    yield from _bool_errors(make)
    yield SampleInput(make((2, 3), dtype=float32), 2.0, 1.0), ValueError, "min_val cannot be greater than max_val"


@torchsymbol(F.relu6, torch._C._nn.relu6, tags=ELEMENTWISE)
def relu6(input: Any, inplace: bool = False) -> Any:
    """Return `input` clamped to [0, 6]."""
    _check_no_bools("relu6", input)
    return clang.minimum(clang.maximum(input, 0), 6)


@relu6.vjp
def _(g: Any, out: Any, input: Any, inplace: bool = False) -> Any:
    return _where_straight(g, input, 0, 6)


relu6.samples(unary_samples())
relu6.errors(_bool_errors)


@torchsymbol(F.hardsigmoid, torch._C._nn.hardsigmoid, tags=ELEMENTWISE)
@in_float32
def hardsigmoid(input: Any, inplace: bool = False) -> Any:
    """Compute relu6(input + 3) / 6."""
    check_floats("hardsigmoid", input)
    return relu6(input + 3) / 6


@hardsigmoid.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, inplace: bool = False) -> Any:
    return clang.where(clang.logical_and(input > -3, input < 3), g / 6, 0)


@torchsymbol(F.hardswish, torch._C._nn.hardswish, tags=ELEMENTWISE)
@in_float32
def hardswish(input: Any, inplace: bool = False) -> Any:
    """Compute input * relu6(input + 3) / 6."""
    check_floats("hardswish", input)
    return input * relu6(input + 3) / 6


@hardswish.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, inplace: bool = False) -> Any:
    bent = g * (input / 3 + 0.5)
    return clang.where(input <= -3, 0, clang.where(input < 3, bent, g))


for _op in (hardsigmoid, hardswish):
    _op.samples(unary_samples())
    _op.errors(integer_errors)


@torchsymbol(F.leaky_relu, torch._C._nn.leaky_relu, tags=ELEMENTWISE)
@in_float32
def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """Return `input` where it is positive, otherwise input * `negative_slope`."""
    check_floats("leaky_relu", input)
    return clang.where(input > 0, input, input * negative_slope)


@leaky_relu.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return clang.where(input > 0, g, g * negative_slope)


@leaky_relu.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)
    yield SampleInput(make((4, 4)), 0.2)
    yield SampleInput(make((4, 4)), -0.3)


leaky_relu.errors(integer_errors)


@torchsymbol(torch.prelu, F.prelu, tags=ELEMENTWISE, autocast="lower")
def prelu(input: Any, weight: Any) -> Any:
    """Return `input` where it is positive, otherwise input * `weight`: one number, or one number per channel."""
    check(
        input.dtype is weight.dtype,
        lambda: f"prelu: Type promoting not supported. Got {input.dtype} and {weight.dtype}",
    )
    check(weight.ndim <= 1, lambda: f"prelu: Expected `weight` to be a scalar or 1D tensor, but got {weight.ndim}D")
    if weight.ndim == 1:
        channels = 1 if input.ndim < 2 else input.shape[1]
        check(
            weight.shape[0] in (1, channels),
            lambda: (
                "Mismatch of parameter numbers and input channel size. Found parameter numbers = "
                f"{weight.shape[0]} and channel size = {channels}."
            ),
        )
        shape = [1] * input.ndim
        if input.ndim >= 2:
            shape[1] = weight.shape[0]
        weight = weight.reshape(shape)
    return in_float32(_prelu)(input, weight)


def _prelu(input: Any, weight: Any) -> Any:
    return clang.where(input > 0, input, input * weight)


@prelu.batch
def _(b: Any, *args: Any) -> Any:
    return NotImplemented  # the channel dimension depends on the number of dimensions


@prelu.samples
def _(make: MakeTensor) -> Any:
    for shape, weight in (((4, 3), (3,)), ((4, 3), (1,)), ((2, 3, 4), (3,)), ((5,), (1,)), ((), ()), ((0, 3), (3,))):
        yield SampleInput(make(shape), make(weight))
    yield SampleInput(make((4, 3)), make(()))


@prelu.errors
def _(make: MakeTensor) -> Any:
    a = make((4, 3), dtype=float32)
    yield (
        SampleInput(a, make((2,), dtype=float32)),
        RuntimeError,
        "Mismatch of parameter numbers and input channel size",
    )
    yield SampleInput(a, make((3,), dtype=int32)), RuntimeError, "Type promoting not supported"
    yield SampleInput(a, a), RuntimeError, "Expected `weight` to be a scalar or 1D tensor"


@torchsymbol(torch.threshold, F.threshold, tags=ELEMENTWISE)
def threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    """Return `input` where it is greater than `threshold`, otherwise `value`."""
    low, value = number_of_dtype(threshold, input.dtype), number_of_dtype(value, input.dtype)
    return clang.where(clang.le(input, low), value, input)


@threshold.vjp
def _(g: Any, out: Any, input: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    return clang.where(input <= threshold, 0, g)


@threshold.samples
def _(make: MakeTensor) -> Any:
    for s in elementwise_unary(make):
        yield SampleInput(*s.args, 1, 7)


@torchsymbol(torch.hardshrink, F.hardshrink, tags=ELEMENTWISE)
def hardshrink(input: Any, lambd: float = 0.5) -> Any:
    """Return `input`, but 0 where it is in [-lambd, lambd]."""
    check_floats("hardshrink", input)
    return clang.where(_within(input, lambd), 0, input)


def _within(input: Any, bound: float) -> Any:
    return clang.logical_and(input >= -bound, input <= bound)


@hardshrink.vjp
def _(g: Any, out: Any, input: Any, lambd: float = 0.5) -> Any:
    return clang.where(_within(input, lambd), 0, g)


@torchsymbol(F.softshrink, tags=ELEMENTWISE)
@in_float32
def softshrink(input: Any, lambd: float = 0.5) -> Any:
    """Return `input` moved towards zero by `lambd`, but not past zero."""
    check_floats("softshrink", input)
    check(lambd >= 0, lambda: f"lambda must be greater or equal to 0, but found to be {lambd}.")
    rest = clang.where(clang.isnan(input), input, 0)
    return clang.where(input > lambd, input - lambd, clang.where(input < -lambd, input + lambd, rest))


@softshrink.vjp
def _(g: Any, out: Any, input: Any, lambd: float = 0.5) -> Any:
    return clang.where(_within(input, lambd), 0, g)


def _shrink_samples(make: MakeTensor) -> Any:
    for s in elementwise_unary(make, low=-2, high=2):
        yield s
        yield SampleInput(*s.args, 1.0)


for _op in (hardshrink, softshrink):
    _op.samples(_shrink_samples)
hardshrink.errors(integer_errors)


@softshrink.errors
def _(make: MakeTensor) -> Any:
    yield from integer_errors(make)
    yield SampleInput(make((3,), dtype=float32), -1.0), RuntimeError, "lambda must be greater or equal to 0"
