# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of two operands in the core language: broadcasting and promotion over the primitives."""

from __future__ import annotations

import math
import operator
from typing import Any

from thunder.clang.base import clangop, elementwise_binary, maybe_broadcast, maybe_convert_to_dtype
from thunder.core import prims
from thunder.core.dtypes import COMPLEX, FLOAT, float32, low_precision_dtypes
from thunder.core.promotion import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from thunder.core.promotion import elementwise_type_promotion
from thunder.core.proxies import TensorProxy, number_value
from thunder.core.symint.numbers import is_unbacked


@clangop(method_name="add")
def add(a: Any, b: Any) -> Any:
    """The sum of `a` and `b`."""
    return elementwise_binary(a, b, prim=prims.add, number_fn=operator.add)


@clangop(method_name="sub")
def sub(a: Any, b: Any) -> Any:
    """`a` minus `b`."""
    return elementwise_binary(a, b, prim=prims.sub, number_fn=operator.sub)


@clangop(method_name="mul")
def mul(a: Any, b: Any) -> Any:
    """`a` times `b`."""
    return elementwise_binary(a, b, prim=prims.mul, number_fn=operator.mul)


@clangop(method_name="true_divide")
def true_divide(a: Any, b: Any) -> Any:
    """`a` divided by `b`; integers divide as floating point numbers."""
    return elementwise_binary(a, b, prim=prims.div, number_fn=operator.truediv, type_promotion_kind=KIND.INT_TO_FLOAT)


def _trunc_divide_numbers(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return float(math.trunc(a / b))
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


@clangop()
def trunc_divide(a: Any, b: Any) -> Any:
    """`a` divided by `b`, rounded towards zero."""
    return elementwise_binary(a, b, prim=_trunc_divide, number_fn=_trunc_divide_numbers)


def _trunc_divide(a: Any, b: Any) -> Any:
    kind = (a if isinstance(a, TensorProxy) else b).dtype
    if kind in low_precision_dtypes:
        # torch's kernels compute 16-bit numbers in 32 bits and round the result once.
        a, b = maybe_convert_to_dtype(a, float32), maybe_convert_to_dtype(b, float32)
    quotient = prims.div(a, b)
    return maybe_convert_to_dtype(prims.trunc(quotient), kind) if kind.category == FLOAT else quotient


@clangop(method_name="floor_divide")
def floor_divide(a: Any, b: Any) -> Any:
    """`a` divided by `b`, rounded down."""
    return elementwise_binary(a, b, prim=prims.floor_divide, number_fn=operator.floordiv)


@clangop()
def fmod(a: Any, b: Any) -> Any:
    """What is left of `a` after dividing by `b`, with the sign of `a`."""
    return elementwise_binary(a, b, prim=prims.fmod, number_fn=math.fmod)


@clangop(method_name="remainder")
def remainder(a: Any, b: Any) -> Any:
    """What is left of `a` after dividing by `b`, with the sign of `b`."""
    return elementwise_binary(a, b, prim=prims.remainder, number_fn=operator.mod)


@clangop(method_name="pow")
def pow(a: Any, b: Any) -> Any:
    """`a` to the power of `b`."""
    return elementwise_binary(a, b, prim=_pow, number_fn=operator.pow)


def _pow(a: Any, b: Any) -> Any:
    # Exponents that are cheaper as something else, which is also what torch's kernel does for them.
    if isinstance(b, TensorProxy) or a.dtype.category == COMPLEX or is_unbacked(b):
        return prims.pow(a, b)
    if b == 2:
        return prims.mul(a, a)
    if a.dtype.category == FLOAT and a.dtype not in low_precision_dtypes:
        if b == 0.5:
            return prims.sqrt(a)
        if b == -0.5:
            return prims.rsqrt(a)
        if b == -1:
            return prims.reciprocal(a)
        if b == 3:
            return prims.mul(prims.mul(a, a), a)
    return prims.pow(a, b)


@clangop()
def atan2(a: Any, b: Any) -> Any:
    """The angle of the point (b, a)."""
    return elementwise_binary(a, b, prim=prims.atan2, number_fn=math.atan2, type_promotion_kind=KIND.INT_TO_FLOAT)


@clangop()
def hypot(a: Any, b: Any) -> Any:
    """The length of (a, b)."""
    return elementwise_binary(a, b, prim=prims.hypot, number_fn=math.hypot)


@clangop()
def copysign(a: Any, b: Any) -> Any:
    """The absolute value of `a` with the sign of `b`."""
    return elementwise_binary(a, b, prim=prims.copysign, number_fn=math.copysign, type_promotion_kind=KIND.INT_TO_FLOAT)


@clangop()
def nextafter(a: Any, b: Any) -> Any:
    """The number next to `a` in the direction of `b`."""
    return elementwise_binary(a, b, prim=prims.nextafter)


@clangop()
def maximum(a: Any, b: Any) -> Any:
    """The larger of `a` and `b`, NaN where one of them is."""
    return elementwise_binary(a, b, prim=prims.maximum, number_fn=max)


@clangop()
def minimum(a: Any, b: Any) -> Any:
    """The smaller of `a` and `b`, NaN where one of them is."""
    return elementwise_binary(a, b, prim=prims.minimum, number_fn=min)


@clangop()
def gcd(a: Any, b: Any) -> Any:
    """The greatest common divisor of `a` and `b`."""
    return elementwise_binary(a, b, prim=prims.gcd, number_fn=math.gcd)


@clangop()
def where(pred: Any, a: Any, b: Any) -> Any:
    """`a` where `pred` is true, else `b`; of two numbers a tensor too."""
    if not isinstance(pred, TensorProxy):
        return a if number_value(pred) else b
    dtype, _ = elementwise_type_promotion(a, b)
    if not isinstance(a, TensorProxy) and not isinstance(b, TensorProxy):
        a = prims.full(pred.shape, maybe_convert_to_dtype(a, dtype), device=pred.device, dtype=dtype)
    pred, a, b = maybe_broadcast(pred, a, b)
    return prims.where(pred, maybe_convert_to_dtype(a, dtype), maybe_convert_to_dtype(b, dtype))
