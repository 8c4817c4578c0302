# SPDX-License-Identifier: Apache-2.0
"""Primitives that reduce dimensions of a tensor.

`dims` is a tuple of different, non-negative dimensions, which is empty only for a 0-d tensor. The reduced dimensions
are removed, and the result has the input's dtype. The functions of `thunder.clang` add `keepdim` and dtype promotion.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.batch_rules import along_dim, over_dims
from thunder.core.prims.creation import full
from thunder.core.prims.shape import broadcast_in_dim, cat
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import NON_DIFFERENTIABLE, OpTags

_TAGS = (OpTags.REDUCTION_OP,)


def _reduction_meta(name: str, a: TensorProxy, dims: Sequence[int], dtype: dtypes.dtype | None = None) -> TensorProxy:
    check(isinstance(a, TensorProxy), lambda: f"{name} expects a tensor, not {type(a).__name__}", TypeError)
    check(
        bool(dims) or a.ndim == 0,
        lambda: f"{name}: no dimensions to reduce were given for a tensor of shape {a.shape}: pass at least one",
        ValueError,
    )
    for i, d in enumerate(dims):
        check(
            0 <= d < a.ndim and d not in tuple(dims)[:i],
            lambda: f"{name}: {tuple(dims)} are not different dimensions of a tensor of shape {a.shape}",
            IndexError,
        )
    return TensorProxy(like=a, shape=tuple(n for d, n in enumerate(a.shape) if d not in dims), dtype=dtype)


def _check_not_bool(name: str, a: TensorProxy) -> None:
    done = {"sum": "summed", "prod": "multiplied"}[name]
    check(
        not dtypes.is_boolean_dtype(a.dtype),
        lambda: f"{name}: bool tensors are {done} as integers: convert the tensor first",
        TypeError,
    )


def _check_ordered(name: str, a: TensorProxy) -> None:
    if dtypes.is_complex_dtype(a.dtype):
        raise NotImplementedError(f'"{name}" not implemented for {a.dtype}: complex numbers have no order')


def _check_not_empty(name: str, a: TensorProxy, dims: Sequence[int]) -> None:
    for d in dims:
        check(a.shape[d] != 0, lambda: f"{name}(): Expected reduction dim {d} to have non-zero size.", IndexError)


def _restored(x: Any, like: Any, dims: Sequence[int]) -> Any:
    """Expand a reduced tensor along the dimensions that were reduced."""
    kept = tuple(d for d in range(like.ndim) if d not in dims)
    return broadcast_in_dim(x, list(like.shape), kept)


def _count(a: Any, dims: Sequence[int]) -> int:
    return math.prod(a.shape[d] for d in dims)


def _samples(make: MakeTensor, *, empty: bool = True, **options: Any) -> Any:
    for shape, dims in (((4, 4), (0, 1)), ((4, 4), (1,)), ((2, 3, 4), (0, 2)), ((), ()), ((5, 1, 3), (1,))):
        yield SampleInput(make(shape), dims, **options)
    if empty:
        yield SampleInput(make((0, 3)), (0,), **options)
    yield SampleInput(make((0, 3)), (1,), **options)
    yield SampleInput(make((5, 3)).mT, (0,), **options)
    yield SampleInput(make((4, 1)).expand(4, 3), (1,), **options)


@prim(tags=_TAGS)
def sum(a: TensorProxy, dims: Sequence[int], /) -> TensorProxy:
    """Return the sum over `dims`, with the dtype of `a`."""
    _check_not_bool("sum", a)
    return _reduction_meta("sum", a, dims)


@sum.vjp
def _(g: Any, out: Any, a: Any, dims: Any) -> Any:
    return _restored(g, a, dims)


sum.batch(over_dims(sum))


sum.samples(_samples)


@prim(tags=_TAGS)
def prod(a: TensorProxy, dims: Sequence[int], /) -> TensorProxy:
    """Return the product over `dims`, with the dtype of `a`."""
    _check_not_bool("prod", a)
    return _reduction_meta("prod", a, dims)


@prod.vjp
def _(g: Any, out: Any, a: Any, dims: Any) -> Any:
    # The product of the other elements, as a product of the elements before and those after each element. Unlike a
    # division, it is correct for zeros, and its own gradient is correct too.
    if not dims:
        return g
    kept = tuple(d for d in range(a.ndim) if d not in dims)
    order = (*kept, *dims)
    rows = a.permute(order).reshape((*[a.shape[d] for d in kept], _count(a, dims)))
    if rows.shape[-1] == 0:
        return a * 0
    before = _product_of_earlier(rows)
    after = _product_of_earlier(rows.flip((-1,))).flip((-1,))
    others = before * after
    if dtypes.is_complex_dtype(a.dtype):
        others = others.conj()
    grad = (g.unsqueeze(-1) * others).reshape(tuple(a.shape[d] for d in order))
    return grad.permute(tuple(order.index(d) for d in range(a.ndim)))


def _product_of_earlier(rows: Any) -> Any:
    ones = full((*rows.shape[:-1], 1), 1, device=rows.device, dtype=rows.dtype)
    return cat([ones, rows[..., :-1]], rows.ndim - 1).cumprod(-1)


prod.batch(over_dims(prod))


@prod.samples
def _(make: MakeTensor) -> Any:
    # Small numbers, whose products are in the range of half precision.
    yield from _samples(functools.partial(make, low=-2, high=3))  # type: ignore[arg-type]
    zeros = make((3, 5))
    for row, count in ((0, 1), (1, 2)):
        zeros.detach()[row, :count] = 0
    yield SampleInput(zeros, (1,))


def _extremum_meta(name: str, a: TensorProxy, dims: Sequence[int], dtype: dtypes.dtype | None = None) -> TensorProxy:
    _check_ordered(name, a)
    out = _reduction_meta(name, a, dims, dtype)
    _check_not_empty(name, a, dims)
    return out


def _extremum_vjp(g: Any, out: Any, a: Any, dims: Any) -> Any:
    # If several elements equal the result, they share the gradient.
    mask = a == _restored(out, a, dims)
    share = g / mask.sum(dims) if dims else g
    return _restored(share, a, dims) * mask


@prim(torch="torch.amax", tags=_TAGS)
def amax(a: TensorProxy, dims: Sequence[int], /) -> TensorProxy:
    """Return the largest element over `dims`, or NaN if an element is NaN."""
    return _extremum_meta("amax", a, dims)


@prim(torch="torch.amin", tags=_TAGS)
def amin(a: TensorProxy, dims: Sequence[int], /) -> TensorProxy:
    """Return the smallest element over `dims`, or NaN if an element is NaN."""
    return _extremum_meta("amin", a, dims)


def _extremum_samples(make: MakeTensor) -> Any:
    yield from _samples(make, empty=False)
    yield SampleInput(make((3, 4), low=0, high=2), (1,))


for _sym in (amax, amin):
    _sym.vjp(_extremum_vjp)
    _sym.batch(over_dims(_sym))
    _sym.samples(_extremum_samples)


@prim(torch="torch.argmax", tags=(*_TAGS, NON_DIFFERENTIABLE))
def argmax(a: TensorProxy, dim: int, /) -> TensorProxy:
    """Return the index along `dim` of the largest element; of equal elements, the first."""
    return _extremum_meta("argmax", a, () if a.ndim == 0 else (dim,), dtypes.int64)


@prim(torch="torch.argmin", tags=(*_TAGS, NON_DIFFERENTIABLE))
def argmin(a: TensorProxy, dim: int, /) -> TensorProxy:
    """Return the index along `dim` of the smallest element; of equal elements, the first."""
    return _extremum_meta("argmin", a, () if a.ndim == 0 else (dim,), dtypes.int64)


def _index_samples(make: MakeTensor) -> Any:
    for shape, dim in (((4, 4), 1), ((2, 3, 4), 0), ((), 0), ((0, 3), 1), ((4, 1), 0)):
        yield SampleInput(make(shape), dim)


for _sym in (argmax, argmin):
    _sym.batch(along_dim(_sym))
    _sym.samples(_index_samples)


def _check_inexact(name: str, a: TensorProxy) -> None:
    check(
        dtypes.is_inexact_dtype(a.dtype),
        lambda: f"{name}: std and var only support floating point and complex dtypes, but got {a.dtype}",
    )


def _var_grad(g: Any, a: Any, dims: Any, correction: Any) -> Any:
    freedom = _count(a, dims) - correction
    scale = 2.0 / freedom if freedom else math.inf
    mean = a.mean(dims, keepdim=True)
    return _restored(g * scale, a, dims) * (a - mean)


@prim(tags=_TAGS)
def var(a: TensorProxy, dims: Sequence[int], /, *, correction: float) -> TensorProxy:
    """Return the variance over `dims`: the sum of squared deviations, divided by the count minus `correction`."""
    _check_inexact("var", a)
    return _reduction_meta("var", a, dims, dtypes.corresponding_real_dtype(a.dtype))


@var.vjp
def _(g: Any, out: Any, a: Any, dims: Any, *, correction: Any) -> Any:
    return _var_grad(g, a, dims, correction)


@prim(tags=_TAGS)
def var_mean(a: TensorProxy, dims: Sequence[int], /, *, correction: float) -> tuple[TensorProxy, TensorProxy]:
    """Return the variance and the mean over `dims`, in one pass."""
    _check_inexact("var_mean", a)
    variance = _reduction_meta("var_mean", a, dims, dtypes.corresponding_real_dtype(a.dtype))
    return variance, TensorProxy(like=variance, dtype=a.dtype)


@var_mean.vjp
def _(g: Any, out: Any, a: Any, dims: Any, *, correction: Any) -> Any:
    of_var, of_mean = g
    return _var_grad(of_var, a, dims, correction) + _restored(of_mean / max(_count(a, dims), 1), a, dims)


def _var_samples(make: MakeTensor) -> Any:
    for correction in (1, 0, 0.5):
        yield from _samples(make, empty=False, correction=correction)


for _sym in (var, var_mean):
    _sym.batch(over_dims(_sym))
    _sym.samples(_var_samples)
