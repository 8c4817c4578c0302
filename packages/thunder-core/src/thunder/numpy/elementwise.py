# SPDX-License-Identifier: Apache-2.0
"""Elementwise operations of the NumPy language, with its names and its type promotion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.dtypes import INTEGER, bool8, float64, int8
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_binary, elementwise_unary
from thunder.core.symbol import OpTags, Symbol
from thunder.numpy.base import npsymbol
from thunder.numpy.promotion import inexact_type, result_type

_TAGS = (OpTags.ELEMENTWISE_OP,)


def _binary(x1: Any, x2: Any, fn: Callable[..., Any], *, inexact: bool = False) -> Any:
    if not isinstance(x1, TensorProxy) and not isinstance(x2, TensorProxy):
        return fn(x1, x2)
    kind = result_type(x1, x2)
    if inexact and kind.category <= INTEGER:
        kind = float64
    return fn(clang.maybe_convert_to_dtype(x1, kind), clang.maybe_convert_to_dtype(x2, kind))


def _unary(x: Any, fn: Callable[..., Any]) -> Any:
    """A function of real numbers: integers become the floats that hold them."""
    return fn(clang.maybe_convert_to_dtype(x, inexact_type(x.dtype)) if isinstance(x, TensorProxy) else x)


# -- arithmetic -------------------------------------------------------------------------------------------------------
@npsymbol(method_name="add", tags=_TAGS)
def add(x1: Any, x2: Any) -> Any:
    """x1 + x2."""
    return _binary(x1, x2, clang.add)


@npsymbol(method_name="sub", tags=_TAGS)
def subtract(x1: Any, x2: Any) -> Any:
    """x1 - x2."""
    return _binary(x1, x2, clang.sub)


@npsymbol(method_name="mul", tags=_TAGS)
def multiply(x1: Any, x2: Any) -> Any:
    """x1 * x2."""
    return _binary(x1, x2, clang.mul)


@npsymbol(method_name="true_divide", tags=_TAGS)
def divide(x1: Any, x2: Any) -> Any:
    """x1 / x2, integers as float64."""
    return _binary(x1, x2, clang.true_divide, inexact=True)


@npsymbol(method_name="floor_divide", tags=_TAGS)
def floor_divide(x1: Any, x2: Any) -> Any:
    """x1 // x2."""
    return _binary(x1, x2, clang.floor_divide)


@npsymbol(method_name="remainder", tags=_TAGS)
def remainder(x1: Any, x2: Any) -> Any:
    """x1 % x2."""
    return _binary(x1, x2, clang.remainder)


@npsymbol(method_name="pow", tags=_TAGS)
def power(x1: Any, x2: Any) -> Any:
    """x1 ** x2."""
    return _binary(x1, x2, clang.pow)


@npsymbol(tags=_TAGS)
def maximum(x1: Any, x2: Any) -> Any:
    """The larger of x1 and x2, NaN where one of them is."""
    return _binary(x1, x2, clang.maximum)


@npsymbol(tags=_TAGS)
def minimum(x1: Any, x2: Any) -> Any:
    """The smaller of x1 and x2, NaN where one of them is."""
    return _binary(x1, x2, clang.minimum)


@npsymbol(method_name="neg", tags=_TAGS)
def negative(x: Any) -> Any:
    """-x."""
    return clang.neg(x)


@npsymbol(method_name="positive", tags=_TAGS)
def positive(x: Any) -> Any:
    """x itself."""
    return x


@npsymbol(method_name="abs", tags=_TAGS)
def absolute(x: Any) -> Any:
    """The absolute value of x; a truth value is its own."""
    return x if isinstance(x, TensorProxy) and x.dtype is bool8 else clang.abs(x)


# -- comparison -------------------------------------------------------------------------------------------------------
@npsymbol(method_name="eq", tags=_TAGS)
def equal(x1: Any, x2: Any) -> Any:
    """x1 == x2."""
    return _binary(x1, x2, clang.eq)


@npsymbol(method_name="ne", tags=_TAGS)
def not_equal(x1: Any, x2: Any) -> Any:
    """x1 != x2."""
    return _binary(x1, x2, clang.ne)


@npsymbol(method_name="lt", tags=_TAGS)
def less(x1: Any, x2: Any) -> Any:
    """x1 < x2."""
    return _binary(x1, x2, clang.lt)


@npsymbol(method_name="le", tags=_TAGS)
def less_equal(x1: Any, x2: Any) -> Any:
    """x1 <= x2."""
    return _binary(x1, x2, clang.le)


@npsymbol(method_name="gt", tags=_TAGS)
def greater(x1: Any, x2: Any) -> Any:
    """x1 > x2."""
    return _binary(x1, x2, clang.gt)


@npsymbol(method_name="ge", tags=_TAGS)
def greater_equal(x1: Any, x2: Any) -> Any:
    """x1 >= x2."""
    return _binary(x1, x2, clang.ge)


# -- truth values and bits --------------------------------------------------------------------------------------------
@npsymbol(method_name="bitwise_and", tags=_TAGS)
def bitwise_and(x1: Any, x2: Any) -> Any:
    """x1 & x2."""
    return _binary(x1, x2, clang.bitwise_and)


@npsymbol(method_name="bitwise_or", tags=_TAGS)
def bitwise_or(x1: Any, x2: Any) -> Any:
    """x1 | x2."""
    return _binary(x1, x2, clang.bitwise_or)


