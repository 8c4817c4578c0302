# SPDX-License-Identifier: Apache-2.0
"""Primitives that read or write elements at index positions along one dimension: gather and the scatters."""

from __future__ import annotations

from typing import Any

from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.batch_rules import at_positions
from thunder.core.prims.indexing import INDEX_DTYPES, distinct_positions, positions, sizes_of
from thunder.core.prims.metas import canonicalize_dim, check_same_device, is_number
from thunder.core.prims.shape import pad, reshape
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import same_shape

_SHAPE = (OpTags.SHAPE_OP,)
SCATTER_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def _check_gathered(name: str, a: TensorProxy, dim: int, index: TensorProxy, self_name: str) -> None:
    check(index.dtype in INDEX_DTYPES, lambda: f"{name}(): Expected dtype int32/int64 for index")
    if 0 in index.shape:
        return
    ours, theirs = sizes_of(a), sizes_of(index)
    check(
        len(ours) == len(theirs),
        lambda: f"Index tensor must have the same number of dimensions as {self_name} tensor",
    )
    for d, (n, m) in enumerate(zip(ours, theirs)):
        if d != dim and m > n:
            raise RuntimeError(
                f"{name}(): Size does not match at dimension {d} expected index {list(index.shape)} to be no larger "
                f"than self {list(a.shape)} apart from dimension {dim}"
            )


@prim(torch="torch.gather", tags=_SHAPE)
def gather(a: TensorProxy, dim: int, index: TensorProxy, /) -> TensorProxy:
    """Return the elements of `a` at `index` along `dim`, e.g. `a[index[i, j], j]` at (i, j) for dim 0."""
    dim = canonicalize_dim(a.ndim, dim)
    check_same_device("gather", a, index)
    _check_gathered("gather", a, dim, index, "input")
    return TensorProxy(like=a, shape=index.shape)


@gather.vjp
def _(g: Any, out: Any, a: Any, dim: Any, index: Any) -> Any:
    return scatter_add(g.new_zeros(a.shape), dim, index, g), None, None


gather.batch(at_positions(gather))


@gather.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), 0, positions(make, (2, 3), 4))
    yield SampleInput(make((4, 3)), -1, positions(make, (2, 5), 3))
    yield SampleInput(make(()), 0, positions(make, (), 1))
    yield SampleInput(make((4, 3)), 1, positions(make, (4, 0), 3))
    yield SampleInput(make((3, 4)).mT, 0, positions(make, (3, 4), 4).mT[:, :3])


@gather.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), 0, positions(make, (2,), 4)), RuntimeError, "same number of dimensions as input"
    yield SampleInput(make((4, 3)), 0, positions(make, (2, 5), 4)), RuntimeError, "Size does not match at dimension 1"
    yield SampleInput(make((4, 3)), 2, positions(make, (2, 3), 3)), IndexError, "Dimension out of range"


def _check_scattered(a: TensorProxy, dim: int, index: TensorProxy, src: Any) -> None:
    _check_gathered("scatter", a, dim, index, "self")
    if not isinstance(src, TensorProxy):
        kind = type(src).__name__
        check(is_number(src), lambda: f"scatter(): src must be a tensor or a number, not {kind}", TypeError)
        return
    check(a.dtype is src.dtype, lambda: "scatter(): Expected self.dtype to be equal to src.dtype")
    check_same_device("scatter", a, index, src)
    theirs, given = sizes_of(index), sizes_of(src)
    check(
        0 in index.shape or (len(theirs) == len(given) and all(m <= n for m, n in zip(theirs, given))),
        lambda: (
            f"Expected index {list(index.shape)} to be no larger than self {list(a.shape)} apart from dimension "
            f"{dim} and to be no larger size than src {list(src.shape)}"
        ),
    )


