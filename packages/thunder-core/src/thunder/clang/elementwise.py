# SPDX-License-Identifier: Apache-2.0
"""Elementwise operations of the core language: broadcasting and promotion over the primitives."""

from __future__ import annotations

import operator
from typing import Any

from thunder.clang.base import clangop, elementwise_binary, elementwise_unary, maybe_broadcast, maybe_convert_to_dtype
from thunder.core import prims
from thunder.core.promotion import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from thunder.core.promotion import elementwise_type_promotion


@clangop(method_name="neg")
def neg(a: Any) -> Any:
    """Minus each element."""
    return elementwise_unary(a, prim=prims.neg, number_fn=operator.neg)


@clangop()
def exp(a: Any) -> Any:
    """e to the power of each element."""
    return elementwise_unary(a, prim=prims.exp, type_promotion_kind=KIND.INT_TO_FLOAT)


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


@clangop(method_name="eq")
def eq(a: Any, b: Any) -> Any:
    """Where `a` equals `b`."""
    return elementwise_binary(a, b, prim=prims.eq, number_fn=operator.eq, type_promotion_kind=KIND.ALWAYS_BOOL)


@clangop()
def where(pred: Any, a: Any, b: Any) -> Any:
    """`a` where `pred` is true, else `b`."""
    dtype, _ = elementwise_type_promotion(a, b)
    pred, a, b = maybe_broadcast(pred, a, b)
    return prims.where(pred, maybe_convert_to_dtype(a, dtype), maybe_convert_to_dtype(b, dtype))
