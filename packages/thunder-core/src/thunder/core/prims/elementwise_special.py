# SPDX-License-Identifier: Apache-2.0
"""Special functions of real numbers that every numerical library computes by approximations of its own."""

from __future__ import annotations

import math
from typing import Any

from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.elementwise_base import ELEMENTWISE, binary_samples, differentiable, float_meta, unary_samples
from thunder.core.prims.elementwise_conditional import where
from thunder.core.prims.elementwise_math import exp, log
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_unary
from thunder.core.symbol import OpTags

# The distance from one to the next number of each type; nearer to zero than that, i1(a) is a / 2.
_EPSILON = {dtypes.bfloat16: 2**-7, dtypes.float16: 2**-10, dtypes.float32: 2**-23, dtypes.float64: 2**-52}


def _away_from_zero(a: Any) -> tuple[Any, Any]:
    """Where `a` is not next to zero, and `a` with something that divides well in place of the elements that are."""
    epsilon = _EPSILON[a.dtype]
    away = a.abs() > epsilon
    return away, where(away, a, epsilon)


@prim(tags=(OpTags.NON_DIFFERENTIABLE,))
def missing_gradient(a: TensorProxy, of: str, /) -> TensorProxy:
    """Stands for a gradient that nobody has written: where it is needed the program raises, as torch does."""
    return TensorProxy(like=a)


@missing_gradient.batch
def _(b: Any, a: Any, of: Any) -> Any:
    return missing_gradient(a, of)


def _unknown(a: Any, of: str) -> Any:
    return missing_gradient(a, of) if differentiable(a) else None


@prim(torch="torch.erf", tags=ELEMENTWISE)
def erf(a: TensorProxy, /) -> TensorProxy:
    """The error function of each element."""
    return float_meta("erf", a)


@erf.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return 2.0 / math.sqrt(math.pi) * exp(-(a * a)) * g


erf.samples(unary_samples())


@prim(torch="torch.erfc", tags=ELEMENTWISE)
def erfc(a: TensorProxy, /) -> TensorProxy:
    """1 - erf(a), exact for large elements too."""
    return float_meta("erfc", a)


@erfc.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return -2.0 / math.sqrt(math.pi) * exp(-(a * a)) * g


erfc.samples(unary_samples())


@prim(torch="torch.special.erfcx", tags=ELEMENTWISE)
def erfcx(a: TensorProxy, /) -> TensorProxy:
    """exp(a * a) * erfc(a), which neither overflows nor vanishes for large elements."""
    return float_meta("erfcx", a)


@erfcx.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return (2.0 * a * out - 2.0 / math.sqrt(math.pi)) * g


erfcx.samples(unary_samples(low=-3, high=9))


@prim(torch="torch.erfinv", tags=ELEMENTWISE)
def erfinv(a: TensorProxy, /) -> TensorProxy:
    """The number whose error function each element is."""
    return float_meta("erfinv", a)


@erfinv.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return 0.5 * math.sqrt(math.pi) * exp(out * out) * g


erfinv.samples(unary_samples(low=-0.95, high=0.95))


@prim(torch="torch.special.ndtri", tags=ELEMENTWISE)
def ndtri(a: TensorProxy, /) -> TensorProxy:
    """The number below which the normal distribution has each element's share."""
    return float_meta("ndtri", a)


@ndtri.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * math.sqrt(2 * math.pi) * exp(out * out / 2)


ndtri.samples(unary_samples(low=0.05, high=0.95))


@prim(torch="torch.special.log_ndtr", tags=ELEMENTWISE)
def log_ndtr(a: TensorProxy, /) -> TensorProxy:
    """The logarithm of the normal distribution's share below each element."""
    return float_meta("log_ndtr", a)


@log_ndtr.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g / erfcx(a * -math.sqrt(0.5)) * math.sqrt(2 / math.pi)


log_ndtr.samples(unary_samples())


@prim(torch="torch.lgamma", tags=ELEMENTWISE)
def lgamma(a: TensorProxy, /) -> TensorProxy:
    """The logarithm of the absolute value of the gamma function of each element."""
    return float_meta("lgamma", a)


