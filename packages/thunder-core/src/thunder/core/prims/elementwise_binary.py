# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of two operands. One may be a Python number whose category is not higher than the tensor's category."""

from __future__ import annotations

import cmath
import math
import operator
from functools import partial
from typing import Any

from thunder.core import dtypes
from thunder.core.dtypes import BOOL, COMPLEX, FLOAT, complex64, float64, int32, int64, is_inexact_dtype
from thunder.core.errors import check
from thunder.core.prims.autodiff import zero_vjp, zeros_of
from thunder.core.prims.elementwise_base import (
    COMPARISON,
    FLOATS,
    INTEGERS,
    KIND,
    NUMBERS,
    binary_samples,
    conjugated,
    differentiable,
    elementwise,
)
from thunder.core.prims.elementwise_conditional import where
from thunder.core.prims.elementwise_math import reciprocal, rsqrt, sqrt
from thunder.core.prims.metas import elementwise_meta
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_binary
from thunder.core.symint.numbers import is_unbacked

_binary = partial(elementwise, operands=2)
_arithmetic = partial(_binary, method=True, numbers=True)
_remainder = partial(_binary, categories=NUMBERS, domain={"low": 0.5}, numbers=True, refuses=complex64)
_pair = partial(_binary, categories=FLOATS, tensors_only=True)

add = _arithmetic(
    "add",
    "Return the sum of `{a}` and `{b}`; for bools, the logical or.",
    vjp=lambda g, out, a, b: (g, g),
    number_fn=operator.add,
    numpy="add",
    overridden_in=["torch"],
    facts={"commutative": True, "cost": "light"},
)


