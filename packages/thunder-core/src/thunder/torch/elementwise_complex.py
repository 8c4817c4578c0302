# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language on complex numbers and their parts."""

from __future__ import annotations

from typing import Any

import torch

from thunder import clang
from thunder.core import prims
from thunder.core.dtypes import float32, float64, is_complex_dtype
from thunder.core.prims.elementwise_base import unary_samples
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.base import torchsymbol
from thunder.torch.elementwise_base import ELEMENTWISE

_VIEW = (*ELEMENTWISE, OpTags.VIEW_OP)


@torchsymbol(torch.real, is_property=True, tags=_VIEW, returns_input=True)
def real(input: Any) -> Any:
    """Return the real part of `input`, or `input` itself if it is real."""
    return clang.real(input)


@real.view_scatter
def _(base: Any, new: Any) -> Any:
    return prims.complex(new, prims.imag(base)) if is_complex_dtype(base.dtype) else new


@torchsymbol(torch.imag, is_property=True, tags=_VIEW)
def imag(input: Any) -> Any:
    """Return the imaginary part of a complex tensor."""
    return prims.imag(input)


@imag.view_scatter
def _(base: Any, new: Any) -> Any:
    return prims.complex(prims.real(base), new)


@torchsymbol(torch.conj, tags=_VIEW, returns_input=True)
def conj(input: Any) -> Any:
    """Return the complex conjugate of `input`, or `input` itself if it is real."""
    return clang.conj(input)


@conj.view_scatter
def _(base: Any, new: Any) -> Any:
    return clang.conj(new)


@torchsymbol(torch.conj_physical, tags=ELEMENTWISE)
def conj_physical(input: Any) -> Any:
    """Return the complex conjugate of `input` in new memory."""
    return clang.conj(input)


@torchsymbol(torch.resolve_conj, tags=_VIEW, executed_by_torch=False, returns_input=True)
def resolve_conj(input: Any) -> Any:
    """Return `input`, but perform a conjugation that torch has deferred."""
    return input


@torchsymbol(torch.resolve_neg, tags=_VIEW, executed_by_torch=False, returns_input=True)
def resolve_neg(input: Any) -> Any:
    """Return `input`, but perform a negation that torch has deferred."""
    return input


@resolve_conj.view_scatter
def _(base: Any, new: Any) -> Any:
    return new


@resolve_neg.view_scatter
def _(base: Any, new: Any) -> Any:
    return new


for _op in (real, conj, conj_physical, resolve_conj, resolve_neg):
    _op.samples(unary_samples())


imag.samples_of(prims.imag)


@torchsymbol(torch.complex, tags=ELEMENTWISE)
def complex(real: Any, imag: Any) -> Any:
    """Return complex numbers with the given real and imaginary parts."""
    return prims.complex(*clang.maybe_broadcast(real, imag))


@torchsymbol(torch.polar, tags=ELEMENTWISE, autocast={"cpu": "float32"})
def polar(abs: Any, angle: Any) -> Any:
    """Return complex numbers with the given absolute values and angles."""
    return prims.polar(*clang.maybe_broadcast(abs, angle))


def _parts_samples(make: MakeTensor) -> Any:
    for dtype in (float32, float64):
        yield SampleInput(make((4, 4), dtype=dtype), make((4, 4), dtype=dtype))
    for a, b in (((), ()), ((0, 3), (3,)), ((4, 1), (3,)), ((2, 3), ())):
        yield SampleInput(make(a, dtype=float32), make(b, dtype=float32))
    yield SampleInput(make((5, 3), dtype=float32).mT, make((3, 5), dtype=float32))


for _op in (complex, polar):
    _op.samples_of(prims.complex)
    _op.samples(_parts_samples)