@lgamma.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * digamma(a)


lgamma.samples(unary_samples(low=0.1))


@prim(torch="torch.digamma", tags=ELEMENTWISE)
def digamma(a: TensorProxy, /) -> TensorProxy:
    """The derivative of the logarithm of the gamma function at each element."""
    return float_meta("digamma", a)


@digamma.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * polygamma(1, a)


digamma.samples(unary_samples(low=0.1))


@prim(torch="torch.polygamma", tags=ELEMENTWISE)
def polygamma(n: int, a: TensorProxy, /) -> TensorProxy:
    """The `n`-th derivative of the digamma function at each element."""
    check(n >= 0, lambda: f"polygamma(n, x) does not support negative n, but n is {n}")
    return float_meta("polygamma", a)


@polygamma.vjp
def _(g: Any, out: Any, n: Any, a: Any) -> Any:
    return None, g * polygamma(n + 1, a)


@polygamma.samples
def _(make: MakeTensor) -> Any:
    for n in (1, 0, 2, 3):
        for s in elementwise_unary(make, low=0.5):
            yield SampleInput(n, *s.args)


@polygamma.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(-1, make((3,))), RuntimeError, "does not support negative n"


@prim(torch="torch.special.zeta", tags=ELEMENTWISE)
def zeta(a: Any, b: Any, /) -> TensorProxy:
    """The Hurwitz zeta function: the sum over k >= 0 of (k + b) to the power of -a."""
    return float_meta("zeta", a, b)


@zeta.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return _unknown(a, "zeta: input"), (g * -a * zeta(a + 1, b) if differentiable(b) else None)


zeta.samples(binary_samples(low=1.5, high=5))


@prim(torch="torch.special.gammainc", tags=ELEMENTWISE)
def igamma(a: Any, b: Any, /) -> TensorProxy:
    """The regularized lower incomplete gamma function P(a, b)."""
    return float_meta("igamma", a, b)


@prim(torch="torch.special.gammaincc", tags=ELEMENTWISE)
def igammac(a: Any, b: Any, /) -> TensorProxy:
    """The regularized upper incomplete gamma function Q(a, b) = 1 - P(a, b)."""
    return float_meta("igammac", a, b)


@igamma.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return _unknown(a, "igamma: input"), (g * _density(a, b) if differentiable(b) else None)


@igammac.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return _unknown(a, "igammac: input"), (-g * _density(a, b) if differentiable(b) else None)


def _density(a: Any, b: Any) -> Any:
    # The derivative of P(a, b) by b, in logarithms: the factors overflow long before their product does.
    return exp((a - 1) * log(b) - b - lgamma(a))


igamma.samples(binary_samples(low=0.1, high=5))
igammac.samples(binary_samples(low=0.1, high=5))


@prim(torch="torch.special.i0", tags=ELEMENTWISE)
def i0(a: TensorProxy, /) -> TensorProxy:
    """The modified Bessel function of the first kind of order 0."""
    return float_meta("i0", a)


@i0.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * i1(a)


i0.samples(unary_samples())


@prim(torch="torch.special.i0e", tags=ELEMENTWISE)
def i0e(a: TensorProxy, /) -> TensorProxy:
    """exp(-|a|) * i0(a)."""
    return float_meta("i0e", a)


@i0e.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * (i1e(a) - a.sgn() * out)


i0e.samples(unary_samples())


@prim(torch="torch.special.i1", tags=ELEMENTWISE)
def i1(a: TensorProxy, /) -> TensorProxy:
    """The modified Bessel function of the first kind of order 1."""
    return float_meta("i1", a)


@i1.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    away, safe = _away_from_zero(a)
    return g * where(away, i0(safe) - out / safe, 0.5)


i1.samples(unary_samples())


@prim(torch="torch.special.i1e", tags=ELEMENTWISE)
def i1e(a: TensorProxy, /) -> TensorProxy:
    """exp(-|a|) * i1(a)."""
    return float_meta("i1e", a)


@i1e.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    away, safe = _away_from_zero(a)
    return g * where(away, i0e(safe) - out * (safe.sgn() + 1 / safe), 0.5)


i1e.samples(unary_samples())