def _sub_meta(a: Any, b: Any, /) -> TensorProxy:
    out = elementwise_meta("sub", a, b)
    check(
        out.dtype.category != BOOL,
        lambda: (
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` "
            "operator instead."
        ),
    )
    return out


sub = _arithmetic(
    "sub",
    "Return `{a}` minus `{b}`.",
    meta=_sub_meta,
    vjp=lambda g, out, a, b: (g, -g if differentiable(b) else None),
    number_fn=operator.sub,
    numpy="subtract",
    overridden_in=["torch"],
    facts={"cost": "light"},
)
mul = _arithmetic(
    "mul",
    "Return `{a}` times `{b}`; for bools, the logical and.",
    number_fn=operator.mul,
    torch=("torch.mul", "torch.multiply"),
    numpy="multiply",
    samples=lambda make: [SampleInput(2, make((2, 3)))],
    facts={"commutative": True, "cost": "light"},
)


@mul.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return (conjugated(b) * g if differentiable(a) else None), (conjugated(a) * g if differentiable(b) else None)


def _div_meta(a: Any, b: Any, /) -> TensorProxy:
    out = elementwise_meta("div", a, b)
    if out.dtype.category == BOOL:
        raise NotImplementedError('"div" not implemented for bool: convert to numbers')
    return out


def quotient_samples(make: MakeTensor) -> Any:
    """Yield samples of division in the torch language: with a number on the left or right, and with negative values."""
    yield from elementwise_binary(make, exclude_zero=True)
    yield SampleInput(make((2, 3)), -3)
    yield SampleInput(7, make((2, 3), exclude_zero=True))


div = _arithmetic(
    "div",
    "Return `{a}` divided by `{b}`; the primitive rounds the quotient of integers towards zero.",
    meta=_div_meta,
    language_name="true_divide",
    promotion=KIND.INT_TO_FLOAT,
    number_fn=operator.truediv,
    numpy="divide",
    domain={"low": 0.5},
    samples=quotient_samples,
    facts={"cost": "light"},
)
div.torch_names = ()  # torch.true_divide returns floats for integers, and this primitive returns integers


@div.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return (g / conjugated(b) if differentiable(a) else None), (
        -g * conjugated((a / b) / b) if differentiable(b) else None
    )


floor_divide = _arithmetic(
    "floor_divide",
    "Return `{a}` divided by `{b}`, rounded down.",
    categories=NUMBERS,
    vjp=zero_vjp,
    number_fn=operator.floordiv,
    numpy="floor_divide",
    domain={"exclude_zero": True},
    overridden_in=["torch"],
)


def _fmod_samples(make: MakeTensor) -> Any:
    yield from elementwise_binary(make, exclude_zero=True)
    yield SampleInput(make((2, 3)), -3)


fmod = _remainder(
    "fmod",
    "Return the remainder of dividing `{a}` by `{b}`, with the sign of `{a}`.",
    vjp=lambda g, out, a, b: (g, -g * (a / b).trunc() if differentiable(b) else None),
    number_fn="fmod",
    tensors_only=True,
    samples=_fmod_samples,
)
remainder = _remainder(
    "remainder",
    "Return the remainder of dividing `{a}` by `{b}`, with the sign of `{b}`.",
    vjp=lambda g, out, a, b: (g, -g * (a // b) if differentiable(b) else None),
    number_fn=operator.mod,
    method=True,
    numpy="remainder",
    samples=quotient_samples,
)


def _pow_meta(a: Any, b: Any, /) -> TensorProxy:
    out = elementwise_meta("pow", a, b)
    if out.dtype.category == BOOL:
        raise NotImplementedError('"pow" not implemented for bool: convert to numbers')
    if not is_inexact_dtype(out.dtype) and isinstance(b, int):
        check(b >= 0, lambda: "Integers to negative integer powers are not allowed.")
    return out


def _pow(a: Any, b: Any) -> Any:
    # For some exponents another operation is cheaper, e.g. `a * a` for 2. torch's kernel does the same.
    if isinstance(b, TensorProxy) or a.dtype.category == COMPLEX or is_unbacked(b):
        return pow(a, b)
    if b == 2:
        return mul(a, a)
    if a.dtype.category == FLOAT and a.dtype not in dtypes.low_precision_dtypes:
        if b == 0.5:
            return sqrt(a)
        if b == -0.5:
            return rsqrt(a)
        if b == -1:
            return reciprocal(a)
        if b == 3:
            return mul(mul(a, a), a)
    return pow(a, b)


def _pow_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((3,), dtype=int64), -1), RuntimeError, "Integers to negative integer powers"


pow = _binary(
    "pow",
    "Return `{a}` to the power of `{b}`.",
    meta=_pow_meta,
    number_fn=operator.pow,
    lowering=_pow,
    method=True,
    numpy="power",
    domain={"low": 0.5, "high": 3},
    errors=_pow_errors,
    overridden_in=["torch"],
)


@pow.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    by_base = pow_by_base(g, a, b) if differentiable(a) else None
    return by_base, (pow_by_exponent(g, out, a, b) if differentiable(b) else None)


def pow_by_base(g: Any, a: Any, b: Any) -> Any:
    """Return the gradient of `a ** b` with respect to `a`. The operands may have other dtypes and shapes than `g`."""
    if is_unbacked(b):
        b = zeros_of(a) + b
    if not isinstance(b, TensorProxy):
        if b == 0:
            return zeros_of(a)
        return g * conjugated(b * a) if b == 2 else g * conjugated(b * a ** (b - 1))
    # For b == 0 the gradient is zero, but the formula's 0 * a ** -1 is NaN where a == 0.
    return g * conjugated(b * a ** (b - 1)).masked_fill(b == 0, 0)


def pow_by_exponent(g: Any, out: Any, a: Any, b: Any) -> Any:
    """Return the gradient of `out`, which is `a ** b`, with respect to `b`."""
    # For a == 0 and b >= 0 the gradient is zero: the power stays zero for a larger exponent.
    stays = b.real >= 0 if b.dtype.category == COMPLEX else b >= 0
    if not isinstance(a, TensorProxy):
        if a != 0:
            return g * conjugated(out * _log_of_number(a, b.dtype))
        return g * conjugated(out * float("-inf")).masked_fill(stays, 0)
    return g * conjugated(out * a.log()).masked_fill((a == 0) & stays, 0)


def _log_of_number(x: Any, dtype: dtypes.dtype) -> Any:
    """Return the logarithm of a Python number; NaN if the result must be real but is not."""
    if isinstance(x, complex) or dtype.category == COMPLEX:
        return cmath.log(x)
    return math.log(x) if x > 0 else math.nan


@pow.samples
def _(make: MakeTensor) -> Any:
    yield from binary_samples(low=0.5, high=3)(make)
    for exponent in (2, 0, 1, 3):
        yield SampleInput(make((3, 4)), exponent)
    yield SampleInput(2, make((3, 4), low=0, high=3))


atan2 = _pair(
    "atan2",
    "Return the angle between the x axis and the point ({b}, {a}).",
    promotion=KIND.INT_TO_FLOAT,
    number_fn="atan2",
    torch=("torch.atan2", "torch.arctan2"),
    facts={"autocast": {"cuda": "widest"}},
)


@atan2.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    square = a * a + b * b
    inverse = where(square == 0, 0.0, 1 / square)
    return (g * b * inverse if differentiable(a) else None), (g * -a * inverse if differentiable(b) else None)


hypot = _pair("hypot", "Return the square root of {a}**2 + {b}**2, without overflow.", number_fn="hypot", refuses=int32)


@hypot.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return (g * a / out if differentiable(a) else None), (g * b / out if differentiable(b) else None)


copysign = _pair(
    "copysign",
    "Return the absolute value of `{a}` with the sign of `{b}`.",
    promotion=KIND.INT_TO_FLOAT,
    number_fn="copysign",
    samples=lambda make: [SampleInput(make((2, 3)), 2), SampleInput(make((2, 3)), -2)],
)


@copysign.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    if not differentiable(a):
        return None, zeros_of(b)
    return g * where(a == 0, 0.0, out / a), (zeros_of(b) if differentiable(b) else None)


nextafter = _pair("nextafter", "Return the next floating point number after `{a}` towards `{b}`.", refuses=int32)


@nextafter.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return where(a == b, 0, g), (zeros_of(b) if differentiable(b) else None)


def extreme_samples(make: MakeTensor) -> Any:
    """Yield samples of maximum and minimum in the torch language, with equal elements and with NaN."""
    yield from elementwise_binary(make, numbers=False, low=-2, high=2)
    a, b = make((4, 4)), make((4, 4))
    if a.is_floating_point():
        yield SampleInput(a, b * math.nan)
        yield SampleInput(a * math.nan, b)
        yield SampleInput(a.round(), b.round())


def extreme_errors(make: MakeTensor) -> Any:
    """Yield the error for complex tensors, which have no order."""
    a = make((3,), dtype=complex64)
    yield SampleInput(a, a), RuntimeError, "not implemented for complex tensors"


def _extreme_meta(name: str) -> Any:
    def meta(a: Any, b: Any, /) -> TensorProxy:
        check(
            not any(isinstance(x, TensorProxy) and x.dtype.category == COMPLEX for x in (a, b)),
            lambda: f"{name} not implemented for complex tensors.",
        )
        return elementwise_meta(name, a, b)

    return meta


_extreme = partial(_binary, samples=extreme_samples, errors=extreme_errors)

maximum = _extreme(
    "maximum",
    "Return the larger of `{a}` and `{b}`, or NaN if an operand is NaN.",
    meta=_extreme_meta("maximum"),
    vjp=lambda g, out, a, b: _extremum_grads(g, a, b, lambda x, y: x > y),
    number_fn=max,
    numpy="maximum",
    facts={"commutative": True},
)
minimum = _extreme(
    "minimum",
    "Return the smaller of `{a}` and `{b}`, or NaN if an operand is NaN.",
    meta=_extreme_meta("minimum"),
    vjp=lambda g, out, a, b: _extremum_grads(g, a, b, lambda x, y: x < y),
    number_fn=min,
    numpy="minimum",
    facts={"commutative": True},
)


def _extremum_grads(g: Any, a: Any, b: Any, beats: Any) -> Any:
    # Equal elements get half of the gradient each. If an element is NaN, both operands get the whole gradient.
    shared = where(a == b, g / 2, g)
    return (where(beats(b, a), 0.0, shared) if differentiable(a) else None), (
        where(beats(a, b), 0.0, shared) if differentiable(b) else None
    )


gcd = _binary(
    "gcd",
    "Return the greatest common divisor of `{a}` and `{b}`.",
    categories=INTEGERS,
    tags=COMPARISON,
    number_fn="gcd",
    tensors_only=True,
    refuses=float64,
)
