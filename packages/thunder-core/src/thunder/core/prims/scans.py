# SPDX-License-Identifier: Apache-2.0
"""Scans along a dimension: each element of the result is a reduction of all elements up to its position.

The result has the input's dtype. The core language promotes the input before it calls a scan.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.batch_rules import along_dim
from thunder.core.prims.metas import canonicalize_dim, check_same_device
from thunder.core.prims.scattering import scatter_add
from thunder.core.prims.shape import flip, pad
from thunder.core.prims.sorting import distinct_values
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import equal_shapes

_TAGS = (OpTags.REDUCTION_OP,)


def _scan_meta(a: TensorProxy, dim: int) -> TensorProxy:
    canonicalize_dim(a.ndim, dim)
    return TensorProxy(like=a)


def _from_the_end(scan: Any, x: TensorProxy, dim: int) -> TensorProxy:
    """Return the scan in the reverse direction, which starts at the end of `dim`."""
    if x.ndim == 0:
        return scan(x, dim)  # type: ignore[no-any-return]
    return flip(scan(flip(x, (dim,)), dim), (dim,))  # type: ignore[no-any-return]


def scan_samples(make: MakeTensor, **domain: Any) -> Any:
    """Yield samples of an operation along a dimension; `domain` contains the bounds low= and high= of the values."""
    yield SampleInput(make((4, 5), **domain), 1)
    yield SampleInput(make((2, 4, 3), **domain), -2)
    yield SampleInput(make((), **domain), 0)
    yield SampleInput(make((0, 3), **domain), 0)
    yield SampleInput(make((5, 3), **domain).mT, 1)


def wrong_dims(make: MakeTensor) -> Any:
    """Yield the error of an operation along a dimension that the tensor does not have."""
    yield SampleInput(make((2, 3)), 2), IndexError, "Dimension out of range"


@prim(tags=_TAGS)
def cumsum(a: TensorProxy, dim: int, /) -> TensorProxy:
    """Return, for each position along `dim`, the sum of the elements up to it."""
    return _scan_meta(a, dim)


@cumsum.vjp
def _(g: Any, out: Any, a: Any, dim: Any) -> Any:
    return _from_the_end(cumsum, g, dim)


@prim(tags=_TAGS)
def cumprod(a: TensorProxy, dim: int, /) -> TensorProxy:
    """Return, for each position along `dim`, the product of the elements up to it."""
    return _scan_meta(a, dim)


@cumprod.vjp
def _(g: Any, out: Any, a: Any, dim: Any) -> Any:
    if a.ndim == 0:
        return g
    # The gradient of element k is the product of the elements before k, times `rest[k]`. The recurrence
    # `rest[k] = g[k] + a[k + 1] * rest[k + 1]` is solved in steps of doubling length. No division is used, so that
    # gradients are also correct for zeros, including gradients of higher order.
    if 0 in a.shape:
        return g
    a = a.conj() if dtypes.is_complex_dtype(a.dtype) else a
    dim = canonicalize_dim(a.ndim, dim)
    before = cumprod(_shifted(a, 1, dim, -1), dim)
    factor, rest, step = _shifted(a, 0, dim, 1), g, 1
    while step < a.shape[dim]:
        rest = rest + factor * _shifted(rest, 0, dim, step)
        factor = factor * _shifted(factor, 0, dim, step)
        step *= 2
    return before * rest


def _shifted(x: Any, edge: int, dim: int, by: int) -> Any:
    """Shift `x` along `dim`: element i of the result is element `i + by` of `x`, or `edge` outside of `x`."""
    value = dtypes.dtype_to_numbertype(x.dtype)(edge)
    return pad(x, value, [(-by, by, 0) if d == dim else (0, 0, 0) for d in range(x.ndim)])


@prim(torch="torch.logcumsumexp", tags=_TAGS)
def logcumsumexp(a: TensorProxy, dim: int, /) -> TensorProxy:
    """Return, for each position along `dim`, the logsumexp of the elements up to it."""
    check(
        dtypes.is_inexact_dtype(a.dtype),
        lambda: f'"logcumsumexp_out_cpu" not implemented for {a.dtype}: convert to a floating point type',
    )
    return _scan_meta(a, dim)


@logcumsumexp.vjp
def _(g: Any, out: Any, a: Any, dim: Any) -> Any:
    # The gradient is exp(a) times the reverse cumulative sum of g / exp(out). It is computed with logarithms to avoid
    # overflow. Logarithms need positive numbers, so positive and negative parts of g are computed separately.
    if dtypes.is_complex_dtype(a.dtype):
        total = _from_the_end(logcumsumexp, g.conj().log() - out, dim)
        return (total + a).exp().conj()

    def part(g: Any) -> Any:
        rest = g <= 0
        log = g.masked_fill(rest, 1).log().masked_fill(rest, -math.inf)
        # Where all elements so far are -inf, the gradient is zero.
        share = (log - out).masked_fill(out == -math.inf, -math.inf)
        return (_from_the_end(logcumsumexp, share, dim) + a).exp()

    return part(g) - part(-g)


def _extremum_meta(name: str, a: TensorProxy, dim: int) -> tuple[TensorProxy, TensorProxy]:
    check(
        not dtypes.is_complex_dtype(a.dtype) or a.ndim == 0 or 0 in a.shape,
        lambda: f"{name}: complex numbers have no order",
    )
    return _scan_meta(a, dim), TensorProxy(like=a, dtype=dtypes.int64)


@prim(torch="torch.cummax", tags=_TAGS)
def cummax(a: TensorProxy, dim: int, /) -> tuple[TensorProxy, TensorProxy]:
    """Return, for each position along `dim`, the largest element up to it, and the index of that element."""
    return _extremum_meta("cummax", a, dim)


@prim(torch="torch.cummin", tags=_TAGS)
def cummin(a: TensorProxy, dim: int, /) -> tuple[TensorProxy, TensorProxy]:
    """Return, for each position along `dim`, the smallest element up to it, and the index of that element."""
    return _extremum_meta("cummin", a, dim)


def _extremum_vjp(g: Any, out: Any, a: Any, dim: Any) -> Any:
    return scatter_add(g[0].new_zeros(a.shape), dim, out[1], g[0])


def _extremum_samples(make: MakeTensor) -> Any:
    yield SampleInput(distinct_values(make, 4, 5), 1)
    yield SampleInput(distinct_values(make, 2, 4, 3), -2)
    yield SampleInput(make(()), 0)
    yield SampleInput(make((0, 3)), 0)
    yield SampleInput(distinct_values(make, 5, 3).mT, 1)


for _sym in (cummax, cummin):
    _sym.vjp(_extremum_vjp)
    _sym.samples(_extremum_samples)


cumsum.samples(functools.partial(scan_samples, low=-2, high=2))


@cumprod.samples
def _(make: MakeTensor) -> Any:
    yield from scan_samples(make, low=0, high=2)
    line = make((3, 6), low=0.5, high=2, requires_grad=False)
    line[0, 2] = line[1, 1] = line[1, 4] = 0
    yield SampleInput(line.requires_grad_(bool(make(()).requires_grad)), 1)


@logcumsumexp.jvp
def _(t: Any, out: Any, a: Any, dim: Any) -> Any:
    # Computed for all pairs of elements. Applying the gradient rule twice is not possible, because the rule computes
    # logarithms of its cotangent, and these are not linear.
    if a.ndim == 0:
        return t[0]
    dim = canonicalize_dim(a.ndim, dim)
    moved, lines, ends = (x.movedim(dim, -1) for x in (t[0], a, out))
    # Where all elements so far are -inf, the tangent is zero.
    ends = ends.masked_fill(ends == -math.inf, 0)
    share = (lines.unsqueeze(-2) - ends.unsqueeze(-1)).exp().tril()
    return (share @ moved.unsqueeze(-1)).squeeze(-1).movedim(-1, dim)


logcumsumexp.samples(functools.partial(scan_samples, low=-3, high=3))


for _sym in (cumsum, cumprod, logcumsumexp, cummax, cummin):
    _sym.batch(along_dim(_sym))
    _sym.errors(wrong_dims)


# -- linear recurrences ------------------------------------------------------------------------------------------------
@prim(tags=_TAGS)
def linear_recurrence(a: TensorProxy, b: TensorProxy, dim: int, reverse: bool = False, /) -> TensorProxy:
    """Return the values of `h[t] = a[t] * h[t - 1] + b[t]` along `dim`, where `h` is zero before the first element.

    With `reverse`, the recurrence begins at the end: `h[t] = a[t] * h[t + 1] + b[t]`.
    """
    check(a.ndim > 0, lambda: "linear_recurrence: expects at least one dimension")
    check(
        equal_shapes(a.shape, b.shape) and a.dtype is b.dtype,
        lambda: f"linear_recurrence: factors and terms differ: {a.type_string()} and {b.type_string()}",
    )
    check(not dtypes.is_boolean_dtype(a.dtype), lambda: "linear_recurrence: expects numbers, not booleans")
    check_same_device("linear_recurrence", a, b)
    return _scan_meta(b, dim)


def _before(x: Any, dim: int, reverse: bool) -> Any:
    """Return, for each position, the element that a recurrence computes before it; zero at the first position."""
    return _shifted(x, 0, canonicalize_dim(x.ndim, dim), 1 if reverse else -1)


@linear_recurrence.vjp
def _(g: Any, out: Any, a: Any, b: Any, dim: Any, reverse: bool = False) -> Any:
    # The gradient of h[t] is g[t] plus a[t + 1] times the gradient of h[t + 1].
    if dtypes.is_complex_dtype(a.dtype):
        a, out = a.conj(), out.conj()
    total = linear_recurrence(_before(a, dim, not reverse), g, dim, not reverse)
    return total * _before(out, dim, reverse), total


@linear_recurrence.jvp
def _(t: Any, out: Any, a: Any, b: Any, dim: Any, reverse: bool = False) -> Any:
    moved = [t[1]] if t[1] is not None else []
    if t[0] is not None:
        moved.append(t[0] * _before(out, dim, reverse))
    return linear_recurrence(a, moved[0] if len(moved) == 1 else moved[0] + moved[1], dim, reverse)


@linear_recurrence.batch
def _(b: Any, factors: Any, terms: Any, dim: int, reverse: bool = False) -> Any:
    factors, terms = b.expand(factors), b.expand(terms)
    return linear_recurrence(factors, terms, b.dim(terms, dim), reverse)


@linear_recurrence.samples
def _(make: MakeTensor) -> Any:
    factors, terms = {"low": -1, "high": 2}, {"low": -2, "high": 2}
    yield SampleInput(make((4, 5), **factors), make((4, 5), **terms), 1)
    yield SampleInput(make((2, 7, 3), **factors), make((2, 7, 3), **terms), -2, True)
    yield SampleInput(make((5,), **factors), make((5,), **terms), 0, True)
    yield SampleInput(make((1, 3), **factors), make((1, 3), **terms), 0)
    yield SampleInput(make((0, 3), **factors), make((0, 3), **terms), 0)
    yield SampleInput(make((5, 3), **factors).mT, make((3, 5), **terms), 1)


@linear_recurrence.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((2, 3)), 2), IndexError, "Dimension out of range"
    yield SampleInput(make((2, 3)), make((3,)), 0), RuntimeError, "factors and terms differ"
    yield SampleInput(make(()), make(()), 0), RuntimeError, "at least one dimension"
