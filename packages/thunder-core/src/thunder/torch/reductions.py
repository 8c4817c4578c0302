# SPDX-License-Identifier: Apache-2.0
"""Reductions of the torch language over dimensions: sums, means, moments, any and all."""

from __future__ import annotations

import builtins
import math
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.samples import MakeTensor, SampleInput, reduction
from thunder.core.symbol import NON_DIFFERENTIABLE, BoundSymbol, OpTags
from thunder.core.symint.numbers import same_shape
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol

_TAGS = (OpTags.REDUCTION_OP,)
_INDEX = (OpTags.REDUCTION_OP, NON_DIFFERENTIABLE)


def all_dims(dim: Any) -> Any:
    """Return None (all dimensions) for an empty tuple, as torch does, otherwise `dim`."""
    return None if isinstance(dim, (tuple, list)) and not dim else dim


def unreduced(x: Any, like: Any, dim: Any, keepdim: bool) -> Any:
    """Return a reduced tensor in which the reduced dimensions have length 1."""
    if keepdim or like.ndim == 0:
        return x
    for d in sorted(clang.reductions.reduction_dims(like, all_dims(dim))):
        x = ltorch.unsqueeze(x, d)
    return x


def along(make: MakeTensor, **options: Any) -> Any:
    """Yield samples with one dimension."""
    for shape, dim, keepdim in (((4, 4), 1, False), ((2, 3, 4), -2, True), ((), 0, False), ((0, 3), 1, False)):
        yield SampleInput(make(shape), dim, keepdim, **options)
    yield SampleInput(make((5, 3)).mT, 0, **options)


def _bad_dims(make: MakeTensor) -> Any:
    yield (
        SampleInput(make((2, 3)), 2),
        IndexError,
        r"Dimension out of range \(expected to be in range of \[-2, 1\], but got 2\)",
    )
    yield SampleInput(make((2, 3)), (0, 0)), RuntimeError, "dim 0 appears multiple times in the list of dims"


def _write_dim(bsym: BoundSymbol) -> None:
    # torch accepts `keepdim` only after `dim`.
    if len(bsym.args) == 1 and "keepdim" in bsym.kwargs and "dim" not in bsym.kwargs:
        bsym.args = (*bsym.args, None)


# -- sums and products -------------------------------------------------------------------------------------------------
@torchsymbol(torch.sum, tags=_TAGS, autocast={"cuda": "float32"})
def sum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the sum over `dim`, or of all elements. Integers and booleans are summed as int64."""
    return clang.sum(input, dim, keepdim, dtype=dtype)


sum.bind_postprocess = _write_dim


@sum.samples
def _(make: MakeTensor) -> Any:
    yield from reduction(make)
    yield SampleInput(make((2, 3)), (), True)
    yield SampleInput(make((2, 3)), None, True)
    yield SampleInput(make((2, 3)), 0, dtype=torch.float64)
    yield SampleInput(make((4, 1)).expand(4, 3), 1)
    yield SampleInput(make((2, 3)), dtype=torch.bool)


sum.errors(_bad_dims)


@torchsymbol(torch.nansum, tags=_TAGS)
def nansum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the sum over `dim`, with NaN replaced by zero."""
    check(
        not input.dtype.is_complex or input.device.type != "cpu",
        lambda: "nansum on CPU does not support complex inputs",
    )
    if dtypes.is_inexact_dtype(input.dtype):
        input = ltorch.where(ltorch.isnan(input), 0.0, input)
    return clang.sum(input, all_dims(dim), keepdim, dtype=dtype)


def with_nans(make: MakeTensor, *shape: int) -> Any:
    x = make(shape)
    if x.dtype.is_floating_point or x.dtype.is_complex:
        x.detach().view(-1)[::3] = float("nan")
    return x


@nansum.samples
def _(make: MakeTensor) -> Any:
    yield from reduction(make)
    yield SampleInput(with_nans(make, 3, 5), 1)
    yield SampleInput(with_nans(make, 3, 5), (0, 1), True)


