# SPDX-License-Identifier: Apache-2.0
"""Powers, exponentials, logarithms, trigonometry: elementwise functions of real and complex numbers.

Gradients follow torch's convention for complex numbers: the incoming one times the conjugate of the derivative.
"""

from __future__ import annotations

import math
from typing import Any

from thunder.core.dtypes import is_complex_dtype
from thunder.core.prims.base import prim
from thunder.core.prims.elementwise_base import ELEMENTWISE, conjugated, inexact_meta, unary_samples
from thunder.core.proxies import TensorProxy


@prim(torch="torch.exp", tags=ELEMENTWISE)
def exp(a: TensorProxy, /) -> TensorProxy:
    """e to the power of each element."""
    return inexact_meta("exp", a)


@exp.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * conjugated(out)


exp.samples(unary_samples())


@prim(torch="torch.exp2", tags=ELEMENTWISE)
def exp2(a: TensorProxy, /) -> TensorProxy:
    """2 to the power of each element."""
    return inexact_meta("exp2", a)


@exp2.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * conjugated(out) * math.log(2)


exp2.samples(unary_samples())


@prim(torch="torch.expm1", tags=ELEMENTWISE)
def expm1(a: TensorProxy, /) -> TensorProxy:
    """exp(a) - 1, exact for small elements too."""
    return inexact_meta("expm1", a)


@expm1.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * (conjugated(out) + 1)


expm1.samples(unary_samples())


@prim(torch="torch.log", tags=ELEMENTWISE)
def log(a: TensorProxy, /) -> TensorProxy:
    """The natural logarithm of each element."""
    return inexact_meta("log", a)


@log.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g / conjugated(a)


log.samples(unary_samples(low=0.1))


@prim(torch="torch.log1p", tags=ELEMENTWISE)
def log1p(a: TensorProxy, /) -> TensorProxy:
    """log(1 + a), exact for small elements too."""
    return inexact_meta("log1p", a)


@log1p.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g / conjugated(a + 1)


log1p.samples(unary_samples(low=-0.9))


@prim(torch="torch.log2", tags=ELEMENTWISE)
def log2(a: TensorProxy, /) -> TensorProxy:
    """The logarithm of each element to base 2."""
    return inexact_meta("log2", a)


@log2.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g / (conjugated(a) * math.log(2))


log2.samples(unary_samples(low=0.1))


@prim(torch="torch.log10", tags=ELEMENTWISE)
def log10(a: TensorProxy, /) -> TensorProxy:
    """The logarithm of each element to base 10."""
    return inexact_meta("log10", a)


@log10.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g / (conjugated(a) * math.log(10))


log10.samples(unary_samples(low=0.1))


@prim(torch="torch.sqrt", tags=ELEMENTWISE)
def sqrt(a: TensorProxy, /) -> TensorProxy:
    """The square root of each element."""
    return inexact_meta("sqrt", a)


@sqrt.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g / (2 * conjugated(out))


sqrt.samples(unary_samples(low=0))


@prim(torch="torch.rsqrt", tags=ELEMENTWISE)
def rsqrt(a: TensorProxy, /) -> TensorProxy:
    """One over the square root of each element."""
    return inexact_meta("rsqrt", a)


@rsqrt.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return -0.5 * g * conjugated(out * out * out)


rsqrt.samples(unary_samples(low=0.1))


@prim(torch="torch.reciprocal", tags=ELEMENTWISE)
def reciprocal(a: TensorProxy, /) -> TensorProxy:
    """One over each element."""
    return inexact_meta("reciprocal", a)


@reciprocal.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return -g * conjugated(out * out)


reciprocal.samples(unary_samples(low=0.1))


@prim(torch="torch.sin", tags=ELEMENTWISE)
def sin(a: TensorProxy, /) -> TensorProxy:
    """The sine of each element."""
    return inexact_meta("sin", a)


@sin.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * conjugated(cos(a))


sin.samples(unary_samples())


@prim(torch="torch.cos", tags=ELEMENTWISE)
def cos(a: TensorProxy, /) -> TensorProxy:
    """The cosine of each element."""
    return inexact_meta("cos", a)


@cos.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return -g * conjugated(sin(a))


cos.samples(unary_samples())


@prim(torch="torch.tan", tags=ELEMENTWISE)
def tan(a: TensorProxy, /) -> TensorProxy:
    """The tangent of each element."""
    return inexact_meta("tan", a)


@tan.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * conjugated(1 + out * out)


tan.samples(unary_samples(low=-1.5, high=1.5))


@prim(torch="torch.asin", tags=ELEMENTWISE)
def asin(a: TensorProxy, /) -> TensorProxy:
    """The angle in [-pi/2, pi/2] whose sine each element is."""
    return inexact_meta("asin", a)


@asin.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * conjugated(rsqrt(1 - a * a))


asin.samples(unary_samples(low=-1, high=1))


@prim(torch="torch.acos", tags=ELEMENTWISE)
def acos(a: TensorProxy, /) -> TensorProxy:
    """The angle in [0, pi] whose cosine each element is."""
    return inexact_meta("acos", a)


@acos.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return -g * conjugated(rsqrt(1 - a * a))


acos.samples(unary_samples(low=-1, high=1))


@prim(torch="torch.atan", tags=ELEMENTWISE)
def atan(a: TensorProxy, /) -> TensorProxy:
    """The angle in [-pi/2, pi/2] whose tangent each element is."""
    return inexact_meta("atan", a)


@atan.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g / conjugated(a * a + 1)


atan.samples(unary_samples())


@prim(torch="torch.sinh", tags=ELEMENTWISE)
def sinh(a: TensorProxy, /) -> TensorProxy:
    """The hyperbolic sine of each element."""
    return inexact_meta("sinh", a)


@sinh.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * conjugated(cosh(a))


sinh.samples(unary_samples(low=-5, high=5))


@prim(torch="torch.cosh", tags=ELEMENTWISE)
def cosh(a: TensorProxy, /) -> TensorProxy:
    """The hyperbolic cosine of each element."""
    return inexact_meta("cosh", a)


@cosh.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * conjugated(sinh(a))


cosh.samples(unary_samples(low=-5, high=5))


@prim(torch="torch.tanh", tags=ELEMENTWISE)
def tanh(a: TensorProxy, /) -> TensorProxy:
    """The hyperbolic tangent of each element."""
    return inexact_meta("tanh", a)


@tanh.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * conjugated(1 - out * out)


tanh.samples(unary_samples())


@prim(torch="torch.asinh", tags=ELEMENTWISE)
def asinh(a: TensorProxy, /) -> TensorProxy:
    """The number whose hyperbolic sine each element is."""
    return inexact_meta("asinh", a)


@asinh.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * conjugated(rsqrt(a * a + 1))


asinh.samples(unary_samples())


@prim(torch="torch.acosh", tags=ELEMENTWISE)
def acosh(a: TensorProxy, /) -> TensorProxy:
    """The number not below zero whose hyperbolic cosine each element is."""
    return inexact_meta("acosh", a)


@acosh.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    if is_complex_dtype(a.dtype):
        # Not the root of the product: the branches of the two roots matter.
        return g * conjugated(rsqrt(a + 1) * rsqrt(a - 1))
    return g * rsqrt(a * a - 1)


acosh.samples(unary_samples(low=1))


@prim(torch="torch.atanh", tags=ELEMENTWISE)
def atanh(a: TensorProxy, /) -> TensorProxy:
    """The number whose hyperbolic tangent each element is."""
    return inexact_meta("atanh", a)


@atanh.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g / conjugated(1 - a * a)


atanh.samples(unary_samples(low=-0.95, high=0.95))
