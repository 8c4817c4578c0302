# SPDX-License-Identifier: Apache-2.0
"""NumPy's type promotion since NumPy 2: it depends only on dtypes, not on the number of dimensions.

A Python number is weak. It is converted to the array's dtype if the category of that dtype is the same or higher.
Otherwise, it has the default dtype of its category (int64, float64, complex128). An integer and a float promote to a
float that can represent both, e.g. int32 and float32 to float64. (In torch, these promote to float32.)
"""

from __future__ import annotations

from typing import Any

from thunder.core import dtypes
from thunder.core.dtypes import BOOL, COMPLEX, FLOAT, INTEGER
from thunder.core.promotion import promote
from thunder.core.proxies import NumberProxy, TensorProxy, number_type

__all__ = ["inexact_type", "promote_types", "result_type"]

_DEFAULTS = {BOOL: dtypes.bool8, INTEGER: dtypes.int64, FLOAT: dtypes.float64, COMPLEX: dtypes.complex128}
# The float dtype for integers, by the size of the integer in bytes.
_FLOAT_OF_BYTES = {1: dtypes.float16, 2: dtypes.float32, 4: dtypes.float64, 8: dtypes.float64}


def inexact_type(d: dtypes.dtype) -> dtypes.dtype:
    """Return the floating point dtype in which functions of real numbers (exp, mean …) compute inputs of dtype `d`."""
    if d.category >= FLOAT:
        return d
    return dtypes.float16 if d is dtypes.bool8 else _FLOAT_OF_BYTES[d.bytes]


def _integers(a: dtypes.dtype, b: dtypes.dtype) -> dtypes.dtype:
    wide = a if a.bytes >= b.bytes else b
    if a.is_signed == b.is_signed:
        return wide
    unsigned, signed = (b, a) if a.is_signed else (a, b)
    if signed.bytes > unsigned.bytes:
        return signed
    # The next larger signed dtype. No integer dtype is larger than uint64, so the result is float64.
    return {1: dtypes.int16, 2: dtypes.int32, 4: dtypes.int64, 8: dtypes.float64}[unsigned.bytes]


def promote_types(a: dtypes.dtype, b: dtypes.dtype) -> dtypes.dtype:
    """Return the smallest dtype that can represent both dtypes, like `numpy.promote_types`."""
    if a is b:
        return a
    low, high = (a, b) if a.category <= b.category else (b, a)
    if high.category == low.category:
        return _integers(a, b) if high.category == INTEGER else promote(a, b)
    if low.category == BOOL:
        return high
    if high.category == FLOAT:
        return promote(high, inexact_type(low))
    part = promote(dtypes.corresponding_real_dtype(high), inexact_type(low))
    return dtypes.complex128 if part is dtypes.float64 else dtypes.complex64


def result_type(*operands: Any) -> dtypes.dtype:
    """Return the promoted type of arrays and Python numbers, like `numpy.result_type`."""
    found: dtypes.dtype | None = None
    weakest = BOOL
    for x in operands:
        if isinstance(x, TensorProxy):
            found = x.dtype if found is None else promote_types(found, x.dtype)
        elif isinstance(x, (bool, int, float, complex, NumberProxy)):
            weakest = max(weakest, dtypes.category(number_type(x)))
        else:
            raise TypeError(f"expected arrays and numbers, but got {type(x).__name__}: {x!r}")
    if found is None or weakest <= found.category:
        return found or _DEFAULTS[weakest]
    if weakest == COMPLEX and found.category == FLOAT:
        return dtypes.complex128 if found is dtypes.float64 else dtypes.complex64
    return _DEFAULTS[weakest]
