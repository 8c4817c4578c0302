# SPDX-License-Identifier: Apache-2.0
"""Unary functions of the torch language that are composed of other operations."""

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


@torchsymbol(torch.square, tags=ELEMENTWISE)
def square(input: Any) -> Any:
    """Compute input * input."""
    return clang.pow(input, 2)


square.samples(unary_samples())


@torchsymbol(torch.sigmoid, torch.special.expit, torch.nn.functional.sigmoid, tags=ELEMENTWISE)
@in_float32
def sigmoid(input: Any) -> Any:
    """Compute 1 / (1 + exp(-input))."""
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
    """Convert degrees to radians."""
    _no_complex("deg2rad", input)
    return clang.mul(input, math.pi / 180)


@torchsymbol(torch.rad2deg, tags=ELEMENTWISE)
def rad2deg(input: Any) -> Any:
    """Convert radians to degrees."""
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
    """Compute sin(pi * input) / (pi * input), or 1 where `input` is 0."""
    input = to_inexact(input)
    angle = input * math.pi
    # Near 0, the quotient is 1 also in double precision. Kernels whose sine flushes subnormals to zero would return 0.
    near_zero = clang.lt(clang.abs(input), 1e-10)
    return clang.where(near_zero, 1, clang.true_divide(clang.sin(angle), clang.where(near_zero, 1, angle)))


@sinc.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any) -> Any:
    angle = input * math.pi
    square = input * input * math.pi
    at_zero = clang.eq(square, 0)
    slope = (angle * clang.cos(angle) - clang.sin(angle)) / clang.where(at_zero, math.inf, square)
    return g * conjugated(clang.where(at_zero, input * (-math.pi * math.pi / 3), slope))


sinc.samples(unary_samples())
