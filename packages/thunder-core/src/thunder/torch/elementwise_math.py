# SPDX-License-Identifier: Apache-2.0
"""Functions of one operand in the torch language: exponentials, logarithms, trigonometry."""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder import clang
from thunder.core.dtypes import COMPLEX, complex64
from thunder.core.errors import check
from thunder.core.prims.elementwise_base import conjugated, unary_samples
from thunder.core.samples import MakeTensor, SampleInput
from thunder.torch.base import torchsymbol
from thunder.torch.elementwise_base import ELEMENTWISE, in_float32, rule_in_float32, to_inexact


@torchsymbol(torch.exp, tags=ELEMENTWISE)
def exp(input: Any) -> Any:
    """e to the power of input."""
    return clang.exp(input)


exp.samples(unary_samples())


@torchsymbol(torch.exp2, torch.special.exp2, tags=ELEMENTWISE)
def exp2(input: Any) -> Any:
    """2 to the power of input."""
    return clang.exp2(input)


exp2.samples(unary_samples())


@torchsymbol(torch.expm1, torch.special.expm1, tags=ELEMENTWISE)
def expm1(input: Any) -> Any:
    """exp(input) - 1, exact for small elements too."""
    return clang.expm1(input)


expm1.samples(unary_samples())


@torchsymbol(torch.log, tags=ELEMENTWISE)
def log(input: Any) -> Any:
    """The natural logarithm of input."""
    return clang.log(input)


log.samples(unary_samples(low=0.1))


@torchsymbol(torch.log1p, torch.special.log1p, tags=ELEMENTWISE)
def log1p(input: Any) -> Any:
    """log(1 + input), exact for small elements too."""
    return clang.log1p(input)


log1p.samples(unary_samples(low=-0.9))


@torchsymbol(torch.log2, tags=ELEMENTWISE)
def log2(input: Any) -> Any:
    """The logarithm of input to base 2."""
    return clang.log2(input)


log2.samples(unary_samples(low=0.1))


@torchsymbol(torch.log10, tags=ELEMENTWISE)
def log10(input: Any) -> Any:
    """The logarithm of input to base 10."""
    return clang.log10(input)


log10.samples(unary_samples(low=0.1))


@torchsymbol(torch.sqrt, tags=ELEMENTWISE)
def sqrt(input: Any) -> Any:
    """The square root of input."""
    return clang.sqrt(input)


sqrt.samples(unary_samples(low=0))


@torchsymbol(torch.rsqrt, tags=ELEMENTWISE)
def rsqrt(input: Any) -> Any:
    """One over the square root of input."""
    return clang.rsqrt(input)


rsqrt.samples(unary_samples(low=0.1))


@torchsymbol(torch.reciprocal, tags=ELEMENTWISE)
def reciprocal(input: Any) -> Any:
    """1 / input."""
    return clang.reciprocal(input)


reciprocal.samples(unary_samples(low=0.1))


@torchsymbol(torch.sin, tags=ELEMENTWISE)
def sin(input: Any) -> Any:
    """The sine of input."""
    return clang.sin(input)


sin.samples(unary_samples())


@torchsymbol(torch.cos, tags=ELEMENTWISE)
def cos(input: Any) -> Any:
    """The cosine of input."""
    return clang.cos(input)


cos.samples(unary_samples())


@torchsymbol(torch.tan, tags=ELEMENTWISE)
def tan(input: Any) -> Any:
    """The tangent of input."""
    return clang.tan(input)


tan.samples(unary_samples(low=-1.5, high=1.5))


@torchsymbol(torch.asin, torch.arcsin, tags=ELEMENTWISE)
def asin(input: Any) -> Any:
    """The angle in [-pi/2, pi/2] whose sine input is."""
    return clang.asin(input)


asin.samples(unary_samples(low=-1, high=1))


@torchsymbol(torch.acos, torch.arccos, tags=ELEMENTWISE)
def acos(input: Any) -> Any:
    """The angle in [0, pi] whose cosine input is."""
    return clang.acos(input)


acos.samples(unary_samples(low=-1, high=1))


