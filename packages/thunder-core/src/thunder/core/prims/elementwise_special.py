# SPDX-License-Identifier: Apache-2.0
"""Special functions of real numbers. Each numerical library computes them by its own approximations."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.batch_rules import as_for_one
from thunder.core.prims.elementwise_base import ELEMENTWISE, FLOATS, KIND, check_categories, differentiable, elementwise
from thunder.core.prims.elementwise_conditional import where
from thunder.core.prims.elementwise_math import exp, log
from thunder.core.prims.metas import elementwise_meta
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_unary
from thunder.core.symbol import OpTags, Symbol

# The distance from 1 to the next number of each dtype. If |a| is not larger, i1(a) is a / 2.
_EPSILON = {dtypes.bfloat16: 2**-7, dtypes.float16: 2**-10, dtypes.float32: 2**-23, dtypes.float64: 2**-52}


def _away_from_zero(a: Any) -> tuple[Any, Any]:
    """Return a mask of elements that are not near zero, and `a` with near-zero elements replaced by a safe divisor."""
    epsilon = _EPSILON[a.dtype]
    away = a.abs() > epsilon
    return away, where(away, a, epsilon)


@prim(tags=(OpTags.NON_DIFFERENTIABLE,))
def missing_gradient(a: TensorProxy, of: str, /) -> TensorProxy:
    """Represent a gradient that is not implemented; a program that needs the gradient raises an error, as in torch."""
    return TensorProxy(like=a)


missing_gradient.batch(as_for_one(missing_gradient))


def _unknown(a: Any, of: str) -> Any:
    return missing_gradient(a, of) if differentiable(a) else None


@prim(torch="torch.polygamma", tags=ELEMENTWISE)
def polygamma(n: int, a: TensorProxy, /) -> TensorProxy:
    """Return the `n`-th derivative of the digamma function at each element."""
    check(n >= 0, lambda: f"polygamma(n, x) does not support negative n, but n is {n}")
    check_categories("polygamma", FLOATS, a)
    return elementwise_meta("polygamma", a)


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


_function = partial(elementwise, categories=FLOATS, promotion=KIND.INT_TO_FLOAT)

erf = _function(
    "erf",
    "Return the error function of each element.",
    vjp=lambda g, out, a: 2.0 / math.sqrt(math.pi) * exp(-(a * a)) * g,
    number_fn="erf",
    torch=("torch.erf", "torch.special.erf"),
)
erfc = _function(
    "erfc",
    "Return 1 - erf({a}), with full precision for large elements.",
    vjp=lambda g, out, a: -2.0 / math.sqrt(math.pi) * exp(-(a * a)) * g,
    number_fn="erfc",
    torch=("torch.erfc", "torch.special.erfc"),
)
erfcx = _function(
    "erfcx",
    "Return exp({a} * {a}) * erfc({a}), without overflow or underflow for large elements.",
    vjp=lambda g, out, a: (2.0 * a * out - 2.0 / math.sqrt(math.pi)) * g,
    torch="torch.special.erfcx",
    domain={"low": -3, "high": 9},
)
erfinv = _function(
    "erfinv",
    "Return the inverse error function of each element.",
    vjp=lambda g, out, a: 0.5 * math.sqrt(math.pi) * exp(out * out) * g,
    torch=("torch.erfinv", "torch.special.erfinv"),
    domain={"low": -0.95, "high": 0.95},
    facts={"autocast": {"cuda": "float32"}},
)
ndtri = _function(
    "ndtri",
    "Return the inverse of the normal distribution's cumulative distribution function.",
    vjp=lambda g, out, a: g * math.sqrt(2 * math.pi) * exp(out * out / 2),
    torch="torch.special.ndtri",
    domain={"low": 0.05, "high": 0.95},
)
log_ndtr = _function(
    "log_ndtr",
    "Return the logarithm of the normal distribution's cumulative distribution function.",
    vjp=lambda g, out, a: g / erfcx(a * -math.sqrt(0.5)) * math.sqrt(2 / math.pi),
    torch="torch.special.log_ndtr",
)
lgamma = _function(
    "lgamma",
    "Return the logarithm of the absolute value of the gamma function of each element.",
    vjp=lambda g, out, a: g * digamma(a),
    number_fn="lgamma",
    torch=("torch.lgamma", "torch.special.gammaln"),
    domain={"low": 0.1},
)
digamma: Symbol = _function(
    "digamma",
    "Return the derivative of the logarithm of the gamma function at each element.",
    vjp=lambda g, out, a: g * polygamma(1, a),
    torch=("torch.digamma", "torch.special.digamma", "torch.special.psi"),
    domain={"low": 0.1},
)
_pair = partial(elementwise, categories=FLOATS, operands=2)

zeta = _pair(
    "zeta",
    "Return the Hurwitz zeta function: the sum over k >= 0 of (k + {b}) to the power of -{a}.",
    promotion=KIND.INT_TO_FLOAT,
    torch="torch.special.zeta",
    domain={"low": 1.5, "high": 5},
)
_gamma = partial(_pair, tensors_only=True, domain={"low": 0.1, "high": 5})
igamma = _gamma(
    "igamma",
    "Return the regularized lower incomplete gamma function P({a}, {b}).",
    torch=("torch.igamma", "torch.special.gammainc"),
)
igammac = _gamma(
    "igammac",
    "Return the regularized upper incomplete gamma function Q({a}, {b}) = 1 - P({a}, {b}).",
    torch=("torch.igammac", "torch.special.gammaincc"),
)


@zeta.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return _unknown(a, "zeta: input"), (g * -a * zeta(a + 1, b) if differentiable(b) else None)


@igamma.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return _unknown(a, "igamma: input"), (g * _density(a, b) if differentiable(b) else None)


@igammac.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return _unknown(a, "igammac: input"), (-g * _density(a, b) if differentiable(b) else None)


def _density(a: Any, b: Any) -> Any:
    # The derivative of P(a, b) with respect to b, computed with logarithms: the factors overflow before their product.
    return exp((a - 1) * log(b) - b - lgamma(a))


i0 = _function(
    "i0",
    "Return the modified Bessel function of the first kind of order 0 of each element.",
    vjp=lambda g, out, a: g * i1(a),
    torch=("torch.i0", "torch.special.i0"),
)
i0.torch_names = ("torch.special.i0",)  # traces call the primitive by this name
i0e = _function(
    "i0e",
    "Return exp(-|{a}|) * i0({a}).",
    vjp=lambda g, out, a: g * (i1e(a) - a.sgn() * out),
    torch="torch.special.i0e",
)
i1: Symbol = _function(
    "i1",
    "Return the modified Bessel function of the first kind of order 1 of each element.",
    torch="torch.special.i1",
)
i1e: Symbol = _function(
    "i1e",
    "Return exp(-|{a}|) * i1({a}).",
    torch="torch.special.i1e",
)


@i1.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    away, safe = _away_from_zero(a)
    return g * where(away, i0(safe) - out / safe, 0.5)


@i1e.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    away, safe = _away_from_zero(a)
    return g * where(away, i0e(safe) - out * (safe.sgn() + 1 / safe), 0.5)
