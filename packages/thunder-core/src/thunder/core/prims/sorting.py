# SPDX-License-Identifier: Apache-2.0
"""Primitives that sort or select the elements along a dimension by their order."""

from __future__ import annotations

from typing import Any

from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.prims.scattering import scatter, scatter_add
from thunder.core.prims.shape import reshape
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags

_TAGS = (OpTags.SHAPE_OP,)


def distinct_values(make: MakeTensor, *shape: int) -> Any:
    """Return a sample without equal elements, because the order of equal elements is not defined."""
    like = make(())
    count = 1
    for n in shape:
        count *= n
    values = make((count,), dtype=dtypes.float32, requires_grad=False).argsort().reshape(shape)
    if like.dtype.is_signed:
        values = values - count // 2
    return values.to(like.dtype).requires_grad_(like.requires_grad)


def _check_ordered(name: str, a: TensorProxy) -> None:
    check(
        not dtypes.is_complex_dtype(a.dtype),
        lambda: f"{name}: complex numbers have no order; {a.name} is a tensor of {a.dtype}",
    )


@prim(tags=_TAGS)
def sort(
    a: TensorProxy, dim: int = -1, descending: bool = False, stable: bool = False, /
) -> tuple[TensorProxy, TensorProxy]:
    """Return the elements sorted along `dim`, and their original positions. NaN is larger than every number."""
    canonicalize_dim(a.ndim, dim)
    _check_ordered("sort", a)
    return TensorProxy(like=a), TensorProxy(like=a, dtype=dtypes.int64)


@sort.vjp
def _(g: Any, out: Any, a: Any, dim: Any = -1, descending: Any = False, stable: Any = False) -> Any:
    # scatter is deterministic here: each position is written once.
    return scatter(g[0].new_zeros(a.shape), dim, out[1], g[0])


@sort.batch
def _(b: Any, a: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    return sort(b.at_least_1d(a), b.dim(a, dim), descending, stable)


@sort.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(distinct_values(make, 4, 5))
    yield SampleInput(distinct_values(make, 4, 5), 0, True)
    yield SampleInput(distinct_values(make, 2, 3, 4), 1, False, True)
    yield SampleInput(distinct_values(make))
    yield SampleInput(make((0, 3)), 0)
    yield SampleInput(distinct_values(make, 4, 5).mT, -1, True)


@sort.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 2), IndexError, "Dimension out of range"
    yield SampleInput(make((3,), dtype=dtypes.complex64)), RuntimeError, "complex numbers have no order"


@prim(torch="torch.topk", tags=_TAGS)
def topk(
    a: TensorProxy, /, k: int, dim: int | None = None, largest: bool = True, sorted: bool = True, *, out: Any = None
) -> tuple[TensorProxy, TensorProxy]:
    """Return the `k` largest (or smallest) elements along `dim` (default: the last one), and their positions."""
    check(out is None, lambda: "topk: only out=None is supported; use the returned tensors")
    dim = canonicalize_dim(a.ndim, -1 if dim is None else dim)
    _check_ordered("topk", a)
    length = a.shape[dim] if a.ndim else 1
    check(0 <= k <= length, lambda: f"selected index k out of range: k is {k}, dimension {dim} has {length} elements")
    shape = (*a.shape[:dim], k, *a.shape[dim + 1 :]) if a.ndim else ()
    return TensorProxy(like=a, shape=shape), TensorProxy(like=a, shape=shape, dtype=dtypes.int64)


@topk.vjp
def _(g: Any, out: Any, a: Any, k: Any, dim: Any = None, *_: Any, **__: Any) -> Any:
    return scatter_add(g[0].new_zeros(a.shape), -1 if dim is None else dim, out[1], g[0])


@topk.batch
def _(b: Any, a: Any, k: Any, dim: Any = None, largest: bool = True, sorted: bool = True) -> Any:
    return topk(b.at_least_1d(a), k, b.dim(a, -1 if dim is None else dim), largest, sorted)


@topk.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(distinct_values(make, 4, 6), 3)
    yield SampleInput(distinct_values(make, 4, 6), 2, 0)
    yield SampleInput(distinct_values(make, 4, 6), 4, -1, False)
    yield SampleInput(distinct_values(make, 4, 6), 6, -1, True, True)
    yield SampleInput(distinct_values(make), 1)
    yield SampleInput(distinct_values(make, 4, 6), 0, 1)
    yield SampleInput(distinct_values(make, 6, 4).mT, 2, 1)


@topk.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 4), RuntimeError, "selected index k out of range"
    yield SampleInput(make((2, 3)), 1, 2), IndexError, "Dimension out of range"


@prim(torch="torch.kthvalue", tags=_TAGS)
def kthvalue(a: TensorProxy, k: int, dim: int, /) -> tuple[TensorProxy, TensorProxy]:
    """Return the `k`-th smallest element along `dim`, counted from 1, and its position; `dim` is removed."""
    dim = canonicalize_dim(a.ndim, dim)
    length = a.shape[dim] if a.ndim else 1
    check(length > 0, lambda: f"kthvalue(): Expected reduction dim {dim} to have non-zero size.", IndexError)
    check(0 < k <= length, lambda: f"kthvalue(): selected number k out of range for dimension {dim}")
    shape = (*a.shape[:dim], *a.shape[dim + 1 :])
    return TensorProxy(like=a, shape=shape), TensorProxy(like=a, shape=shape, dtype=dtypes.int64)


@kthvalue.vjp
def _(g: Any, out: Any, a: Any, k: Any, dim: Any) -> Any:
    if a.ndim == 0:
        return g[0]
    dim = canonicalize_dim(a.ndim, dim)
    kept = (*a.shape[:dim], 1, *a.shape[dim + 1 :])
    return scatter(g[0].new_zeros(a.shape), dim, reshape(out[1], kept), reshape(g[0], kept))


@kthvalue.batch
def _(b: Any, a: Any, k: Any, dim: Any) -> Any:
    return kthvalue(b.at_least_1d(a), k, b.dim(a, dim))


@kthvalue.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(distinct_values(make, 4, 6), 3, 1)
    yield SampleInput(distinct_values(make, 4, 6), 2, 0)
    yield SampleInput(make(()), 1, -1)
    yield SampleInput(distinct_values(make, 6, 4).mT, 4, -1)


@kthvalue.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 4, 1), RuntimeError, r"kthvalue\(\): selected number k out of range for dimension 1"
    yield SampleInput(make((2, 0)), 1, 1), IndexError, "to have non-zero size"
