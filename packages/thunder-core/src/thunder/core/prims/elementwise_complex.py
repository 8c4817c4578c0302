# SPDX-License-Identifier: Apache-2.0
"""Elementwise operations that create complex numbers or return their parts."""

from __future__ import annotations

import math
from typing import Any

from thunder.core.dtypes import (
    COMPLEX,
    FLOAT,
    bfloat16,
    complex64,
    complex128,
    corresponding_complex_dtype,
    corresponding_real_dtype,
    float32,
    float64,
    is_complex_dtype,
)
from thunder.core.errors import check
from thunder.core.prims.autodiff import zeros_of
from thunder.core.prims.base import prim
from thunder.core.prims.elementwise_base import ELEMENTWISE, INEXACT, KIND, elementwise
from thunder.core.prims.elementwise_conditional import where
from thunder.core.prims.metas import elementwise_meta
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags

_VIEW = (*ELEMENTWISE, OpTags.VIEW_OP)


def _conj(a: Any) -> Any:
    return conj(a) if a.dtype.is_complex else a


conj = elementwise(
    "conj",
    "Return the complex conjugate of each element; real elements do not change.",
    vjp=lambda g, out, a: g.conj(),
    tags=_VIEW,
    number_fn=lambda x: x.conjugate(),
    lowering=_conj,
    overridden_in=["torch"],
)


def _real(a: Any) -> Any:
    return real(a) if a.dtype.is_complex else a


real = elementwise(
    "real",
    "Return the real part of each element; real elements do not change.",
    out=corresponding_real_dtype,
    vjp=lambda g, out, a: complex(g, zeros_of(g)) if is_complex_dtype(a.dtype) else g,
    tags=_VIEW,
    promotion=KIND.COMPLEX_TO_FLOAT,
    number_fn=lambda x: x.real,
    lowering=_real,
    overridden_in=["torch"],
)


imag = elementwise(
    "imag",
    "Return the imaginary part of each element of a complex tensor.",
    categories=(COMPLEX,),
    out=corresponding_real_dtype,
    vjp=lambda g, out, a: complex(zeros_of(g), g),
    tags=_VIEW,
    promotion=KIND.COMPLEX_TO_FLOAT,
    number_fn=lambda x: x.imag,
    overridden_in=["torch"],
    refuses=float32,
    message="imag is not implemented for tensors with non-complex dtypes, and this one is {dtype}",
    error=RuntimeError,
)


@imag.samples
def _(make: MakeTensor) -> Any:
    for shape in ((4, 4), (), (0, 3)):
        yield SampleInput(make(shape, dtype=complex64))
    yield SampleInput(make((5, 3), dtype=complex128).mT)


angle = elementwise(
    "angle",
    "Return the angle of each element in the complex plane; for real elements it is 0 or pi.",
    categories=INEXACT,
    out=corresponding_real_dtype,
    overridden_in=["clang"],
)


@angle.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    if not is_complex_dtype(a.dtype):
        return zeros_of(a)
    size = a.abs()
    scaled = g / where(size == 0, math.inf, size * size)
    return complex(scaled * -imag(a), scaled * real(a))


def _parts_meta(name: str, a: TensorProxy, b: TensorProxy) -> TensorProxy:
    for x in (a, b):
        if not isinstance(x, TensorProxy):
            raise TypeError(f"{name} expects two tensors, not {type(x).__name__}: {x!r}")
    check(
        a.dtype.category == FLOAT and b.dtype.category == FLOAT and bfloat16 not in (a.dtype, b.dtype),
        lambda: f"Expected both inputs to be Half, Float or Double tensors but got {a.dtype} and {b.dtype}",
    )
    check(
        a.dtype is b.dtype,
        lambda: f"Expected object of scalar type {a.dtype} but got scalar type {b.dtype} for second argument",
    )
    return TensorProxy(like=elementwise_meta(name, a, b), dtype=corresponding_complex_dtype(a.dtype))


@prim(torch="torch.complex", tags=ELEMENTWISE)
def complex(a: TensorProxy, b: TensorProxy, /) -> TensorProxy:
    """Return the complex numbers with real parts `a` and imaginary parts `b`."""
    return _parts_meta("complex", a, b)


@complex.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return real(g), imag(g)


@prim(torch="torch.polar", tags=ELEMENTWISE)
def polar(a: TensorProxy, b: TensorProxy, /) -> TensorProxy:
    """Return the complex numbers with absolute values `a` and angles `b`."""
    return _parts_meta("polar", a, b)


@polar.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    back = g.conj()
    return real(back * out.sgn()), real(back * (out * 1j))


def _float_pairs(make: MakeTensor) -> Any:
    # The samples have all dtypes that parts of complex numbers can have, for every tested dtype.
    for dtype in (float32, float64):
        yield SampleInput(make((4, 4), dtype=dtype), make((4, 4), dtype=dtype))
    for shape in ((), (0, 3), (8, 3, 5)):
        yield SampleInput(make(shape, dtype=float32), make(shape, dtype=float32))
    yield SampleInput(make((5, 3), dtype=float32).mT, make((1, 5), dtype=float32).expand(3, 5))


def _wrong_pairs(make: MakeTensor) -> Any:
    a, b, c = make((3,), dtype=float32), make((3,), dtype=float64), make((3,), dtype=bfloat16)
    yield SampleInput(a, b), RuntimeError, "Expected object of scalar type"
    yield SampleInput(c, c), RuntimeError, "Expected both inputs to be Half, Float or Double tensors"


for _prim in (complex, polar):
    _prim.samples(_float_pairs)
    _prim.errors(_wrong_pairs)
