# SPDX-License-Identifier: Apache-2.0
"""Comparisons and operations on bits and truth values in the core language."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from thunder.clang.base import clangop, elementwise_binary, elementwise_unary, maybe_convert_to_dtype
from thunder.core import prims
from thunder.core.dtypes import COMPLEX, INTEGER, bool8
from thunder.core.promotion import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from thunder.core.proxies import TensorProxy, number_value


def _compare(a: Any, b: Any, prim: Callable[..., Any], swapped: Callable[..., Any], number_fn: Any) -> Any:
    if isinstance(b, TensorProxy) and not isinstance(a, TensorProxy):
        # The number second, which is how torch takes it.
        a, b, prim = b, a, swapped
    return elementwise_binary(a, b, prim=prim, number_fn=number_fn, type_promotion_kind=KIND.ALWAYS_BOOL)


@clangop(method_name="eq")
def eq(a: Any, b: Any) -> Any:
    """Where `a` equals `b`."""
    return _compare(a, b, prims.eq, prims.eq, operator.eq)


@clangop(method_name="ne")
def ne(a: Any, b: Any) -> Any:
    """Where `a` differs from `b`."""
    return _compare(a, b, prims.ne, prims.ne, operator.ne)


@clangop(method_name="lt")
def lt(a: Any, b: Any) -> Any:
    """Where `a` is less than `b`."""
    return _compare(a, b, prims.lt, prims.gt, operator.lt)


@clangop(method_name="le")
def le(a: Any, b: Any) -> Any:
    """Where `a` is at most `b`."""
    return _compare(a, b, prims.le, prims.ge, operator.le)


@clangop(method_name="gt")
def gt(a: Any, b: Any) -> Any:
    """Where `a` is greater than `b`."""
    return _compare(a, b, prims.gt, prims.lt, operator.gt)


@clangop(method_name="ge")
def ge(a: Any, b: Any) -> Any:
    """Where `a` is at least `b`."""
    return _compare(a, b, prims.ge, prims.le, operator.ge)


@clangop(method_name="bitwise_not")
def bitwise_not(a: Any) -> Any:
    """Each bit turned over."""
    return elementwise_unary(a, prim=prims.bitwise_not, number_fn=operator.invert)


@clangop(method_name="bitwise_and")
def bitwise_and(a: Any, b: Any) -> Any:
    """The bits that both have."""
    return elementwise_binary(a, b, prim=prims.bitwise_and, number_fn=operator.and_)


@clangop(method_name="bitwise_or")
def bitwise_or(a: Any, b: Any) -> Any:
    """The bits that one of them has."""
    return elementwise_binary(a, b, prim=prims.bitwise_or, number_fn=operator.or_)


@clangop(method_name="bitwise_xor")
def bitwise_xor(a: Any, b: Any) -> Any:
    """The bits that just one of them has."""
    return elementwise_binary(a, b, prim=prims.bitwise_xor, number_fn=operator.xor)


@clangop(method_name="bitwise_left_shift")
def bitwise_left_shift(a: Any, b: Any) -> Any:
    """`a` moved to the left by `b` bits."""
    return elementwise_binary(a, b, prim=prims.bitwise_left_shift, number_fn=operator.lshift)


@clangop(method_name="bitwise_right_shift")
def bitwise_right_shift(a: Any, b: Any) -> Any:
    """`a` moved to the right by `b` bits."""
    return elementwise_binary(a, b, prim=prims.bitwise_right_shift, number_fn=operator.rshift)


def _truth(x: Any) -> Any:
    # Not a conversion: a number next to zero is true, though some conversions round it to false.
    if not isinstance(x, TensorProxy):
        return bool(number_value(x))
    return x if x.dtype is bool8 else prims.ne(x, maybe_convert_to_dtype(0, x.dtype))


@clangop()
def logical_not(a: Any) -> Any:
    """Where `a` is zero."""
    if isinstance(a, TensorProxy) and a.dtype is not bool8:
        return prims.eq(a, maybe_convert_to_dtype(0, a.dtype))
    return prims.bitwise_not(a) if isinstance(a, TensorProxy) else not number_value(a)


@clangop()
def logical_and(a: Any, b: Any) -> Any:
    """Where neither is zero."""
    return bitwise_and(_truth(a), _truth(b))


@clangop()
def logical_or(a: Any, b: Any) -> Any:
    """Where one of them is not zero."""
    return bitwise_or(_truth(a), _truth(b))


@clangop()
def logical_xor(a: Any, b: Any) -> Any:
    """Where just one of them is not zero."""
    return bitwise_xor(_truth(a), _truth(b))


def _everywhere(a: TensorProxy, value: bool) -> Any:
    return prims.full(a.shape, value, device=a.device, dtype=bool8)


def _is_exact(a: Any) -> bool:
    return isinstance(a, TensorProxy) and a.dtype.category <= INTEGER


def _is_complex(a: Any) -> bool:
    return isinstance(a, TensorProxy) and a.dtype.category == COMPLEX


@clangop()
def isnan(a: Any) -> Any:
    """Where `a` is not a number."""
    return _everywhere(a, False) if _is_exact(a) else ne(a, a)


@clangop()
def isinf(a: Any) -> Any:
    """Where `a` (or a part of it) is infinite."""
    if _is_exact(a):
        return _everywhere(a, False)
    if _is_complex(a):
        return bitwise_or(isinf(prims.real(a)), isinf(prims.imag(a)))
    return eq(_magnitude(a), float("inf"))


@clangop()
def isfinite(a: Any) -> Any:
    """Where `a` is neither infinite nor NaN."""
    if _is_exact(a):
        return _everywhere(a, True)
    if _is_complex(a):
        return bitwise_and(isfinite(prims.real(a)), isfinite(prims.imag(a)))
    return lt(_magnitude(a), float("inf"))


def _magnitude(a: Any) -> Any:
    return prims.abs(a) if isinstance(a, TensorProxy) else abs(number_value(a))