@torchsymbol(torch.atan, torch.arctan, tags=ELEMENTWISE)
def atan(input: Any) -> Any:
    """The angle in [-pi/2, pi/2] whose tangent input is."""
    return clang.atan(input)


atan.samples(unary_samples())


@torchsymbol(torch.sinh, tags=ELEMENTWISE)
def sinh(input: Any) -> Any:
    """The hyperbolic sine of input."""
    return clang.sinh(input)


sinh.samples(unary_samples(low=-5, high=5))


@torchsymbol(torch.cosh, tags=ELEMENTWISE)
def cosh(input: Any) -> Any:
    """The hyperbolic cosine of input."""
    return clang.cosh(input)


cosh.samples(unary_samples(low=-5, high=5))


@torchsymbol(torch.tanh, torch.nn.functional.tanh, tags=ELEMENTWISE)
def tanh(input: Any) -> Any:
    """The hyperbolic tangent of input."""
    return clang.tanh(input)


tanh.samples(unary_samples())


@torchsymbol(torch.asinh, torch.arcsinh, tags=ELEMENTWISE)
def asinh(input: Any) -> Any:
    """The number whose hyperbolic sine input is."""
    return clang.asinh(input)


asinh.samples(unary_samples())


@torchsymbol(torch.acosh, torch.arccosh, tags=ELEMENTWISE)
def acosh(input: Any) -> Any:
    """The number not below zero whose hyperbolic cosine input is."""
    return clang.acosh(input)


acosh.samples(unary_samples(low=1))


@torchsymbol(torch.atanh, torch.arctanh, tags=ELEMENTWISE)
def atanh(input: Any) -> Any:
    """The number whose hyperbolic tangent input is."""
    return clang.atanh(input)


atanh.samples(unary_samples(low=-0.95, high=0.95))


@torchsymbol(torch.square, tags=ELEMENTWISE)
def square(input: Any) -> Any:
    """input * input."""
    return clang.pow(input, 2)


square.samples(unary_samples())


@torchsymbol(torch.sigmoid, torch.special.expit, torch.nn.functional.sigmoid, tags=ELEMENTWISE)
@in_float32
def sigmoid(input: Any) -> Any:
    """1 / (1 + exp(-input))."""
    return 1 / (1 + clang.exp(-to_inexact(input)))


@sigmoid.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any) -> Any:
    return g * conjugated((1 - out) * out)


sigmoid.samples(unary_samples())


def _no_complex(name: str, x: Any) -> None:
    check(x.dtype.category != COMPLEX, lambda: f"{name} is not supported for complex tensors.")


@torchsymbol(torch.deg2rad, tags=ELEMENTWISE)
def deg2rad(input: Any) -> Any:
    """Degrees to radians."""
    _no_complex("deg2rad", input)
    return clang.mul(input, math.pi / 180)


@torchsymbol(torch.rad2deg, tags=ELEMENTWISE)
def rad2deg(input: Any) -> Any:
    """Radians to degrees."""
    _no_complex("rad2deg", input)
    return clang.mul(input, 180 / math.pi)


def _complex_error(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2), dtype=complex64)), RuntimeError, "is not supported for complex tensors"


for _conversion in (deg2rad, rad2deg):
    _conversion.samples(unary_samples(low=-400, high=400))
    _conversion.errors(_complex_error)


@torchsymbol(torch.sinc, torch.special.sinc, tags=ELEMENTWISE)
@in_float32
def sinc(input: Any) -> Any:
    """sin(pi * input) / (pi * input), and 1 at 0."""
    input = to_inexact(input)
    angle = input * math.pi
    at_zero = clang.eq(input, 0)
    return clang.where(at_zero, 1, clang.true_divide(clang.sin(angle), clang.where(at_zero, 1, angle)))


@sinc.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any) -> Any:
    angle = input * math.pi
    square = angle * input
    at_zero = clang.eq(square, 0)
    slope = (angle * clang.cos(angle) - clang.sin(angle)) / clang.where(at_zero, math.inf, square)
    return g * conjugated(clang.where(at_zero, input * (-math.pi * math.pi / 3), slope))


sinc.samples(unary_samples())
