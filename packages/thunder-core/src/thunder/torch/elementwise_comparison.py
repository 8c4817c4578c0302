# SPDX-License-Identifier: Apache-2.0
"""Predicates and logical operations of the torch language."""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder import clang
from thunder.core.dtypes import bool8, complex64, float32, int64
from thunder.core.errors import check
from thunder.core.prims.elementwise_base import unary_samples
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_binary
from thunder.torch.base import torchsymbol
from thunder.torch.elementwise_base import COMPARISON, to_inexact


@torchsymbol(torch.logical_not, tags=COMPARISON)
def logical_not(input: Any) -> Any:
    """Return a mask that is true where `input` is zero."""
    return clang.logical_not(input)


@torchsymbol(torch.logical_and, tags=COMPARISON)
def logical_and(input: Any, other: Any) -> Any:
    """Return a mask that is true where both operands are nonzero."""
    return clang.logical_and(input, other)


@torchsymbol(torch.logical_or, tags=COMPARISON)
def logical_or(input: Any, other: Any) -> Any:
    """Return a mask that is true where at least one operand is nonzero."""
    return clang.logical_or(input, other)


@torchsymbol(torch.logical_xor, tags=COMPARISON)
def logical_xor(input: Any, other: Any) -> Any:
    """Return a mask that is true where exactly one operand is nonzero."""
    return clang.logical_xor(input, other)


def _truth_samples(make: MakeTensor) -> Any:
    # Use integers, so that some elements are zero.
    for s in elementwise_binary(make, numbers=False, low=-2, high=2):
        a, b = s.args
        yield SampleInput(a, b) if a.is_complex() else SampleInput(a.round() if a.is_floating_point() else a, b)
    yield SampleInput(make((4, 4)), make((4, 4), dtype=bool8))


logical_not.samples(unary_samples(low=-2, high=2))
for _logical in (logical_and, logical_or, logical_xor):
    _logical.samples(_truth_samples)


@torchsymbol(torch.isnan, tags=COMPARISON)
def isnan(input: Any) -> Any:
    """Return a mask that is true where `input` is NaN."""
    return clang.isnan(input)


@torchsymbol(torch.isinf, tags=COMPARISON)
def isinf(input: Any) -> Any:
    """Return a mask that is true where `input` is infinite (for complex numbers: one of its parts)."""
    return clang.isinf(input)


@torchsymbol(torch.isfinite, tags=COMPARISON)
def isfinite(input: Any) -> Any:
    """Return a mask that is true where `input` is finite (not NaN and not infinite)."""
    return clang.isfinite(input)


def _is_infinity(name: str, input: Any, infinity: float) -> Any:
    check(not input.dtype.is_complex, lambda: f"{name} does not support complex inputs.")
    return clang.eq(input, infinity) if input.dtype.is_floating_point else clang.isinf(input)


@torchsymbol(torch.isposinf, tags=COMPARISON)
def isposinf(input: Any) -> Any:
    """Return a mask that is true where `input` is positive infinity."""
    return _is_infinity("isposinf", input, math.inf)


@torchsymbol(torch.isneginf, tags=COMPARISON)
def isneginf(input: Any) -> Any:
    """Return a mask that is true where `input` is negative infinity."""
    return _is_infinity("isneginf", input, -math.inf)


@torchsymbol(torch.isreal, tags=COMPARISON)
def isreal(input: Any) -> Any:
    """Return a mask that is true where the imaginary part of `input` is zero."""
    if input.dtype.is_complex:
        return clang.eq(clang.imag(input), 0)
    return clang.full_like(input, True, dtype=bool8)


def _special_value_samples(make: MakeTensor) -> Any:
    yield from unary_samples()(make)
    for value in (math.inf, -math.inf, math.nan):
        x = make((3, 4), low=1)
        if x.is_floating_point() or x.is_complex():
            yield SampleInput(x * value)


def _infinity_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2), dtype=complex64)), RuntimeError, "does not support complex inputs"


for _question in (isnan, isinf, isfinite, isposinf, isneginf, isreal):
    _question.samples(_special_value_samples)
for _question in (isposinf, isneginf):
    _question.errors(_infinity_errors)


@torchsymbol(torch.isclose, tags=COMPARISON)
def isclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """Return a mask that is true where |input - other| <= atol + rtol * |other|, or where both are equal."""
    check(input.dtype is other.dtype, lambda: f"{input.dtype} did not match {other.dtype}")
    check(rtol >= 0, lambda: f"rtol must be greater than or equal to zero, but got {rtol}")
    check(atol >= 0, lambda: f"atol must be greater than or equal to zero, but got {atol}")
    close = clang.eq(input, other)
    if equal_nan and (input.dtype.is_floating_point or input.dtype.is_complex):
        close = clang.logical_or(close, clang.logical_and(clang.isnan(input), clang.isnan(other)))
    if rtol == 0 and atol == 0:
        return close
    a, b = (input, to_inexact(other)) if isinstance(other, TensorProxy) else (input, other)
    allowed = clang.add(atol, clang.abs(clang.mul(rtol, b)))
    actual = clang.abs(clang.sub(a, b))
    return clang.logical_or(close, clang.logical_and(clang.isfinite(actual), clang.le(actual, allowed)))


@isclose.samples
def _(make: MakeTensor) -> Any:
    for s in elementwise_binary(make, numbers=False):
        yield s
        yield SampleInput(*s.args, rtol=0.5)
    a = make((4, 4))
    yield SampleInput(a, a.clone())
    yield SampleInput(a, a.clone(), 0.0, 0.0, True)
    if a.is_floating_point():
        yield SampleInput(a * math.nan, a * math.nan, equal_nan=True)
        yield SampleInput(a * math.inf, a * math.inf)


@isclose.errors
def _(make: MakeTensor) -> Any:
    a, b = make((2, 3), dtype=float32), make((2, 3), dtype=int64)
    yield SampleInput(a, b), RuntimeError, "did not match"
    yield SampleInput(a, a, rtol=-1), RuntimeError, "rtol must be greater than or equal to zero"
    yield SampleInput(a, a, atol=-1), RuntimeError, "atol must be greater than or equal to zero"
