# SPDX-License-Identifier: Apache-2.0
"""Signs, absolute values and rounding."""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any

from thunder.core.dtypes import BOOL, COMPLEX, bool8, complex64, corresponding_real_dtype, int32, is_complex_dtype
from thunder.core.errors import check
from thunder.core.prims.autodiff import zero_vjp, zeros_of
from thunder.core.prims.base import prim
from thunder.core.prims.data import clone, convert_element_type
from thunder.core.prims.elementwise_base import (
    COMPARISON,
    ELEMENTWISE,
    KIND,
    NUMBERS,
    ORDERED,
    elementwise,
    unary_samples,
)
from thunder.core.prims.metas import elementwise_meta
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput

neg = elementwise(
    "neg",
    "Return the negative of each element.",
    categories=(*NUMBERS, COMPLEX),
    vjp=lambda g, out, a: -g,
    number_fn=operator.neg,
    method=True,
    torch=("torch.neg", "torch.negative"),
    numpy="negative",
    refuses=bool8,
    message="Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, use "
    "the `~` or `logical_not()` operator instead.",
    error=RuntimeError,
    facts={"cost": "light"},
)


def _abs_of_bools(a: Any) -> Any:
    if a.dtype.category != BOOL:
        return abs(a)
    if a.device.type != "cpu":
        return clone(a)  # torch's GPU kernels accept bools
    raise NotImplementedError('"abs" not implemented for bool: bools have no sign')


abs = elementwise(
    "abs",
    "Return the absolute value of each element; the result is real for complex elements too.",
    out=corresponding_real_dtype,
    vjp=lambda g, out, a: g * a.sgn(),
    promotion=KIND.COMPLEX_TO_FLOAT,
    number_fn=operator.abs,
    lowering=_abs_of_bools,
    method=True,
    torch=("torch.abs", "torch.absolute"),
)


sign = elementwise(
    "sign",
    "Return the sign of each element: -1, 0 or 1. The sign of NaN is 0.",
    categories=ORDERED,
    vjp=zero_vjp,
    number_fn=lambda x: (x > 0) - (x < 0),
    refuses=complex64,
    message="Unlike NumPy, torch.sign is not intended to support complex numbers. Please use torch.sgn instead.",
)

sgn = elementwise("sgn", "Return each element divided by its absolute value, and 0 for 0.")


@sgn.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    if not is_complex_dtype(a.dtype):
        return zeros_of(a)
    # The component of `g` that is orthogonal to `a` in the complex plane, divided by |a|.
    size = abs(a)
    return (g - out * out * g.conj()) / (2 * size).masked_fill(size == 0, math.inf)


signbit = elementwise(
    "signbit",
    "Return True for each element with a minus sign: negative numbers and -0.0.",
    categories=ORDERED,
    out=bool8,
    tags=COMPARISON,
    promotion=KIND.ALWAYS_BOOL,
    refuses=complex64,
)

_rounding = partial(elementwise, categories=NUMBERS, vjp=zero_vjp, refuses=complex64)

floor = _rounding("floor", "Return each element rounded down to an integer.", number_fn="floor")
ceil = _rounding("ceil", "Return each element rounded up to an integer.", number_fn="ceil")
trunc = _rounding(
    "trunc", "Return each element rounded towards zero.", number_fn="trunc", torch=("torch.trunc", "torch.fix")
)
round = _rounding(
    "round",
    "Return each element rounded to the nearest integer; ties are rounded to the even integer.",
    number_fn=lambda x: x.__round__(),
    overridden_in=["torch"],
)


@prim(torch="torch.frexp", tags=ELEMENTWISE)
def frexp(a: TensorProxy, /) -> tuple[TensorProxy, TensorProxy]:
    """Return the mantissa of each element, in [0.5, 1), and its exponent: `a == mantissa * 2**exponent`."""
    check(a.dtype.is_floating_point, lambda: f"torch.frexp() only supports floating-point dtypes, not {a.dtype}")
    return elementwise_meta("frexp", a), TensorProxy(like=a, dtype=int32)


@frexp.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    # Computed in float32, the dtype of `out[1].exp2()`: a power of two can be too large for float16.
    return convert_element_type(g[0] / out[1].exp2(), a.dtype)


frexp.samples(unary_samples())


@frexp.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2), dtype=int32)), RuntimeError, "only supports floating-point dtypes"
