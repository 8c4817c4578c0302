# SPDX-License-Identifier: Apache-2.0
"""Binary functions of the torch language: powers, multiples and steps."""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder import clang
from thunder.core.dtypes import COMPLEX, INTEGER, bool8, complex64, complex128, float64, int32, int64, is_complex_dtype
from thunder.core.errors import check
from thunder.core.prims.elementwise_base import conjugated, differentiable
from thunder.core.prims.elementwise_binary import pow_by_base, pow_by_exponent
from thunder.core.promotion import result_type
from thunder.core.samples import MakeTensor, SampleInput, elementwise_binary
from thunder.torch.base import torchsymbol
from thunder.torch.elementwise_base import COMPARISON, ELEMENTWISE, sum_to


@torchsymbol(torch.ldexp, tags=ELEMENTWISE)
def ldexp(input: Any, other: Any) -> Any:
    """Compute input * 2**other."""
    if not (input.dtype.is_floating_point and other.dtype.category == INTEGER):
        return clang.mul(input, clang.pow(2.0, other))
    # Multiply by two halves of the power. This is exact, and the halves overflow only if the product overflows.
    exponent = clang.minimum(clang.maximum(clang.maybe_convert_to_dtype(other, int64), -2046), 2046)
    half = clang.bitwise_right_shift(exponent, 1)
    out = clang.maybe_convert_to_dtype(input, float64)
    for part in (half, clang.sub(exponent, half)):
        out = clang.mul(out, clang.exp2(clang.maybe_convert_to_dtype(part, float64)))
    return clang.maybe_convert_to_dtype(out, input.dtype)


@ldexp.vjp
def _(g: Any, out: Any, input: Any, other: Any) -> Any:
    by_input = g * conjugated(clang.pow(2.0, other)) if differentiable(input) else None
    by_other = g * conjugated(out) * math.log(2) if differentiable(other) else None
    return sum_to(by_input, input), sum_to(by_other, other)


@ldexp.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_binary(make, numbers=False)
    yield SampleInput(make((4, 4)), make((4, 4), dtype=int32, low=0))


@torchsymbol(torch.lcm, tags=COMPARISON)
def lcm(input: Any, other: Any) -> Any:
    """Return the least common multiple, or 0 where an operand is 0."""
    divisor = clang.gcd(input, other)
    kind = divisor.dtype
    # Compute small integers in 32 bits, as C does, so that only the final conversion overflows.
    wide = int32 if kind.bytes < 4 else kind
    safe = clang.maybe_convert_to_dtype(clang.where(clang.eq(divisor, 0), 1, divisor), wide)
    quotient = clang.trunc_divide(clang.maybe_convert_to_dtype(input, wide), safe)
    product = clang.abs(clang.mul(quotient, clang.maybe_convert_to_dtype(other, wide)))
    return clang.maybe_convert_to_dtype(product, kind)


def _no_floats(make: MakeTensor) -> Any:
    a = make((2, 3), dtype=float64)
    yield SampleInput(a, a), NotImplementedError, '"gcd" not implemented for float64'


lcm.samples(lambda make: elementwise_binary(make, numbers=False))
lcm.errors(_no_floats)


@torchsymbol(torch.heaviside, tags=COMPARISON)
def heaviside(input: Any, values: Any) -> Any:
    """Return 0 where `input` is negative, `values` where it is zero, and 1 where it is positive."""
    check(
        not is_complex_dtype(input.dtype) and not is_complex_dtype(values.dtype),
        lambda: "heaviside is not yet implemented for complex tensors.",
    )
    check(
        input.dtype is values.dtype,
        lambda: f"heaviside is not yet implemented for tensors with different dtypes: {input.dtype}, {values.dtype}",
    )
    step = clang.maybe_convert_to_dtype(clang.gt(input, 0), input.dtype)
    return clang.where(clang.eq(input, 0), values, step)


@heaviside.samples
def _(make: MakeTensor) -> Any:
    for s in elementwise_binary(make, numbers=False, low=-2, high=2):
        a, b = s.args
        yield SampleInput(a.round() if a.is_floating_point() else a, b)


@heaviside.errors
def _(make: MakeTensor) -> Any:
    a, b = make((3,), dtype=float64), make((3,), dtype=complex64)
    yield SampleInput(a, make((3,), dtype=int32)), RuntimeError, "not yet implemented for tensors with different dtypes"
    yield SampleInput(b, b), RuntimeError, "not yet implemented for complex tensors"


@torchsymbol(torch.pow, tags=ELEMENTWISE, autocast={"cuda": "float32"})
def pow(input: Any, exponent: Any) -> Any:
    """Compute input ** exponent."""
    return clang.pow(input, exponent)


@pow.vjp
def _(g: Any, out: Any, input: Any, exponent: Any) -> Any:
    by_input = sum_to(pow_by_base(g, input, exponent), input) if differentiable(input) else None
    return by_input, (sum_to(pow_by_exponent(g, out, input, exponent), exponent) if differentiable(exponent) else None)


@pow.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_binary(make, low=0.5, high=3)
    for exponent in (0, 1, 3, 4, 0.5, -0.5, -1, -2, 2.5):
        if exponent >= 0 or make.dtype.is_floating_point or make.dtype.is_complex:
            yield SampleInput(make((3, 4), low=0.5), exponent)
    yield SampleInput(make((3, 4)), 2)
    yield SampleInput(2, make((3, 4), low=0, high=3))
    yield SampleInput(2.5, make((3, 4), low=0, high=3))


@pow.errors
def _(make: MakeTensor) -> Any:
    a = make((3,), dtype=bool8)
    yield SampleInput(make((3,), dtype=int32), -1), RuntimeError, "Integers to negative integer powers"
    yield SampleInput(a, a), NotImplementedError, '"pow" not implemented for'


@torchsymbol(torch.float_power, tags=ELEMENTWISE)
def float_power(input: Any, exponent: Any) -> Any:
    """Compute input ** exponent in double precision."""
    wide = complex128 if result_type(input, exponent).category == COMPLEX else float64
    return clang.pow(clang.maybe_convert_to_dtype(input, wide), clang.maybe_convert_to_dtype(exponent, wide))


@float_power.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_binary(make, low=0.5, high=3)
    yield SampleInput(2, make((3, 4), low=0, high=3))
    yield SampleInput(make((3, 4), low=0.5), -1.5)
