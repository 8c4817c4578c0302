# SPDX-License-Identifier: Apache-2.0
"""Special functions in the torch language."""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder import clang
from thunder.core import prims
from thunder.core.dtypes import int32
from thunder.core.errors import check
from thunder.core.prims.elementwise_base import conjugated, unary_samples
from thunder.core.promotion import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_binary, elementwise_unary
from thunder.torch.base import language, torchsymbol
from thunder.torch.elementwise_base import ELEMENTWISE, in_float32, rule_in_float32, sum_to, to_inexact


def _binary(a: Any, b: Any, prim: Any) -> Any:
    return clang.base.elementwise_binary(a, b, prim=prim, type_promotion_kind=KIND.INT_TO_FLOAT)


@torchsymbol(torch.special.ndtr, id="torch.special.ndtr", tags=ELEMENTWISE)
@in_float32
def ndtr(input: Any) -> Any:
    """Compute the cumulative distribution function of the standard normal distribution."""
    x = to_inexact(input) * math.sqrt(0.5)
    # Use erfc below -1, where it is more precise.
    return clang.where(x < -1, 0.5 * clang.erfc(clang.abs(x)), 0.5 * (1 + clang.erf(x)))


@ndtr.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any) -> Any:
    return g * clang.exp(input * input * -0.5) / math.sqrt(2 * math.pi)


ndtr.samples(unary_samples())


@torchsymbol(torch.special.entr, id="torch.special.entr", tags=ELEMENTWISE)
@in_float32
def entr(input: Any) -> Any:
    """Compute -input * log(input): 0 at 0, and -inf below 0."""
    input = to_inexact(input)
    positive = -input * clang.log(input)
    rest = clang.where(clang.eq(input, 0), 0.0, -math.inf)
    # NaN must remain NaN: it is not positive, and it is not equal to zero.
    return clang.where(input > 0, positive, clang.where(clang.isnan(input), input, rest))


@entr.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any) -> Any:
    return g * (-(1 + clang.log(input)))


entr.samples(unary_samples(low=0))


@torchsymbol(torch.polygamma, torch.special.polygamma, is_method=False, tags=ELEMENTWISE)
def polygamma(n: int, input: Any) -> Any:
    """Return the `n`-th derivative of digamma at `input`."""
    return prims.polygamma(n, to_inexact(input))


polygamma.samples_of(prims.polygamma)


def _polygamma_method(input: Any, n: int) -> Any:
    return polygamma(n, input)


language.add_method("polygamma", _polygamma_method)


@torchsymbol(torch.mvlgamma, torch.special.multigammaln, tags=ELEMENTWISE)
def mvlgamma(input: Any, p: int) -> Any:
    """Compute the logarithm of the multivariate gamma function with dimension `p`."""
    check(p >= 1, lambda: f"p has to be greater than or equal to 1, but it is {p}")
    input = to_inexact(input)
    out = clang.lgamma(input)
    for i in range(1, p):
        out = out + clang.lgamma(input - i * 0.5)
    return out + p * (p - 1) * math.log(math.pi) / 4


@mvlgamma.samples
def _(make: MakeTensor) -> Any:
    for p in (1, 2, 5):
        for s in elementwise_unary(make, low=3):
            yield SampleInput(*s.args, p)


@mvlgamma.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), 0), RuntimeError, "p has to be greater than or equal to 1"


@torchsymbol(torch.xlogy, torch.special.xlogy, tags=ELEMENTWISE)
def xlogy(input: Any, other: Any) -> Any:
    """Compute input * log(other): 0 where `input` is 0, but NaN where `other` is NaN."""
    return _binary(input, other, in_float32(_xlogy))


def _xlogy(a: Any, b: Any) -> Any:
    if not isinstance(b, TensorProxy) and b <= 0:
        return _zero_unless_nan(a, b, a * (math.nan if b < 0 else -math.inf))
    return _zero_unless_nan(a, b, a * clang.log(b))


@torchsymbol(torch.special.xlog1py, id="torch.special.xlog1py", tags=ELEMENTWISE)
def xlog1py(input: Any, other: Any) -> Any:
    """Compute input * log1p(other): 0 where `input` is 0, but NaN where `other` is NaN."""
    return _binary(input, other, in_float32(_xlog1py))


def _xlog1py(a: Any, b: Any) -> Any:
    if not isinstance(b, TensorProxy) and b <= -1:
        return _zero_unless_nan(a, b, a * (math.nan if b < -1 else -math.inf))
    return _zero_unless_nan(a, b, a * clang.log1p(b))


def _zero_unless_nan(a: Any, b: Any, product: Any) -> Any:
    if not isinstance(b, TensorProxy) and math.isnan(b):
        return product
    out = clang.where(clang.eq(a, 0), 0.0, product)
    return clang.where(clang.isnan(b), math.nan, out)


