# SPDX-License-Identifier: Apache-2.0
"""Signs, absolute values and rounding in the torch language."""

from __future__ import annotations

from typing import Any

import torch

from thunder import clang
from thunder.core import prims
from thunder.core.dtypes import INTEGER, bool8, int32
from thunder.core.errors import check
from thunder.core.prims.autodiff import zero_vjp
from thunder.core.prims.elementwise_base import unary_samples
from thunder.core.samples import MakeTensor, SampleInput, elementwise_unary
from thunder.torch.base import torchsymbol
from thunder.torch.elementwise_base import ELEMENTWISE, in_float32


@torchsymbol(torch.positive, tags=ELEMENTWISE, executed_by_torch=False)
def positive(input: Any) -> Any:
    """Return `input` unchanged."""
    check(input.dtype is not bool8, lambda: "The `+` operator, on a bool tensor is not supported.")
    return input


def _bool_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2), dtype=bool8)), RuntimeError, "operator, on a bool tensor is not supported"


positive.samples(unary_samples())
positive.errors(_bool_errors)


@torchsymbol(torch.round, torch.special.round, tags=ELEMENTWISE)
def round(input: Any, *, decimals: int = 0) -> Any:
    """Round `input` to `decimals` digits after the decimal point. Ties are rounded to the even digit."""
    if decimals == 0:
        return clang.round(input)
    if not input.dtype.is_floating_point:
        raise NotImplementedError(
            f'"round" with decimals not implemented for {input.dtype}: it requires floating point tensors'
        )
    return in_float32(_round)(input, decimals)


def _round(x: Any, decimals: int) -> Any:
    # Multiply and divide by a power of ten, because the inverse of the power would not be exact.
    power = 10.0 ** (decimals if decimals > 0 else -decimals)
    if decimals > 0:
        return prims.div(prims.round(prims.mul(x, power)), power)
    return prims.mul(prims.round(prims.div(x, power)), power)


@round.vjp
def _(g: Any, out: Any, input: Any, *, decimals: int = 0) -> Any:
    return zero_vjp(g, out, input)


@round.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)
    for decimals in (1, 2, -1):
        x = make((4, 4))
        if x.is_floating_point():
            yield SampleInput(x, decimals=decimals)


@round.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2), dtype=int32), decimals=1), NotImplementedError, "not implemented for"


@torchsymbol(torch.frac, tags=ELEMENTWISE)
def frac(input: Any) -> Any:
    """Return the fractional part of `input`, with the sign of `input`."""
    if input.dtype.category <= INTEGER:
        raise NotImplementedError(f'"frac" not implemented for {input.dtype}: it requires floating point tensors')
    return clang.sub(input, clang.trunc(input))


@frac.vjp
def _(g: Any, out: Any, input: Any) -> Any:
    return g


frac.samples(unary_samples())


@frac.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2), dtype=int32)), NotImplementedError, "not implemented for int32"


@torchsymbol(torch.frexp, tags=ELEMENTWISE)
def frexp(input: Any) -> Any:
    """Return mantissas in [0.5, 1) and exponents, such that mantissa * 2**exponent = input."""
    return torch.return_types.frexp(prims.frexp(input))


frexp.samples(unary_samples())


@frexp.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2), dtype=int32)), RuntimeError, "only supports floating-point dtypes"