@torchsymbol(torch.prod, tags=_TAGS, autocast="float32")
def prod(input: Any, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the product along `dim`, or of all elements. Integers and booleans are multiplied as int64."""
    check(
        dim is None or isinstance(dim, int),
        lambda: f"prod() requires one dimension as an int, but got {type(dim).__name__}: {dim}",
        TypeError,
    )
    check(dim is not None or not keepdim, lambda: "prod() accepts keepdim only together with a dimension", TypeError)
    return clang.prod(input, dim, keepdim, dtype=dtype)


@prod.samples
def _(make: MakeTensor) -> Any:
    for shape in ((4, 4), (), (2, 3, 5), (0,), (3, 0, 2)):
        yield SampleInput(make(shape))
    yield from along(make)
    yield SampleInput(make((2, 3)), 0, dtype=torch.float64)
    yield SampleInput(make((0, 3)), 0)
    zeros = make((3, 5))
    for row, count in ((0, 1), (1, 2)):
        zeros.detach()[row, :count] = 0
    yield SampleInput(zeros, 1)
    yield SampleInput(zeros)


@prod.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 2), IndexError, "Dimension out of range"
    yield SampleInput(make((2, 3)), (0, 1)), TypeError, r"prod\(\)"


@torchsymbol(torch.mean, tags=_TAGS)
def mean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the mean over `dim`, or of all elements."""
    return clang.mean(input, dim, keepdim, dtype=dtype)


mean.bind_postprocess = _write_dim


@mean.vjp
def _(g: Any, out: Any, input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    dims = clang.reductions.reduction_dims(input, all_dims(dim))
    count = math.prod(input.shape[d] for d in dims)
    grad = ltorch.expand(unreduced(g / count, input, dim, keepdim), input.shape) if count else input * 0
    return grad.to(input.dtype)


@mean.samples
def _(make: MakeTensor) -> Any:
    yield from reduction(make)
    yield SampleInput(make((2, 3)), 0, dtype=torch.float64)
    yield SampleInput(make((2, 3)), ())
    yield SampleInput(make((2, 3)), keepdim=True)


@mean.errors
def _(make: MakeTensor) -> Any:
    yield from _bad_dims(make)
    yield SampleInput(make((2, 3), dtype=torch.int64)), RuntimeError, r"mean\(\): could not infer output dtype"
    yield SampleInput(make((2, 3)), dtype=torch.int64), RuntimeError, "Optional dtype must be either a floating point"


@torchsymbol(torch.nanmean, tags=_TAGS)
def nanmean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the mean over `dim` of the elements that are not NaN."""
    check(
        dtypes.is_inexact_dtype(input.dtype),
        lambda: f"nanmean(): expected input to have floating point or complex dtype but got {input.dtype}",
    )
    count = ltorch.logical_not(ltorch.isnan(input)).sum(all_dims(dim), keepdim)
    return nansum(input, dim, keepdim, dtype=dtype) / count


@nanmean.samples
def _(make: MakeTensor) -> Any:
    yield from reduction(make)
    yield SampleInput(with_nans(make, 3, 5), 1)
    yield SampleInput(with_nans(make, 3, 5))


@torchsymbol(torch.count_nonzero, tags=_INDEX)
def count_nonzero(input: Any, dim: Any = None) -> Any:
    """Return the number of nonzero elements over `dim`."""
    return clang.sum(ltorch.ne(input, 0), all_dims(dim))


@count_nonzero.samples
def _(make: MakeTensor) -> Any:
    for shape, dim in (((4, 4), None), ((2, 3, 4), (0, -1)), ((2, 3), 1), ((), None), ((0, 3), 0)):
        yield SampleInput(make(shape, low=0, high=3), dim)


@torchsymbol(torch.Tensor.sum_to_size, tags=_TAGS)
def sum_to_size(input: Any, *size: Any) -> Any:
    """Sum `input` to the given size, from which it could have been broadcast."""
    shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)
    extra = input.ndim - len(shape)
    check(
        extra >= 0 and builtins.all(n in (1, m) for n, m in zip(shape, input.shape[builtins.max(extra, 0) :])),
        lambda: f"size {{{list(shape)}}} is not expandable to size {{{list(input.shape)}}}.",
    )
    dims = tuple(d for d in range(input.ndim) if d < extra or (shape[d - extra] == 1 and input.shape[d] != 1))
    if not dims:
        return input
    total = clang.sum(input, dims)
    return total if same_shape(total.shape, shape) else ltorch.reshape(total, shape)


@sum_to_size.samples
def _(make: MakeTensor) -> Any:
    for shape, size in (((2, 3, 4), (3, 1)), ((2, 3), (2, 3)), ((2, 3), ()), ((4,), (1,)), ((2, 0), (2, 1))):
        yield SampleInput(make(shape), size)
    yield SampleInput(make((2, 3)), 1, 3)


@sum_to_size.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (2,)), RuntimeError, "is not expandable to size"


# -- truth -------------------------------------------------------------------------------------------------------------
def _truth(fn: Any, input: Any, dim: Any, keepdim: bool) -> Any:
    out = fn(input, dim, keepdim)
    # For uint8, torch returns uint8, which used to be its boolean dtype.
    return clang.maybe_convert_to_dtype(out, dtypes.uint8) if input.dtype is dtypes.uint8 else out


def _truth_samples(make: MakeTensor) -> Any:
    for shape, dim, keepdim in (
        ((4, 4), None, False),
        ((), None, False),
        ((0, 3), None, False),
        ((2, 3, 4), (0, -1), True),
        ((2, 3), 1, False),
        ((0, 3), 0, False),
        ((), 0, False),
    ):
        yield SampleInput(make(shape, low=0, high=2), dim, keepdim)
    yield SampleInput(make((2, 3), low=0, high=2), ())
    yield SampleInput(make((2, 3), low=1, high=2), 1)


@torchsymbol(torch.any, tags=_INDEX)
def any(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Check whether any element over `dim` is true."""
    return _truth(clang.any, input, dim, keepdim)


@torchsymbol(torch.all, tags=_INDEX)
def all(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Check whether all elements over `dim` are true."""
    return _truth(clang.all, input, dim, keepdim)


any.samples(_truth_samples)
all.samples(_truth_samples)
any.errors(_bad_dims)
all.errors(_bad_dims)


# -- moments -----------------------------------------------------------------------------------------------------------
def _moment_arguments(
    dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: Any = None
) -> tuple[Any, bool, float]:
    """Return dim, keepdim and correction, also for the spellings `(dim, unbiased)` and `(unbiased)`."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    check(
        unbiased is None or correction is None,
        lambda: "var and std take either `unbiased` or `correction`, not both",
        TypeError,
    )
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    return all_dims(dim), keepdim, correction


def _var_grad(g: Any, input: Any, dim: Any, keepdim: bool, correction: float) -> Any:
    dims = clang.reductions.reduction_dims(input, dim)
    freedom = math.prod(input.shape[d] for d in dims) - correction
    distance = input - clang.mean(input, dims, True) if dims else input * 0
    if dim is None and freedom <= 0:
        found = unreduced(g, input, dims, keepdim) * ltorch.where(distance == 0, math.nan, math.inf)
        return clang.maybe_convert_to_dtype(found, input.dtype)
    return unreduced(g, input, dims, keepdim) * (2.0 / freedom if freedom else math.inf) * distance


def _std_grad(g: Any, out: Any, input: Any, dim: Any, keepdim: bool, correction: float) -> Any:
    of_var = g / ltorch.where(out == 0, math.inf, out * 2)
    return _var_grad(of_var, input, dim, keepdim, correction)


def _mean_grad(g: Any, input: Any, dim: Any, keepdim: bool) -> Any:
    dims = clang.reductions.reduction_dims(input, dim)
    count = math.prod(input.shape[d] for d in dims)
    return ltorch.expand(unreduced(g, input, dims, keepdim), input.shape) / builtins.max(count, 1)


@torchsymbol(torch.var, tags=_TAGS)
def var(
    input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: Any = None
) -> Any:
    """Return the variance over `dim`. The divisor is the number of elements minus `correction`."""
    dim, keepdim, correction = _moment_arguments(dim, unbiased, keepdim, correction=correction)
    return clang.var(input, dim, keepdim, correction=correction)


@var.vjp
def _(g: Any, out: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    return _var_grad(g, input, *_moment_arguments(*args, **kwargs))


@torchsymbol(torch.std, tags=_TAGS)
def std(
    input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: Any = None
) -> Any:
    """Return the standard deviation over `dim`, the square root of the variance."""
    dim, keepdim, correction = _moment_arguments(dim, unbiased, keepdim, correction=correction)
    kind = input.dtype
    wide = clang.maybe_convert_to_dtype(input, clang.reductions.compute_dtype(kind))
    return clang.maybe_convert_to_dtype(
        ltorch.sqrt(clang.var(wide, dim, keepdim, correction=correction)), dtypes.corresponding_real_dtype(kind)
    )


@std.vjp
def _(g: Any, out: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    return _std_grad(g, out, input, *_moment_arguments(*args, **kwargs))


@torchsymbol(torch.var_mean, tags=_TAGS)
def var_mean(
    input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: Any = None
) -> Any:
    """Return the variance and the mean over `dim`."""
    dim, keepdim, correction = _moment_arguments(dim, unbiased, keepdim, correction=correction)
    return clang.var_mean(input, dim, keepdim, correction=correction)


@var_mean.vjp
def _(g: Any, out: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    dim, keepdim, correction = _moment_arguments(*args, **kwargs)
    return _var_grad(g[0], input, dim, keepdim, correction) + _mean_grad(g[1], input, dim, keepdim)


@torchsymbol(torch.std_mean, tags=_TAGS)
def std_mean(
    input: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: Any = None
) -> Any:
    """Return the standard deviation and the mean over `dim`."""
    dim, keepdim, correction = _moment_arguments(dim, unbiased, keepdim, correction=correction)
    kind = input.dtype
    wide = clang.maybe_convert_to_dtype(input, clang.reductions.compute_dtype(kind))
    variance, average = clang.var_mean(wide, dim, keepdim, correction=correction)
    deviation = clang.maybe_convert_to_dtype(ltorch.sqrt(variance), dtypes.corresponding_real_dtype(kind))
    return deviation, clang.maybe_convert_to_dtype(average, kind)


@std_mean.vjp
def _(g: Any, out: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    dim, keepdim, correction = _moment_arguments(*args, **kwargs)
    return _std_grad(g[0], out[0], input, dim, keepdim, correction) + _mean_grad(g[1], input, dim, keepdim)


def _moment_samples(make: MakeTensor) -> Any:
    yield from reduction(make, empty=False)
    yield SampleInput(make((3, 4)), False)
    yield SampleInput(make((3, 4)), 1, False, True)
    yield SampleInput(make((3, 4)), (0, 1), correction=0)
    yield SampleInput(make((3, 4)), 1, correction=0.5, keepdim=True)
    yield SampleInput(make((3, 4)), (), keepdim=True)
    yield SampleInput(make((3, 1)).expand(3, 4), 1)


def _moment_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 2), IndexError, "Dimension out of range"
    yield (
        SampleInput(make((3,), dtype=torch.int64)),
        RuntimeError,
        "std and var only support floating point and complex",
    )


for _sym in (var, std, var_mean, std_mean):
    _sym.samples(_moment_samples)
    _sym.errors(_moment_errors)


# -- logsumexp ---------------------------------------------------------------------------------------------------------
@torchsymbol(torch.logsumexp, torch.special.logsumexp, tags=_TAGS, autocast={"cuda": "float32"})
def logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    """Return the logarithm of the sum of exponentials over `dim`, computed without overflow."""
    dims = clang.reductions.reduction_dims(input, dim)
    if dtypes.is_exact_dtype(input.dtype):
        input = input.to(torch.get_default_dtype())
    kind = input.dtype
    x = clang.maybe_convert_to_dtype(input, clang.reductions.compute_dtype(kind))
    if not dims:
        return ltorch.clone(input)
    if 0 in (x.shape[d] for d in dims):
        return ltorch.log(clang.sum(ltorch.exp(input), dims, keepdim))
    largest = clang.amax(ltorch.real(x) if dtypes.is_complex_dtype(kind) else x, dims, True)
    largest = ltorch.where(ltorch.abs(largest) == math.inf, 0.0, largest)
    total = ltorch.log(clang.sum(ltorch.exp(x - largest), dims, keepdim))
    shift = largest if keepdim else ltorch.reshape(largest, total.shape)
    return clang.maybe_convert_to_dtype(total + shift, kind)


@logsumexp.vjp
def _(g: Any, out: Any, input: Any, dim: Any, keepdim: bool = False) -> Any:
    share = ltorch.exp(input - unreduced(out, input, dim, keepdim))
    if dtypes.is_complex_dtype(input.dtype):
        share = ltorch.conj(share)
    return unreduced(g, input, dim, keepdim) * share


@logsumexp.samples
def _(make: MakeTensor) -> Any:
    for shape, dim, keepdim in (
        ((4, 4), 1, False),
        ((2, 3, 4), (0, -1), True),
        ((2, 3, 4), -2, False),
        ((), 0, False),
        ((0, 3), 0, False),
        ((0, 3), 1, True),
    ):
        yield SampleInput(make(shape), dim, keepdim)
    yield SampleInput(make((5, 3), low=500, high=1000).mT, 0)


@logsumexp.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 2), IndexError, "Dimension out of range"
