# SPDX-License-Identifier: Apache-2.0
"""Functions of one operand in the core language: integers become floats where the function wants them."""

from __future__ import annotations

import cmath
import math
import operator
from collections.abc import Callable
from typing import Any

from thunder.clang.base import clangop, elementwise_unary
from thunder.core import prims
from thunder.core.dtypes import BOOL, INTEGER
from thunder.core.promotion import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from thunder.core.promotion import default_dtype
from thunder.core.proxies import TensorProxy


def _inexact(a: Any, prim: Callable[..., Any], number_fn: Callable[[Any], Any] | None = None) -> Any:
    return elementwise_unary(a, prim=prim, number_fn=number_fn, type_promotion_kind=KIND.INT_TO_FLOAT)


def _number(name: str) -> Callable[[Any], Any]:
    """Python's function of that name, of a real or a complex number."""
    real, of_complex = getattr(math, name), getattr(cmath, name, None)

    def apply(x: Any) -> Any:
        return of_complex(x) if isinstance(x, complex) and of_complex is not None else real(x)

    return apply


@clangop()
def exp(a: Any) -> Any:
    """e to the power of each element."""
    return _inexact(a, prims.exp, _number("exp"))


@clangop()
def exp2(a: Any) -> Any:
    """2 to the power of each element."""
    return _inexact(a, prims.exp2, lambda x: 2.0**x)


@clangop()
def expm1(a: Any) -> Any:
    """exp(a) - 1, exact for small elements too."""
    return _inexact(a, prims.expm1, _number("expm1"))


@clangop()
def log(a: Any) -> Any:
    """The natural logarithm of each element."""
    return _inexact(a, prims.log, _number("log"))


@clangop()
def log1p(a: Any) -> Any:
    """log(1 + a), exact for small elements too."""
    return _inexact(a, prims.log1p, _number("log1p"))


@clangop()
def log2(a: Any) -> Any:
    """The logarithm of each element to base 2."""
    return _inexact(a, prims.log2, _number("log2"))


@clangop()
def log10(a: Any) -> Any:
    """The logarithm of each element to base 10."""
    return _inexact(a, prims.log10, _number("log10"))


@clangop()
def sqrt(a: Any) -> Any:
    """The square root of each element."""
    return _inexact(a, prims.sqrt, _number("sqrt"))


@clangop()
def rsqrt(a: Any) -> Any:
    """One over the square root of each element."""
    return _inexact(a, prims.rsqrt, lambda x: 1 / _number("sqrt")(x))


@clangop()
def reciprocal(a: Any) -> Any:
    """One over each element."""
    return _inexact(a, prims.reciprocal, lambda x: 1 / x)


@clangop()
def sin(a: Any) -> Any:
    """The sine of each element."""
    return _inexact(a, prims.sin, _number("sin"))


@clangop()
def cos(a: Any) -> Any:
    """The cosine of each element."""
    return _inexact(a, prims.cos, _number("cos"))


@clangop()
def tan(a: Any) -> Any:
    """The tangent of each element."""
    return _inexact(a, prims.tan, _number("tan"))


@clangop()
def asin(a: Any) -> Any:
    """The angle whose sine each element is."""
    return _inexact(a, prims.asin, _number("asin"))


@clangop()
def acos(a: Any) -> Any:
    """The angle whose cosine each element is."""
    return _inexact(a, prims.acos, _number("acos"))


@clangop()
def atan(a: Any) -> Any:
    """The angle whose tangent each element is."""
    return _inexact(a, prims.atan, _number("atan"))


@clangop()
def sinh(a: Any) -> Any:
    """The hyperbolic sine of each element."""
    return _inexact(a, prims.sinh, _number("sinh"))


@clangop()
def cosh(a: Any) -> Any:
    """The hyperbolic cosine of each element."""
    return _inexact(a, prims.cosh, _number("cosh"))


@clangop()
def tanh(a: Any) -> Any:
    """The hyperbolic tangent of each element."""
    return _inexact(a, prims.tanh, _number("tanh"))


@clangop()
def asinh(a: Any) -> Any:
    """The number whose hyperbolic sine each element is."""
    return _inexact(a, prims.asinh, _number("asinh"))


@clangop()
def acosh(a: Any) -> Any:
    """The number whose hyperbolic cosine each element is."""
    return _inexact(a, prims.acosh, _number("acosh"))


@clangop()
def atanh(a: Any) -> Any:
    """The number whose hyperbolic tangent each element is."""
    return _inexact(a, prims.atanh, _number("atanh"))


@clangop()
def erf(a: Any) -> Any:
    """The error function of each element."""
    return _inexact(a, prims.erf, _number("erf"))