def _written(g: TensorProxy, dim: int, index: TensorProxy, src: TensorProxy) -> TensorProxy:
    """Return the gradient of `src`: `g` at `index`, and zeros for elements of `src` that were not written."""
    found = gather(g, dim, index)
    if found.ndim == src.ndim and not same_shape(found.shape, src.shape):
        return pad(found, 0, tuple([(0, n - m, 0) for n, m in zip(src.shape, found.shape)]))  # type: ignore[no-any-return]
    return found if same_shape(found.shape, src.shape) else reshape(found, src.shape)  # type: ignore[no-any-return]


@prim(torch="torch.scatter", tags=_SHAPE)
def scatter(a: TensorProxy, dim: int, index: TensorProxy, src: Any, /) -> TensorProxy:
    """Return a copy of `a` in which `src` (a tensor or a number) is written at `index`, the reverse of `gather`."""
    dim = canonicalize_dim(a.ndim, dim)
    check_same_device("scatter", a, index)
    _check_scattered(a, dim, index, src)
    return TensorProxy(like=a)


@scatter.vjp
def _(g: Any, out: Any, a: Any, dim: Any, index: Any, src: Any) -> Any:
    return scatter(g, dim, index, 0), None, None, _written(g, dim, index, src) if isinstance(src, TensorProxy) else None


scatter.batch(at_positions(scatter))


@scatter.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), 0, distinct_positions(make, (4, 3), 0), make((4, 3)))
    yield SampleInput(make((4, 5)), 1, distinct_positions(make, (2, 5), 1), make((2, 5)))
    yield SampleInput(make((4, 3)), -2, positions(make, (2, 3), 4), 2)
    yield SampleInput(make(()), 0, positions(make, (), 1), make(()))
    yield SampleInput(make((4, 3)), 0, positions(make, (0, 3), 4), make((0, 3)))


@scatter.errors
def _(make: MakeTensor) -> Any:
    index = positions(make, (2, 3), 2)
    yield SampleInput(make((4, 3)), 0, index, make((1, 3))), RuntimeError, "no larger size than src"
    yield SampleInput(make((4, 3)), 0, positions(make, (2,), 2), make((2,))), RuntimeError, "same number of dimensions"
    other = make((2, 3), dtype=dtypes.float64)
    yield SampleInput(make((4, 3)), 0, index, other), RuntimeError, "Expected self.dtype to be equal"


@prim(torch="torch.scatter_add", tags=_SHAPE)
def scatter_add(a: TensorProxy, dim: int, index: TensorProxy, src: TensorProxy, /) -> TensorProxy:
    """Return a copy of `a` in which the elements of `src` are added at `index`."""
    dim = canonicalize_dim(a.ndim, dim)
    check(isinstance(src, TensorProxy), lambda: "scatter_add(): src must be a tensor", TypeError)
    _check_scattered(a, dim, index, src)
    return TensorProxy(like=a)


@scatter_add.vjp
def _(g: Any, out: Any, a: Any, dim: Any, index: Any, src: Any) -> Any:
    return g, None, None, _written(g, dim, index, src)


scatter_add.batch(at_positions(scatter_add))


@scatter_add.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), 0, positions(make, (5, 3), 4), make((5, 3)))
    yield SampleInput(make((4, 5)), 1, positions(make, (2, 3), 5), make((2, 3)))
    yield SampleInput(make(()), 0, positions(make, (), 1), make(()))
    yield SampleInput(make((4, 3)), -1, positions(make, (4, 0), 3), make((4, 0)))


@scatter_add.errors
def _(make: MakeTensor) -> Any:
    a, index = make((4, 3)), positions(make, (2, 3), 2)
    yield SampleInput(a, 0, index, make((1, 3))), RuntimeError, "no larger size than src"