@npsymbol(method_name="bitwise_xor", tags=_TAGS)
def bitwise_xor(x1: Any, x2: Any) -> Any:
    """x1 ^ x2."""
    return _binary(x1, x2, clang.bitwise_xor)


@npsymbol(method_name="bitwise_not", tags=_TAGS)
def invert(x: Any) -> Any:
    """~x."""
    return clang.bitwise_not(x)


@npsymbol(tags=_TAGS)
def logical_not(x: Any) -> Any:
    """Where x is zero."""
    return clang.logical_not(x)


@npsymbol(tags=_TAGS)
def isnan(x: Any) -> Any:
    """Where x is not a number."""
    return clang.isnan(x)


@npsymbol(tags=_TAGS)
def isfinite(x: Any) -> Any:
    """Where x is neither infinite nor NaN."""
    return clang.isfinite(x)


# -- functions --------------------------------------------------------------------------------------------------------
@npsymbol(tags=_TAGS)
def exp(x: Any) -> Any:
    """e to the power of x."""
    return _unary(x, clang.exp)


@npsymbol(tags=_TAGS)
def expm1(x: Any) -> Any:
    """exp(x) - 1."""
    return _unary(x, clang.expm1)


@npsymbol(tags=_TAGS)
def log(x: Any) -> Any:
    """The natural logarithm of x."""
    return _unary(x, clang.log)


@npsymbol(tags=_TAGS)
def log1p(x: Any) -> Any:
    """log(1 + x)."""
    return _unary(x, clang.log1p)


@npsymbol(tags=_TAGS)
def sqrt(x: Any) -> Any:
    """The square root of x."""
    return _unary(x, clang.sqrt)


@npsymbol(tags=_TAGS)
def square(x: Any) -> Any:
    """x * x; of truth values as int8."""
    x = prims.convert_element_type(x, int8) if x.dtype is bool8 else x
    return clang.mul(x, x)


@npsymbol(tags=_TAGS)
def sin(x: Any) -> Any:
    """The sine of x."""
    return _unary(x, clang.sin)


@npsymbol(tags=_TAGS)
def cos(x: Any) -> Any:
    """The cosine of x."""
    return _unary(x, clang.cos)


@npsymbol(tags=_TAGS)
def tanh(x: Any) -> Any:
    """The hyperbolic tangent of x."""
    return _unary(x, clang.tanh)


# -- choice and conversion --------------------------------------------------------------------------------------------
@npsymbol(tags=_TAGS)
def where(condition: Any, x: Any, y: Any) -> Any:
    """x where `condition` is true, else y."""
    truth = clang.ne(condition, 0) if condition.dtype is not bool8 else condition
    kind = result_type(x, y)
    if not isinstance(x, TensorProxy) and not isinstance(y, TensorProxy):
        x = prims.full((), clang.maybe_convert_to_dtype(x, kind), device=condition.device, dtype=kind)
    return clang.where(truth, clang.maybe_convert_to_dtype(x, kind), clang.maybe_convert_to_dtype(y, kind))


@npsymbol(method_name="clip", tags=_TAGS)
def clip(a: Any, a_min: Any = None, a_max: Any = None) -> Any:
    """a, but not below `a_min` and not above `a_max`."""
    out = a if a_min is None else _binary(a, a_min, clang.maximum)
    return out if a_max is None else _binary(out, a_max, clang.minimum)


@npsymbol(method_name="astype", tags=_TAGS)
def astype(x: TensorProxy, dtype: Any) -> Any:
    """x with its elements converted to `dtype`."""
    return prims.convert_element_type(x, dtypes.to_dtype(dtype))


@npsymbol(method_name="real", is_property=True, tags=_TAGS)
def real(val: Any) -> Any:
    """The real part of val."""
    return clang.real(val)


def _samples_of(sym: Symbol, **domain: Any) -> None:
    def generate(make: MakeTensor) -> Any:
        yield from (elementwise_unary if sym.bind.required == 1 else elementwise_binary)(make, **domain)

    sym.samples(generate)


for _sym in (add, subtract, multiply, maximum, minimum, equal, not_equal, less, less_equal, greater, greater_equal):
    _samples_of(_sym, low=-2, high=2)
for _sym in (
    negative,
    positive,
    absolute,
    invert,
    logical_not,
    isnan,
    isfinite,
    square,
    exp,
    expm1,
    sin,
    cos,
    tanh,
    real,
):
    _samples_of(_sym)
for _sym in (divide, floor_divide, remainder):
    _samples_of(_sym, exclude_zero=True)
for _sym in (bitwise_and, bitwise_or, bitwise_xor):
    _samples_of(_sym)
for _sym in (log, log1p, sqrt):
    _samples_of(_sym, low=0.1)
_samples_of(power, low=0.5, high=3)


@where.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 4), dtype=bool8), make((4, 4)), make((4, 1)))
    yield SampleInput(make((4, 4), dtype=bool8), 1, make((4, 4)))
    yield SampleInput(make((4, 4), dtype=bool8), 1, 0)


@clip.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 4)), -1, 1)
    yield SampleInput(make((4, 4)), None, 1)
    yield SampleInput(make((4, 4)), make((4,)))


@astype.samples
def _(make: MakeTensor) -> Any:
    for dtype in (float64, bool8, dtypes.int32):
        yield SampleInput(make((3, 4), low=0), dtype)
