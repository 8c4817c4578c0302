# SPDX-License-Identifier: Apache-2.0
"""Signs, absolute values and rounding."""

from __future__ import annotations

import math
from typing import Any

from thunder.core.dtypes import BOOL, COMPLEX, bool8, complex64, corresponding_real_dtype, int32, is_complex_dtype
from thunder.core.errors import check
from thunder.core.prims.autodiff import zero_vjp, zeros_of
from thunder.core.prims.base import prim
from thunder.core.prims.data import convert_element_type
from thunder.core.prims.elementwise_base import COMPARISON, ELEMENTWISE, float_meta, ordered_meta, unary_samples
from thunder.core.prims.metas import elementwise_meta
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput


@prim(torch="torch.neg", tags=ELEMENTWISE)
def neg(a: TensorProxy, /) -> TensorProxy:
    """Minus each element."""
    check(
        a.dtype.category != BOOL,
        lambda: (
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, use "
            "the `~` or `logical_not()` operator instead."
        ),
    )
    return elementwise_meta("neg", a)


@neg.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return -g


neg.samples(unary_samples())


@neg.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2), dtype=bool8)), RuntimeError, "Negation, the `-` operator, on a bool tensor"


@prim(torch="torch.abs", tags=ELEMENTWISE)
def abs(a: TensorProxy, /) -> TensorProxy:
    """The absolute value of each element, a real number for a complex one too."""
    return elementwise_meta("abs", a, out_dtype=corresponding_real_dtype(a.dtype))


@abs.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * a.sgn()


abs.samples(unary_samples())


@prim(torch="torch.sign", tags=ELEMENTWISE)
def sign(a: TensorProxy, /) -> TensorProxy:
    """-1, 0 or 1, as each element is below, at or above zero; 0 where it is NaN."""
    check(
        a.dtype.category != COMPLEX,
        lambda: "Unlike NumPy, torch.sign is not intended to support complex numbers. Please use torch.sgn instead.",
        NotImplementedError,
    )
    return elementwise_meta("sign", a)


sign.vjp(zero_vjp)
sign.samples(unary_samples())


@sign.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2), dtype=complex64)), NotImplementedError, "use torch.sgn instead"


@prim(torch="torch.sgn", tags=ELEMENTWISE)
def sgn(a: TensorProxy, /) -> TensorProxy:
    """Each element divided by its absolute value; 0 where it is 0."""
    return elementwise_meta("sgn", a)


@sgn.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    if not is_complex_dtype(a.dtype):
        return zeros_of(a)
    # What is left of the incoming gradient across the direction of `a`, shrunk with the distance from zero.
    size = abs(a)
    return (g - out * out * g.conj()) / (2 * size).masked_fill(size == 0, math.inf)


sgn.samples(unary_samples())


@prim(torch="torch.signbit", tags=COMPARISON)
def signbit(a: TensorProxy, /) -> TensorProxy:
    """Where the sign of an element is minus: of negative numbers and of -0.0."""
    return ordered_meta("signbit", a, out_dtype=bool8)


signbit.samples(unary_samples())


@prim(torch="torch.floor", tags=ELEMENTWISE)
def floor(a: TensorProxy, /) -> TensorProxy:
    """The largest integer not above each element."""
    return ordered_meta("floor", a, bools=False)


floor.vjp(zero_vjp)
floor.samples(unary_samples())


@prim(torch="torch.ceil", tags=ELEMENTWISE)
def ceil(a: TensorProxy, /) -> TensorProxy:
    """The smallest integer not below each element."""
    return ordered_meta("ceil", a, bools=False)


ceil.vjp(zero_vjp)
ceil.samples(unary_samples())


@prim(torch="torch.trunc", tags=ELEMENTWISE)
def trunc(a: TensorProxy, /) -> TensorProxy:
    """Each element without its fraction."""
    return ordered_meta("trunc", a, bools=False)


trunc.vjp(zero_vjp)
trunc.samples(unary_samples())


@prim(torch="torch.round", tags=ELEMENTWISE)
def round(a: TensorProxy, /) -> TensorProxy:
    """The integer next to each element; of two that are as near, the even one."""
    return ordered_meta("round", a, bools=False)


round.vjp(zero_vjp)
round.samples(unary_samples())


@prim(torch="torch.frexp", tags=ELEMENTWISE)
def frexp(a: TensorProxy, /) -> tuple[TensorProxy, TensorProxy]:
    """Each element as a fraction in [0.5, 1) and the power of two that it is multiplied with."""
    check(a.dtype.is_floating_point, lambda: f"torch.frexp() only supports floating-point dtypes, not {a.dtype}")
    return float_meta("frexp", a), TensorProxy(like=a, dtype=int32)


@frexp.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    # In the exponent's precision: a power of two can be too large for float16.
    return convert_element_type(g[0] / out[1].exp2(), a.dtype)


frexp.samples(unary_samples())


@frexp.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2), dtype=int32)), RuntimeError, "only supports floating-point dtypes"