@prim(torch="torch.scatter_reduce", tags=_SHAPE)
def scatter_reduce(
    a: TensorProxy, dim: int, index: TensorProxy, src: TensorProxy, reduce: str, /, *, include_self: bool = True
) -> TensorProxy:
    """Return a copy of `a` in which the elements of `src` with the same `index` are reduced.

    `reduce` is sum, prod, mean, amax or amin. With `include_self`, the element of `a` is reduced with them.
    """
    dim = canonicalize_dim(a.ndim, dim)
    check(
        reduce in SCATTER_REDUCTIONS,
        lambda: f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}.",
    )
    _check_scattered(a, dim, index, src)
    return TensorProxy(like=a)


@scatter_reduce.vjp
def _(g: Any, out: Any, a: Any, dim: Any, index: Any, src: Any, reduce: Any, *, include_self: Any = True) -> Any:
    if reduce in ("amax", "amin"):
        grad_a, grad_src = _extremum_grads(g, out, a, dim, index, src, include_self)
    elif reduce == "prod":
        grad_a, grad_src = _product_grads(g, a, dim, index, src, include_self)
    else:
        if reduce == "mean":
            ones = a.new_ones(a.shape) if include_self else scatter(a.new_ones(a.shape), dim, index, 0)
            count = scatter_add(ones, dim, index, src.new_ones(src.shape))
            g = g / count.masked_fill(count == 0, 1)
        grad_a, grad_src = g, _written(g, dim, index, src)
    if not include_self:
        grad_a = scatter(grad_a, dim, index, 0)
    return grad_a, None, None, grad_src, None


def _extremum_grads(g: Any, out: Any, a: Any, dim: Any, index: Any, src: Any, include_self: bool) -> Any:
    # All elements that equal the result share the gradient.
    from_a = (a == out).to(g.dtype)
    if not include_self:
        from_a = scatter(from_a, dim, index, 0)
    from_src = (src == _written(out, dim, index, src)).to(g.dtype)
    count = scatter_add(from_a, dim, index, from_src)
    share = g / count.masked_fill(count == 0, 1)
    return from_a * share, from_src * _written(share, dim, index, src)


def _product_grads(g: Any, a: Any, dim: Any, index: Any, src: Any, include_self: bool) -> Any:
    # The gradient of a factor is g times the product of the other factors. If exactly one factor is zero, only its
    # gradient can differ from zero: g times the product of the nonzero factors. With two zeros, all gradients are zero.
    start = a if include_self else scatter(a, dim, index, 1)
    zeros_a, zeros_src = start == 0, src == 0
    nonzero = scatter_reduce(
        start.masked_fill(zeros_a, 1), dim, index, src.masked_fill(zeros_src, 1), "prod", include_self=True
    )
    zeros = scatter_add(zeros_a.to(g.dtype), dim, index, zeros_src.to(g.dtype))

    def share(x: Any, is_zero: Any, product: Any, count: Any, grad: Any) -> Any:
        others = count - is_zero.to(grad.dtype)
        return (grad * product.conj() / x.masked_fill(is_zero, 1).conj()).masked_fill(others != 0, 0)

    at_src = [_written(x, dim, index, src) for x in (nonzero, zeros, g)]
    return share(start, zeros_a, nonzero, zeros, g), share(src, zeros_src, *at_src)


scatter_reduce.batch(at_positions(scatter_reduce))


@scatter_reduce.samples
def _(make: MakeTensor) -> Any:
    for reduce in SCATTER_REDUCTIONS:
        for include_self in (True, False):
            index = positions(make, (5, 3), 4)
            yield SampleInput(make((4, 3)), 0, index, make((5, 3)), reduce, include_self=include_self)
    yield SampleInput(make((2, 4)), 1, positions(make, (2, 3), 4), make((2, 3)), "sum")
    yield SampleInput(make((2, 4)), -1, positions(make, (2, 0), 4), make((2, 0)), "amax")


@scatter_reduce.errors
def _(make: MakeTensor) -> Any:
    index = positions(make, (2, 3), 2)
    yield SampleInput(make((4, 3)), 0, index, make((2, 3)), "max"), RuntimeError, "reduce argument must be either"
