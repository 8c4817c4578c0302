# SPDX-License-Identifier: Apache-2.0
"""Type promotion by the same rules as in torch.

Operands have three ranks, from high to low: tensors with dimensions, 0-d tensors, and Python numbers. The result type
is the promoted type of the operands of the highest rank. Operands of a lower rank count only if their category (bool <
integer < float < complex) is higher: for an int32 tensor `a`, `a + 2.0` is float32, but `a + 2` is int32.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache
from typing import Any

from thunder.core import dtypes
from thunder.core.dtypes import BOOL, COMPLEX, FLOAT, INTEGER, dtype
from thunder.core.proxies import NumberProxy, TensorProxy, number_type

__all__ = ["ELEMENTWISE_TYPE_PROMOTION_KIND", "default_dtype", "elementwise_type_promotion", "promote", "result_type"]


class ELEMENTWISE_TYPE_PROMOTION_KIND(Enum):
    """The rule by which the result type of an elementwise operation follows from the common type of its operands."""

    DEFAULT = auto()  # computes in the common type and returns a result of that type
    PRESERVE = auto()  # uses no common type: the result has the type of the first operand
    INT_TO_FLOAT = auto()  # integers and bools become the default float type
    ALWAYS_BOOL = auto()  # computes in the common type; the result is bool
    COMPLEX_TO_FLOAT = auto()  # computes in the common type; if that is complex, the result is real
    BOOL_TO_LONG = auto()  # bools become int64
    NUMERIC_TO_INT = auto()  # integers and bools become int64


def default_dtype() -> dtype:
    """Return torch's default float type."""
    import torch

    default: dtype = dtypes.to_dtype(torch.get_default_dtype())
    return default


@lru_cache(maxsize=1024)
def promote(a: dtype, b: dtype) -> dtype:
    """Return the promoted type of two operands of one rank, like `torch.promote_types`."""
    if a is b:
        return a
    import torch

    promoted: dtype = dtypes.to_dtype(torch.promote_types(dtypes.to_torch_dtype(a), dtypes.to_torch_dtype(b)))
    return promoted


def _of_number(kind: type) -> dtype:
    # Tested with issubclass: enumerations and NumPy's float64 count as their base class. bool, a subclass of int, is
    # tested first.
    if issubclass(kind, bool):
        return dtypes.bool8
    if issubclass(kind, int):
        return dtypes.int64
    default = default_dtype()
    if issubclass(kind, float):
        return default
    return dtypes.complex64 if default is dtypes.bfloat16 else dtypes.corresponding_complex_dtype(default)


def _lift(result: dtype | None, other: dtype | None) -> dtype | None:
    """Promote `result` with `other`, the type of a lower rank, if the category of `other` is higher."""
    if result is None or other is None:
        return result or other
    if other.category <= result.category:
        return result
    if other.category == COMPLEX and result.category == FLOAT:
        # The result becomes complex but keeps the precision of the higher rank.
        return dtypes.corresponding_complex_dtype(result)
    return other if other.category == COMPLEX else promote(result, other)


def result_type(*operands: Any) -> dtype:
    """Return the promoted type of tensors and numbers, like `torch.result_type`; skip operands that are None."""
    ranks: list[dtype | None] = [None, None, None]  # with dimensions, 0-d, numbers
    for x in operands:
        if isinstance(x, TensorProxy):
            rank, found = (0 if x.ndim else 1), x.dtype
        elif isinstance(x, (bool, int, float, complex, NumberProxy)):
            rank, found = 2, _of_number(number_type(x))
        elif x is None:
            continue
        else:
            raise TypeError(f"expected tensors and numbers, but got {type(x).__name__}: {x!r}")
        known = ranks[rank]
        ranks[rank] = found if known is None else promote(known, found)
    result = _lift(ranks[0], _lift(ranks[1], ranks[2]))
    if result is None:
        raise TypeError("type promotion needs at least one tensor or number, but all operands are None")
    return result


def _is_type_of_first(operands: tuple[Any, ...]) -> bool:
    """Check for the common case: all tensors have the first tensor's type, and no number has a higher category."""
    first = operands[0]
    if type(first) is not TensorProxy:
        return False
    kind = first.dtype
    for x in operands:
        if type(x) is TensorProxy:
            if x.dtype is not kind:
                return False
        elif x.__class__ not in dtypes.number_types or dtypes.category(x.__class__) > kind.category:
            return False
    return True


def elementwise_type_promotion(
    *operands: Any,
    type_promotion_kind: ELEMENTWISE_TYPE_PROMOTION_KIND = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT,
) -> tuple[dtype, dtype]:
    """Return the computation type of an elementwise operation and the type of its result."""
    first = operands[0]
    common = first.dtype if _is_type_of_first(operands) else result_type(*operands)
    kinds = ELEMENTWISE_TYPE_PROMOTION_KIND
    kind = type_promotion_kind
    if kind is kinds.ALWAYS_BOOL:
        return common, dtypes.bool8
    if kind is kinds.PRESERVE and isinstance(first, TensorProxy):
        return first.dtype, first.dtype
    if kind is kinds.INT_TO_FLOAT and common.category <= INTEGER:
        common = default_dtype()
    elif kind is kinds.COMPLEX_TO_FLOAT:
        return common, dtypes.corresponding_real_dtype(common)
    elif (kind is kinds.BOOL_TO_LONG and common.category == BOOL) or (
        kind is kinds.NUMERIC_TO_INT and common.category <= INTEGER
    ):
        common = dtypes.int64
    return common, common
