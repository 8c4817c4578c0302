# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of two operands. Either may be a Python number whose type is not above the tensor's."""

from __future__ import annotations

import cmath
import math
from typing import Any

from thunder.core import dtypes
from thunder.core.dtypes import BOOL, COMPLEX, int64, is_inexact_dtype
from thunder.core.errors import check
from thunder.core.prims.autodiff import zero_vjp, zeros_of
from thunder.core.prims.base import prim
from thunder.core.prims.elementwise_base import (
    COMPARISON,
    ELEMENTWISE,
    binary_samples,
    conjugated,
    differentiable,
    float_meta,
    integer_meta,
    ordered_meta,
)
from thunder.core.prims.elementwise_conditional import where
from thunder.core.prims.metas import elementwise_meta
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symint.numbers import is_unbacked


@prim(torch="torch.add", tags=ELEMENTWISE)
def add(a: Any, b: Any, /) -> TensorProxy:
    """The sum of `a` and `b`; of truth values whether one of them is true."""
    return elementwise_meta("add", a, b)


@add.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return g, g


add.samples(binary_samples(numbers=True))


@prim(torch="torch.sub", tags=ELEMENTWISE)
def sub(a: Any, b: Any, /) -> TensorProxy:
    """`a` minus `b`."""
    out = elementwise_meta("sub", a, b)
    check(
        out.dtype.category != BOOL,
        lambda: (
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` "
            "operator instead."
        ),
    )
    return out


@sub.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return g, (-g if differentiable(b) else None)


sub.samples(binary_samples(numbers=True))


@prim(torch="torch.mul", tags=ELEMENTWISE)
def mul(a: Any, b: Any, /) -> TensorProxy:
    """`a` times `b`; of truth values whether both are true."""
    return elementwise_meta("mul", a, b)


@mul.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return (conjugated(b) * g if differentiable(a) else None), (conjugated(a) * g if differentiable(b) else None)


mul.samples(binary_samples(numbers=True))


@prim(tags=ELEMENTWISE)
def div(a: Any, b: Any, /) -> TensorProxy:
    """`a` divided by `b`; the quotient of integers is rounded towards zero."""
    out = elementwise_meta("div", a, b)
    if out.dtype.category == BOOL:
        raise NotImplementedError('"div" not implemented for bool: convert to numbers')
    return out


@div.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return (g / conjugated(b) if differentiable(a) else None), (
        -g * conjugated((a / b) / b) if differentiable(b) else None
    )


div.samples(binary_samples(low=0.5, numbers=True))


@prim(torch="torch.floor_divide", tags=ELEMENTWISE)
def floor_divide(a: Any, b: Any, /) -> TensorProxy:
    """`a` divided by `b`, rounded down."""
    return ordered_meta("floor_divide", a, b, bools=False)


floor_divide.vjp(zero_vjp)
floor_divide.samples(binary_samples(exclude_zero=True, numbers=True))


@prim(torch="torch.fmod", tags=ELEMENTWISE)
def fmod(a: Any, b: Any, /) -> TensorProxy:
    """What is left of `a` after dividing by `b`, with the sign of `a`."""
    return ordered_meta("fmod", a, b, bools=False)


@fmod.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return g, (-g * (a / b).trunc() if differentiable(b) else None)


fmod.samples(binary_samples(low=0.5, numbers=True))


@prim(torch="torch.remainder", tags=ELEMENTWISE)
def remainder(a: Any, b: Any, /) -> TensorProxy:
    """What is left of `a` after dividing by `b`, with the sign of `b`."""
    return ordered_meta("remainder", a, b, bools=False)


@remainder.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return g, (-g * (a // b) if differentiable(b) else None)


remainder.samples(binary_samples(low=0.5, numbers=True))


@prim(torch="torch.pow", tags=ELEMENTWISE)
def pow(a: Any, b: Any, /) -> TensorProxy:
    """`a` to the power of `b`."""
    out = elementwise_meta("pow", a, b)
    if out.dtype.category == BOOL:
        raise NotImplementedError('"pow" not implemented for bool: convert to numbers')
    if not is_inexact_dtype(out.dtype) and isinstance(b, int):
        check(b >= 0, lambda: "Integers to negative integer powers are not allowed.")
    return out


@pow.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    by_base = pow_by_base(g, a, b) if differentiable(a) else None
    return by_base, (pow_by_exponent(g, out, a, b) if differentiable(b) else None)


def pow_by_base(g: Any, a: Any, b: Any) -> Any:
    """The gradient of a ** b with respect to `a`; the operands may be of other types and shapes than the result."""
    if is_unbacked(b):
        b = zeros_of(a) + b
    if not isinstance(b, TensorProxy):
        if b == 0:
            return zeros_of(a)
        return g * conjugated(b * a) if b == 2 else g * conjugated(b * a ** (b - 1))
    # Not 0 * a**-1, which is NaN at a == 0.
    return g * conjugated(b * a ** (b - 1)).masked_fill(b == 0, 0)


def pow_by_exponent(g: Any, out: Any, a: Any, b: Any) -> Any:
    """The gradient of a ** b, which is `out`, with respect to `b`."""
    # A zero stays zero while the exponent moves above zero.
    stays = b.real >= 0 if b.dtype.category == COMPLEX else b >= 0
    if not isinstance(a, TensorProxy):
        if a != 0:
            return g * conjugated(out * _log_of_number(a, b.dtype))
        return g * conjugated(out * float("-inf")).masked_fill(stays, 0)
    return g * conjugated(out * a.log()).masked_fill((a == 0) & stays, 0)


def _log_of_number(x: Any, dtype: dtypes.dtype) -> Any:
    """The logarithm of a Python number, NaN where a real result has none."""
    if isinstance(x, complex) or dtype.category == COMPLEX:
        return cmath.log(x)
    return math.log(x) if x > 0 else math.nan


@pow.samples
def _(make: MakeTensor) -> Any:
    yield from binary_samples(low=0.5, high=3)(make)
    for exponent in (2, 0, 1, 3):
        yield SampleInput(make((3, 4)), exponent)
    yield SampleInput(2, make((3, 4), low=0, high=3))


@pow.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,), dtype=int64), -1), RuntimeError, "Integers to negative integer powers"


@prim(torch="torch.atan2", tags=ELEMENTWISE)
def atan2(a: Any, b: Any, /) -> TensorProxy:
    """The angle of the point (b, a)."""
    return float_meta("atan2", a, b)


@atan2.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    square = a * a + b * b
    scaled = g * where(square == 0, 0.0, 1 / square)
    return (scaled * b if differentiable(a) else None), (scaled * -a if differentiable(b) else None)


atan2.samples(binary_samples())


@prim(torch="torch.hypot", tags=ELEMENTWISE)
def hypot(a: Any, b: Any, /) -> TensorProxy:
    """The length of (a, b), without overflow on the way."""
    return float_meta("hypot", a, b)


@hypot.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return (g * (a / out) if differentiable(a) else None), (g * (b / out) if differentiable(b) else None)


hypot.samples(binary_samples())


@prim(torch="torch.copysign", tags=ELEMENTWISE)
def copysign(a: Any, b: Any, /) -> TensorProxy:
    """The absolute value of `a` with the sign of `b`."""
    return float_meta("copysign", a, b)


@copysign.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    if not differentiable(a):
        return None, zeros_of(b)
    return g * where(a == 0, 0.0, out / a), (zeros_of(b) if differentiable(b) else None)


copysign.samples(binary_samples())


@prim(torch="torch.nextafter", tags=ELEMENTWISE)
def nextafter(a: Any, b: Any, /) -> TensorProxy:
    """The number next to `a` in the direction of `b`."""
    return float_meta("nextafter", a, b)


@nextafter.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return where(a == b, 0, g), (zeros_of(b) if differentiable(b) else None)


nextafter.samples(binary_samples())


@prim(torch="torch.maximum", tags=ELEMENTWISE)
def maximum(a: Any, b: Any, /) -> TensorProxy:
    """The larger of `a` and `b`, NaN where one of them is."""
    _no_complex("maximum", a, b)
    return elementwise_meta("maximum", a, b)


@maximum.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return _extremum_grads(g, a, b, lambda x, y: x > y)


maximum.samples(binary_samples())


@prim(torch="torch.minimum", tags=ELEMENTWISE)
def minimum(a: Any, b: Any, /) -> TensorProxy:
    """The smaller of `a` and `b`, NaN where one of them is."""
    _no_complex("minimum", a, b)
    return elementwise_meta("minimum", a, b)


@minimum.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return _extremum_grads(g, a, b, lambda x, y: x < y)


minimum.samples(binary_samples())


def _no_complex(name: str, *args: Any) -> None:
    check(
        not any(isinstance(a, TensorProxy) and a.dtype.category == COMPLEX for a in args),
        lambda: f"{name} not implemented for complex tensors.",
    )


def _extremum_grads(g: Any, a: Any, b: Any, beats: Any) -> Any:
    # Equal elements share; where one is NaN neither loses.
    shared = where(a == b, g / 2, g)
    return (where(beats(b, a), 0.0, shared) if differentiable(a) else None), (
        where(beats(a, b), 0.0, shared) if differentiable(b) else None
    )


@maximum.errors
def _(make: MakeTensor) -> Any:
    a = make((3,), dtype=dtypes.complex64)
    yield SampleInput(a, a), RuntimeError, "maximum not implemented for complex tensors"


@minimum.errors
def _(make: MakeTensor) -> Any:
    a = make((3,), dtype=dtypes.complex64)
    yield SampleInput(a, a), RuntimeError, "minimum not implemented for complex tensors"


@prim(torch="torch.gcd", tags=COMPARISON)
def gcd(a: Any, b: Any, /) -> TensorProxy:
    """The greatest common divisor of `a` and `b`."""
    return integer_meta("gcd", a, b, bools=False)


gcd.samples(binary_samples())