def _not_above(x: Any, bound: int) -> Any:
    """Return whether the logarithm has no gradient, elementwise. As in torch, this includes a number that is NaN."""
    return clang.le(x, bound) if isinstance(x, TensorProxy) else not x > bound


@xlogy.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, other: Any) -> Any:
    outside = clang.logical_and(clang.eq(input, 0), _not_above(other, 0))
    by_input = clang.where(outside, 0.0, xlogy(g, other))
    return sum_to(by_input, input), sum_to(g * input / other, other)


@xlog1py.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, other: Any) -> Any:
    outside = clang.logical_and(clang.eq(input, 0), _not_above(other, -1))
    by_input = clang.where(outside, 0.0, xlog1py(g, other))
    return sum_to(by_input, input), sum_to(g * input / (other + 1), other)


@xlogy.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_binary(make, low=0.1)
    yield SampleInput(2, make((2, 3), low=0.1))
    for number in (0, -1, 2.5):
        yield SampleInput(make((2, 3)), number)
    yield SampleInput(make((2, 3)), make((3,), low=0, high=1))


@xlog1py.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_binary(make, low=-0.9)
    yield SampleInput(2, make((2, 3), low=-0.9))
    for number in (0, -1, -2.5):
        yield SampleInput(make((2, 3)), number)


@torchsymbol(torch.logit, torch.special.logit, tags=ELEMENTWISE)
@in_float32
def logit(input: Any, eps: float | None = None) -> Any:
    """Compute log(input / (1 - input)). If `eps` is given, clamp `input` to [eps, 1 - eps] first."""
    input = to_inexact(input)
    if eps is not None:
        input = clang.where(input < eps, eps, clang.where(input > 1 - eps, 1 - eps, input))
    return clang.log(input / (1 - input))


@logit.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, eps: float | None = None) -> Any:
    low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
    outside = clang.logical_or(input < low, input > high)
    return clang.where(outside, math.nan if eps is None else 0.0, g / (input * (1 - input)))


@logit.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make, low=0.05, high=0.95)
    yield SampleInput(make((4, 4), low=-0.5, high=1.5), 0.1)


@torchsymbol(torch.logaddexp, tags=ELEMENTWISE)
def logaddexp(input: Any, other: Any) -> Any:
    """Compute log(exp(input) + exp(other)) without overflow."""
    return clang.base.elementwise_binary(input, other, prim=in_float32(_logaddexp))


@torchsymbol(torch.logaddexp2, tags=ELEMENTWISE)
def logaddexp2(input: Any, other: Any) -> Any:
    """Compute log2(2**input + 2**other) without overflow."""
    return clang.base.elementwise_binary(input, other, prim=in_float32(_logaddexp2))


def _check_floats(name: str, a: Any, complex_too: bool) -> None:
    if not (a.dtype.is_floating_point or (complex_too and a.dtype.is_complex)):
        raise NotImplementedError(f'"{name}" not implemented for {a.dtype}: it requires floating point tensors')


def _logaddexp(a: Any, b: Any) -> Any:
    _check_floats("logaddexp", a, True)
    if a.dtype.is_complex:
        # Factor out the number with the larger real part. Infinite parts have no special handling.
        a_larger = clang.ge(prims.real(a), prims.real(b))
        high, low = clang.where(a_larger, a, b), clang.where(a_larger, b, a)
        return high + clang.log1p(clang.exp(low - high))
    same = clang.logical_and(clang.isinf(a), clang.eq(a, b))
    return clang.where(same, a, clang.maximum(a, b) + clang.log1p(clang.exp(-clang.abs(a - b))))


def _logaddexp2(a: Any, b: Any) -> Any:
    _check_floats("logaddexp2", a, False)
    same = clang.logical_and(clang.isinf(a), clang.eq(a, b))
    grown = clang.log1p(clang.exp2(-clang.abs(a - b))) * (1 / math.log(2))
    return clang.where(same, a, clang.maximum(a, b) + grown)


@logaddexp.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, other: Any) -> Any:
    by_input = g / conjugated(1 + clang.exp(other - input))
    return sum_to(by_input, input), sum_to(g / conjugated(1 + clang.exp(input - other)), other)


@logaddexp2.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, other: Any) -> Any:
    return sum_to(g / (1 + clang.exp2(other - input)), input), sum_to(g / (1 + clang.exp2(input - other)), other)


def _integer_error(make: MakeTensor) -> Any:
    a = make((2, 3), dtype=int32)
    yield SampleInput(a, a), NotImplementedError, "not implemented for int32"


for _sum in (logaddexp, logaddexp2):
    _sum.samples(lambda make: elementwise_binary(make, numbers=False))
    _sum.errors(_integer_error)
