# SPDX-License-Identifier: Apache-2.0
"""Smooth activation functions, e.g. gelu, silu and softplus.

For each function and each gradient, torch has one kernel. The decompositions and gradient rules here do the same
arithmetic, in float32 for 16-bit numbers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from thunder import clang
from thunder.core.dtypes import float32
from thunder.core.errors import check
from thunder.core.prims.elementwise_base import conjugated, unary_samples
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.samples import MakeTensor, SampleInput, elementwise_unary
from thunder.runtime.kernels.backward_kernels import SELU_ALPHA, SELU_SCALE
from thunder.torch.activations import check_floats, integer_errors
from thunder.torch.base import torchsymbol
from thunder.torch.elementwise_base import ELEMENTWISE, in_float32, rule_in_float32
from thunder.torch.elementwise_math import sigmoid

_KAPPA = 0.044715
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


@torchsymbol(F.gelu, tags=ELEMENTWISE)
@in_float32
def gelu(input: Any, *, approximate: str = "none") -> Any:
    """Compute input * P(X <= input) for a standard normal X, with erf, or with tanh if `approximate` is "tanh"."""
    check_floats("gelu", input)
    check(approximate in ("none", "tanh"), lambda: "approximate argument must be either none or tanh.")
    if approximate == "none":
        return input * 0.5 * (1 + clang.erf(input * math.sqrt(0.5)))
    inner = _SQRT_2_OVER_PI * (input + _KAPPA * (input * input * input))
    return 0.5 * input * (1 + clang.tanh(inner))


@gelu.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, *, approximate: str = "none") -> Any:
    if approximate == "none":
        share = 0.5 * (1 + clang.erf(input * math.sqrt(0.5)))
        density = clang.exp(input * input * -0.5) * (1 / math.sqrt(2 * math.pi))
        return g * (share + input * density)
    square = input * input
    inner = clang.tanh(_SQRT_2_OVER_PI * (input + _KAPPA * (square * input)))
    left = 0.5 * (1 + inner)
    right = 0.5 * input * (1 - inner * inner) * (_SQRT_2_OVER_PI * (1 + 3 * _KAPPA * square))
    return g * (left + right)


@gelu.samples
def _(make: MakeTensor) -> Any:
    for s in elementwise_unary(make):
        yield s
        yield SampleInput(*s.args, approximate="tanh")


@gelu.errors
def _(make: MakeTensor) -> Any:
    yield from integer_errors(make)
    a = make((3,), dtype=float32)
    yield SampleInput(a, approximate="erf"), RuntimeError, "approximate argument must be either none or tanh"


@torchsymbol(F.silu, torch._C._nn.silu, tags=ELEMENTWISE)
@in_float32
def silu(input: Any, inplace: bool = False) -> Any:
    """Compute input * sigmoid(input)."""
    check_floats("silu", input, complex_too=True)
    return input / (1 + clang.exp(-input))


@silu.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, inplace: bool = False) -> Any:
    share = 1 / (1 + clang.exp(-input))
    return g * conjugated(share * (1 + input * (1 - share)))


@torchsymbol(F.mish, torch._C._nn.mish, tags=ELEMENTWISE)
@in_float32
def mish(input: Any, inplace: bool = False) -> Any:
    """Compute input * tanh(softplus(input))."""
    check_floats("mish", input)
    return input * clang.tanh(clang.log1p(clang.exp(input)))


@mish.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, inplace: bool = False) -> Any:
    share = 1 / (1 + clang.exp(-input))
    bent = clang.tanh(clang.log1p(clang.exp(input)))
    return g * (bent + input * share * (1 - bent * bent))


for _op in (silu, mish):
    _op.samples(unary_samples())
    _op.errors(integer_errors)


@torchsymbol(F.softplus, tags=ELEMENTWISE, autocast={"cuda": "float32"})
@in_float32
def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Compute log(1 + exp(beta * input)) / beta; return `input` where beta * input is greater than `threshold`."""
    check_floats("softplus", input)
    scaled = input * beta
    return clang.where(scaled > threshold, input, clang.log1p(clang.exp(scaled)) / beta)


@softplus.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    scaled = input * beta
    grown = clang.exp(scaled)
    return clang.where(scaled > threshold, g, g * grown / (grown + 1))


@softplus.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)
    yield SampleInput(make((4, 4)), 2.0, 5.0)
    yield SampleInput(make((4, 4)), beta=-0.5)


softplus.errors(integer_errors)


@torchsymbol(F.logsigmoid, tags=ELEMENTWISE)
@in_float32
def logsigmoid(input: Any) -> Any:
    """Compute log(sigmoid(input)), without overflow."""
    check_floats("logsigmoid", input)
    return clang.minimum(input, 0) - clang.log1p(clang.exp(-clang.abs(input)))