@clangop()
def erfc(a: Any) -> Any:
    """1 - erf(a)."""
    return _inexact(a, prims.erfc, _number("erfc"))


@clangop()
def erfcx(a: Any) -> Any:
    """exp(a * a) * erfc(a)."""
    return _inexact(a, prims.erfcx)


@clangop()
def erfinv(a: Any) -> Any:
    """The number whose error function each element is."""
    return _inexact(a, prims.erfinv)


@clangop()
def ndtri(a: Any) -> Any:
    """The number below which the normal distribution has each element's share."""
    return _inexact(a, prims.ndtri)


@clangop()
def log_ndtr(a: Any) -> Any:
    """The logarithm of the normal distribution's share below each element."""
    return _inexact(a, prims.log_ndtr)


@clangop()
def lgamma(a: Any) -> Any:
    """The logarithm of the absolute value of the gamma function of each element."""
    return _inexact(a, prims.lgamma, _number("lgamma"))


@clangop()
def digamma(a: Any) -> Any:
    """The derivative of lgamma at each element."""
    return _inexact(a, prims.digamma)


@clangop()
def i0(a: Any) -> Any:
    """The modified Bessel function of order 0."""
    return _inexact(a, prims.i0)


@clangop()
def i0e(a: Any) -> Any:
    """exp(-|a|) * i0(a)."""
    return _inexact(a, prims.i0e)


@clangop()
def i1(a: Any) -> Any:
    """The modified Bessel function of order 1."""
    return _inexact(a, prims.i1)


@clangop()
def i1e(a: Any) -> Any:
    """exp(-|a|) * i1(a)."""
    return _inexact(a, prims.i1e)


@clangop(method_name="neg")
def neg(a: Any) -> Any:
    """Minus each element."""
    return elementwise_unary(a, prim=prims.neg, number_fn=operator.neg)


@clangop(method_name="abs")
def abs(a: Any) -> Any:
    """The absolute value of each element."""
    if isinstance(a, TensorProxy) and a.dtype.category == BOOL:
        if a.device.type != "cpu":
            return prims.clone(a)  # torch's kernels for GPUs take them
        raise NotImplementedError('"abs" not implemented for bool: truth values have no sign')
    return elementwise_unary(a, prim=prims.abs, number_fn=operator.abs, type_promotion_kind=KIND.COMPLEX_TO_FLOAT)


@clangop()
def sign(a: Any) -> Any:
    """-1, 0 or 1, as each element is below, at or above zero."""
    return elementwise_unary(a, prim=prims.sign, number_fn=lambda x: (x > 0) - (x < 0))


@clangop()
def sgn(a: Any) -> Any:
    """Each element divided by its absolute value."""
    return elementwise_unary(a, prim=prims.sgn)


@clangop()
def signbit(a: Any) -> Any:
    """Where the sign of an element is minus."""
    return elementwise_unary(a, prim=prims.signbit, type_promotion_kind=KIND.ALWAYS_BOOL)


@clangop()
def floor(a: Any) -> Any:
    """The largest integer not above each element."""
    return elementwise_unary(a, prim=prims.floor, number_fn=math.floor)


@clangop()
def ceil(a: Any) -> Any:
    """The smallest integer not below each element."""
    return elementwise_unary(a, prim=prims.ceil, number_fn=math.ceil)


@clangop()
def trunc(a: Any) -> Any:
    """Each element without its fraction."""
    return elementwise_unary(a, prim=prims.trunc, number_fn=math.trunc)


@clangop()
def round(a: Any) -> Any:
    """The integer next to each element; of two that are as near, the even one."""
    return elementwise_unary(a, prim=prims.round, number_fn=_round_number)


def _round_number(x: Any) -> Any:
    return x.__round__()


@clangop()
def real(a: Any) -> Any:
    """The real part of each element; a real tensor is its own."""
    if isinstance(a, TensorProxy):
        return prims.real(a) if a.dtype.is_complex else a
    return a.real


@clangop()
def imag(a: Any) -> Any:
    """The imaginary part of each element of a complex tensor."""
    return prims.imag(a) if isinstance(a, TensorProxy) else a.imag


@clangop()
def conj(a: Any) -> Any:
    """The complex conjugate of each element; a real tensor is its own."""
    if isinstance(a, TensorProxy):
        return prims.conj(a) if a.dtype.is_complex else a
    return a.conjugate()


@clangop()
def angle(a: Any) -> Any:
    """The angle of each element in the complex plane."""
    if isinstance(a, TensorProxy) and a.dtype.category <= INTEGER:
        a = prims.convert_element_type(a, default_dtype())
    return elementwise_unary(a, prim=prims.angle, number_fn=cmath.phase, type_promotion_kind=KIND.COMPLEX_TO_FLOAT)
