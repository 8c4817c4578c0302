# SPDX-License-Identifier: Apache-2.0
"""Elementwise operations of the core language that do more than promote, broadcast and call a primitive.

All others are generated from the primitives' declarations (`thunder.core.prims.elementwise_base`).
"""

from __future__ import annotations

import cmath
import math
from typing import Any

from thunder.clang.base import (
    clangop,
    elementwise_binary,
    elementwise_functions,
    elementwise_unary,
    maybe_broadcast,
    maybe_convert_to_dtype,
)
from thunder.core import prims
from thunder.core.dtypes import COMPLEX, FLOAT, INTEGER, bool8, float32, low_precision_dtypes
from thunder.core.promotion import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from thunder.core.promotion import default_dtype, elementwise_type_promotion
from thunder.core.proxies import TensorProxy, number_value

__all__ = [
    "angle", "isfinite", "isinf", "isnan", "logical_and", "logical_not", "logical_or", "logical_xor",
    "trunc_divide", "where",
]  # fmt: skip


def _trunc_divide_numbers(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return float(math.trunc(a / b))
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


@clangop()
def trunc_divide(a: Any, b: Any) -> Any:
    """Return `a` divided by `b`, rounded towards zero."""
    return elementwise_binary(a, b, prim=_trunc_divide, number_fn=_trunc_divide_numbers)


def _trunc_divide(a: Any, b: Any) -> Any:
    kind = (a if isinstance(a, TensorProxy) else b).dtype
    if kind in low_precision_dtypes:
        # torch's kernels compute 16-bit floats in float32 and round the result once.
        a, b = maybe_convert_to_dtype(a, float32), maybe_convert_to_dtype(b, float32)
    quotient = prims.div(a, b)
    return maybe_convert_to_dtype(prims.trunc(quotient), kind) if kind.category == FLOAT else quotient


@clangop()
def where(pred: Any, a: Any, b: Any) -> Any:
    """Return `a` where `pred` is true, and `b` elsewhere; the result is a tensor even if both are numbers."""
    if not isinstance(pred, TensorProxy):
        return a if number_value(pred) else b
    dtype, _ = elementwise_type_promotion(a, b)
    if not isinstance(a, TensorProxy) and not isinstance(b, TensorProxy):
        a = prims.full(pred.shape, maybe_convert_to_dtype(a, dtype), device=pred.device, dtype=dtype)
    pred, a, b = maybe_broadcast(pred, a, b)
    return prims.where(pred, maybe_convert_to_dtype(a, dtype), maybe_convert_to_dtype(b, dtype))


@clangop()
def angle(a: Any) -> Any:
    """Return the angle of each element in the complex plane."""
    if isinstance(a, TensorProxy) and a.dtype.category <= INTEGER:
        a = prims.convert_element_type(a, default_dtype())
    return elementwise_unary(a, prim=prims.angle, number_fn=cmath.phase, type_promotion_kind=KIND.COMPLEX_TO_FLOAT)


# -- logical operations ------------------------------------------------------------------------------------------------
def _truth(x: Any) -> Any:
    # Compare with zero instead of converting to bool: some conversions round a tiny nonzero number to false.
    if not isinstance(x, TensorProxy):
        return bool(number_value(x))
    return x if x.dtype is bool8 else prims.ne(x, maybe_convert_to_dtype(0, x.dtype))


@clangop()
def logical_not(a: Any) -> Any:
    """Check whether each element is zero."""
    if isinstance(a, TensorProxy) and a.dtype is not bool8:
        return prims.eq(a, maybe_convert_to_dtype(0, a.dtype))
    return prims.bitwise_not(a) if isinstance(a, TensorProxy) else not number_value(a)


@clangop()
def logical_and(a: Any, b: Any) -> Any:
    """Check elementwise whether both operands are nonzero."""
    return elementwise_functions["bitwise_and"](_truth(a), _truth(b))


@clangop()
def logical_or(a: Any, b: Any) -> Any:
    """Check elementwise whether at least one operand is nonzero."""
    return elementwise_functions["bitwise_or"](_truth(a), _truth(b))


@clangop()
def logical_xor(a: Any, b: Any) -> Any:
    """Check elementwise whether exactly one operand is nonzero."""
    return elementwise_functions["bitwise_xor"](_truth(a), _truth(b))


def _everywhere(a: TensorProxy, value: bool) -> Any:
    return prims.full(a.shape, value, device=a.device, dtype=bool8)


def _is_exact(a: Any) -> bool:
    return isinstance(a, TensorProxy) and a.dtype.category <= INTEGER


def _is_complex(a: Any) -> bool:
    return isinstance(a, TensorProxy) and a.dtype.category == COMPLEX


@clangop()
def isnan(a: Any) -> Any:
    """Check whether each element is NaN."""
    return _everywhere(a, False) if _is_exact(a) else elementwise_functions["ne"](a, a)


@clangop()
def isinf(a: Any) -> Any:
    """Check whether each element (or its real or imaginary part) is infinite."""
    return _compared_with_infinity(a, "eq", "bitwise_or")


@clangop()
def isfinite(a: Any) -> Any:
    """Check whether each element is finite: not infinite and not NaN."""
    return _compared_with_infinity(a, "lt", "bitwise_and")


def _compared_with_infinity(a: Any, comparison: str, of_parts: str) -> Any:
    if _is_exact(a):
        return _everywhere(a, comparison == "lt")
    if _is_complex(a):
        parts = (_compared_with_infinity(part(a), comparison, of_parts) for part in (prims.real, prims.imag))
        return elementwise_functions[of_parts](*parts)
    return elementwise_functions[comparison](_magnitude(a), float("inf"))


def _magnitude(a: Any) -> Any:
    return prims.abs(a) if isinstance(a, TensorProxy) else abs(number_value(a))
