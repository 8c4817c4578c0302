# SPDX-License-Identifier: Apache-2.0
"""Elementwise primitives: equal shapes and dtypes in, the same out. Broadcasting and promotion are clang's."""

from __future__ import annotations

from typing import Any

from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.autodiff import zero_vjp
from thunder.core.prims.base import prim
from thunder.core.prims.metas import elementwise_meta
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_binary, elementwise_unary
from thunder.core.symbol import NON_DIFFERENTIABLE, OpTags

_TAGS = (OpTags.ELEMENTWISE_OP,)


@prim(torch="torch.neg", tags=_TAGS)
def neg(a: TensorProxy, /) -> TensorProxy:
    """Minus each element."""
    return elementwise_meta("neg", a)


@neg.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return -g


@neg.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)


@prim(torch="torch.exp", tags=_TAGS)
def exp(a: TensorProxy, /) -> TensorProxy:
    """e to the power of each element."""
    return elementwise_meta("exp", a)


@exp.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    return g * out.conj() if dtypes.is_complex_dtype(a.dtype) else g * out


@exp.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)


@prim(torch="torch.add", tags=_TAGS)
def add(a: Any, b: Any, /) -> TensorProxy:
    """The sum of `a` and `b`."""
    return elementwise_meta("add", a, b)


@add.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return g, g


@add.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_binary(make)


@prim(torch="torch.sub", tags=_TAGS)
def sub(a: Any, b: Any, /) -> TensorProxy:
    """`a` minus `b`."""
    return elementwise_meta("sub", a, b)


@sub.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return g, -g


@sub.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_binary(make)


@prim(torch="torch.mul", tags=_TAGS)
def mul(a: Any, b: Any, /) -> TensorProxy:
    """`a` times `b`."""
    return elementwise_meta("mul", a, b)


@mul.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return _conj(b) * g, _conj(a) * g


@mul.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_binary(make)


def _conj(x: Any) -> Any:
    if isinstance(x, TensorProxy):
        return x.conj() if dtypes.is_complex_dtype(x.dtype) else x
    return x.conjugate() if isinstance(x, complex) else x


@prim(torch="torch.eq", tags=(*_TAGS, NON_DIFFERENTIABLE))
def eq(a: Any, b: Any, /) -> TensorProxy:
    """Where `a` equals `b`."""
    return elementwise_meta("eq", a, b, out_dtype=dtypes.bool8)


@eq.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_binary(make)


@prim(torch="torch.floor", tags=_TAGS)
def floor(a: TensorProxy, /) -> TensorProxy:
    """The largest integer not above each element."""
    return elementwise_meta("floor", a)


floor.vjp(zero_vjp)


@floor.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)


@prim(torch="torch.where", tags=_TAGS)
def where(pred: TensorProxy, a: Any, b: Any, /) -> TensorProxy:
    """`a` where `pred` is true, else `b`."""
    check(
        pred.dtype is dtypes.bool8,
        lambda: f"where expected condition to be a boolean tensor, but got a tensor with dtype {pred.dtype}",
    )
    check(pred.shape == getattr(a, "shape", pred.shape) == getattr(b, "shape", pred.shape), lambda: "where: shapes differ")
    tensors = [x for x in (a, b) if isinstance(x, TensorProxy)]
    check(bool(tensors), lambda: "where: of the two values at least one must be a tensor", TypeError)
    return elementwise_meta("where", a, b)


@where.vjp
def _(g: Any, out: Any, pred: Any, a: Any, b: Any) -> Any:
    return None, where(pred, g, 0.0), where(pred, 0.0, g)


@where.samples
def _(make: MakeTensor) -> Any:
    for shape in ((4, 4), (), (0, 3)):
        yield SampleInput(make(shape) > 0, make(shape), make(shape))