@logsigmoid.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any) -> Any:
    return g * sigmoid(-input)


@logsigmoid.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)
    yield SampleInput(make((3,), low=0, high=0))  # at 0 its parts have kinks, but logsigmoid has none


logsigmoid.errors(integer_errors)


def _elu(input: Any, alpha: float, scale: float, input_scale: float) -> Any:
    bent = clang.expm1(input * input_scale if input_scale != 1 else input) * (alpha * scale)
    return clang.where(input <= 0, bent, input * scale if scale != 1 else input)


def _elu_grad(g: Any, input: Any, alpha: float, scale: float, input_scale: float) -> Any:
    bent = g * (input_scale * alpha * scale) * clang.exp(input * input_scale if input_scale != 1 else input)
    return clang.where(input <= 0, bent, g * scale if scale != 1 else g)


@torchsymbol(F.elu, torch._C._nn.elu, tags=ELEMENTWISE)
@in_float32
def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """Return `input` where it is positive, otherwise alpha * (exp(input) - 1)."""
    check_floats("elu", input)
    return _elu(input, alpha, 1, 1)


@elu.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    return _elu_grad(g, input, alpha, 1, 1)


@torchsymbol(torch.selu, F.selu, tags=ELEMENTWISE)
@in_float32
def selu(input: Any, inplace: bool = False) -> Any:
    """Compute a scaled `elu` with the constants that preserve mean and variance."""
    check_floats("selu", input)
    return _elu(input, SELU_ALPHA, SELU_SCALE, 1)


@selu.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, inplace: bool = False) -> Any:
    return _elu_grad(g, input, SELU_ALPHA, SELU_SCALE, 1)


@torchsymbol(torch.celu, F.celu, tags=ELEMENTWISE)
@in_float32
def celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """Return `input` where it is positive, otherwise alpha * (exp(input / alpha) - 1)."""
    check_floats("celu", input)
    check(alpha != 0, lambda: "ZeroDivisionError: alpha cannot be 0 for CELU")
    return _elu(input, alpha, 1, 1 / alpha)


@celu.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    return _elu_grad(g, input, alpha, 1, 1 / alpha)


def _alpha_samples(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)
    yield SampleInput(make((4, 4)), 0.7)
    yield SampleInput(make((4, 4)), alpha=2.0)


elu.samples(_alpha_samples)
celu.samples(_alpha_samples)
selu.samples(unary_samples())
for _op in (elu, selu):
    _op.errors(integer_errors)


@celu.errors
def _(make: MakeTensor) -> Any:
    yield from integer_errors(make)
    yield SampleInput(make((3,), dtype=float32), 0.0), RuntimeError, "alpha cannot be 0 for CELU"


@torchsymbol(F.softsign, tags=ELEMENTWISE)
def softsign(input: Any) -> Any:
    """Compute input / (|input| + 1)."""
    return input / (clang.abs(input) + 1)


@torchsymbol(F.tanhshrink, tags=ELEMENTWISE)
def tanhshrink(input: Any) -> Any:
    """Compute input - tanh(input)."""
    return input - clang.tanh(input)


for _op in (softsign, tanhshrink):
    _op.samples(unary_samples())


@torchsymbol(F.glu, torch._C._nn.glu)
@in_float32
def glu(input: Any, dim: int = -1) -> Any:
    """Compute the first half of `input` along `dim`, times the sigmoid of the second half."""
    a, b = _halves(input, dim)
    return a / (1 + clang.exp(-b))


def _halves(input: Any, dim: int) -> Any:
    check(input.ndim > 0, lambda: "glu does not support 0-dimensional tensors")
    d = canonicalize_dim(input.ndim, dim)
    size = input.shape[d]
    check(
        size % 2 == 0,
        lambda: f"Halving dimension must be even, but dimension {d} is size {size}",
    )
    check_floats("glu", input)
    return clang.slice_in_dim(input, 0, size // 2, dim=d), clang.slice_in_dim(input, size // 2, size, dim=d)


@glu.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, dim: int = -1) -> Any:
    a, b = _halves(input, dim)
    share = sigmoid(b)
    return clang.cat([share * g, (1 - share) * share * a * g], canonicalize_dim(input.ndim, dim))


@glu.samples
def _(make: MakeTensor) -> Any:
    for shape, dim in (((4, 6), -1), ((4, 6), 0), ((2, 4, 3), 1), ((0, 4), 1), ((2,), 0)):
        yield SampleInput(make(shape), dim)
    yield SampleInput(make((4, 6)))


@glu.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((), dtype=float32)), RuntimeError, "glu does not support 0-dimensional tensors"
    yield (
        SampleInput(make((3, 5), dtype=float32)),
        RuntimeError,
        "Halving dimension must be even, but dimension 1 is size 5",
    )
