# SPDX-License-Identifier: Apache-2.0
"""Largest, smallest and median elements over dimensions, and their positions, in the torch language.

`max` and `min` have overloads: of a tensor, along a dimension, and of two tensors. As in torch, the type of the second
argument selects the overload.
"""

from __future__ import annotations

from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.prims.sorting import distinct_values
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, reduction
from thunder.core.symbol import NON_DIFFERENTIABLE, OpTags
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol
from thunder.torch.reductions import all_dims, along, unreduced, with_nans

_TAGS = (OpTags.REDUCTION_OP,)
_INDEX = (OpTags.REDUCTION_OP, NON_DIFFERENTIABLE)


def _shared_by_equals(g: Any, mask: Any, dim: Any, keepdim: bool, like: Any) -> Any:
    """Return a gradient distributed in equal parts over the elements of `mask`."""
    dims = clang.reductions.reduction_dims(like, all_dims(dim))
    count = mask.sum(dims, True) if dims else 1
    return (unreduced(g, like, dim, keepdim) / count) * mask


@torchsymbol(torch.amax, tags=_TAGS)
def amax(input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """Return the largest element over `dim`. Equal elements share the gradient."""
    return clang.amax(input, dim, keepdim)


@torchsymbol(torch.amin, tags=_TAGS)
def amin(input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """Return the smallest element over `dim`. Equal elements share the gradient."""
    return clang.amin(input, dim, keepdim)


def _amax_vjp(g: Any, out: Any, input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    mask = input == unreduced(out, input, dim, keepdim)
    return _shared_by_equals(g, mask, dim, keepdim, input)


def _extremum_samples(make: MakeTensor) -> Any:
    yield from reduction(make, empty=False)
    yield SampleInput(make((0, 3)), 1)
    yield SampleInput(make((3, 4), low=0, high=2), 1)
    yield SampleInput(with_nans(make, 3, 5), 1)


def _extremum_errors(name: str, of_empty: type[Exception] = RuntimeError, *, bools: bool = True) -> Any:
    def errors(make: MakeTensor) -> Any:
        yield SampleInput(make((2, 3)), 2), IndexError, "Dimension out of range"
        yield SampleInput(make((0, 3))), of_empty, rf"{name}\(\): Expected reduction dim to be specified"
        yield SampleInput(make((0, 3)), 0), IndexError, r"Expected reduction dim 0 to have non-zero size"
        if not bools:
            yield SampleInput(make((3,), dtype=torch.bool)), RuntimeError, "does not support bool input"

    return errors


for _sym in (amax, amin):
    _sym.vjp(_amax_vjp)
    _sym.samples(_extremum_samples)
    _sym.errors(_extremum_errors(_sym.name))


@torchsymbol(torch.aminmax, tags=_TAGS)
def aminmax(input: Any, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the smallest and the largest element, along `dim` or of all elements."""
    check(
        dim is not None or 0 not in input.shape,
        lambda: "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity.",
    )
    return torch.return_types.aminmax((clang.amin(input, dim, keepdim), clang.amax(input, dim, keepdim)))


@aminmax.samples
def _(make: MakeTensor) -> Any:
    for shape in ((4, 4), (), (2, 3, 5)):
        yield SampleInput(make(shape))
    for shape, dim, keepdim in (((4, 4), 1, False), ((2, 3, 4), -2, True), ((), 0, False), ((0, 3), 1, False)):
        yield SampleInput(make(shape), dim=dim, keepdim=keepdim)


def _extremum(name: str, input: Any, dim: Any, keepdim: bool, ends: tuple[Any, Any], of_two: Any) -> Any:
    """Compute `max` or `min`: of all elements, of two tensors, or along a dimension together with the positions."""
    reduce, where = ends
    if dim is None:
        check(
            0 not in input.shape,
            lambda: (
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim "
                "with the 'dim' argument."
            ),
        )
        return reduce(input)
    if isinstance(dim, TensorProxy):
        return of_two(input, dim)
    check(
        isinstance(dim, int),
        lambda: (
            f"{name}() requires one dimension as an int or another tensor, but got {type(dim).__name__}: {dim} "
            f"(a{name} accepts several dimensions)"
        ),
        TypeError,
    )
    counted = clang.maybe_convert_to_dtype(input, dtypes.uint8) if dtypes.is_boolean_dtype(input.dtype) else input
    pair = (reduce(input, dim, keepdim), where(counted, dim, keepdim))
    return getattr(torch.return_types, name)(pair)


def _extremum_vjp(g: Any, out: Any, input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        mask = (input == out) | (ltorch.isnan(input) & ltorch.isnan(out))
        shared = _shared_by_equals(g, mask, None, False, input)
        # On the CPU, unlike in amax, a NaN gradient only flows to the largest elements.
        return ltorch.where(mask, shared, 0.0) if input.device.type == "cpu" else shared
    if isinstance(dim, TensorProxy):
        return _of_two_vjp(g, out, input, dim)
    return _selected(g[0], out[1], input, dim, keepdim)


def _selected(g: Any, index: Any, input: Any, dim: int, keepdim: bool) -> Any:
    """Return the gradient of a tensor from which `index` selects elements along `dim`."""
    if input.ndim == 0:
        return g
    if not keepdim:
        g, index = g.unsqueeze(dim), index.unsqueeze(dim)
    return ltorch.scatter(ltorch.zeros_like(input), dim, index, g)


def _of_two_vjp(g: Any, out: Any, input: Any, other: Any) -> Any:
    half = ltorch.where(input == other, g / 2, g)
    return tuple(
        _reduced_to(ltorch.where(out == x, half, 0.0), x) if dtypes.is_inexact_dtype(x.dtype) else None
        for x in (input, other)
    )


def _reduced_to(g: Any, like: Any) -> Any:
    """Return the gradient of a tensor that was broadcast, with the tensor's shape and dtype."""
    return ltorch.sum_to_size(g, like.shape).to(like.dtype)


@torchsymbol(torch.max, tags=_TAGS)
def max(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the largest element, or along `dim` the largest elements and their positions.

    `dim` may also be a tensor (torch's `other`). Then return the larger elements of both tensors.
    """
    return _extremum("max", input, dim, keepdim, (clang.amax, clang.argmax), ltorch.maximum)


@torchsymbol(torch.min, tags=_TAGS)
def min(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the smallest element, or along `dim` the smallest elements and their positions.

    `dim` may also be a tensor (torch's `other`). Then return the smaller elements of both tensors.
    """
    return _extremum("min", input, dim, keepdim, (clang.amin, clang.argmin), ltorch.minimum)


def _max_samples(make: MakeTensor) -> Any:
    for shape in ((4, 4), (), (2, 3, 5)):
        yield SampleInput(make(shape))
    yield from along(make)
    yield SampleInput(make((3, 4), low=0, high=2))
    yield SampleInput(with_nans(make, 3, 5))
    yield SampleInput(make((2, 3)), make((2, 3)))
    yield SampleInput(make((2, 3)), make((3,)))
    yield SampleInput(make((3,), low=0, high=2), make((2, 3), low=0, high=2))


def _max_errors(name: str) -> Any:
    def errors(make: MakeTensor) -> Any:
        yield from _extremum_errors(name)(make)
        yield SampleInput(make((2, 3)), (0, 1)), TypeError, rf"{name}\(\)"

    return errors


for _sym in (max, min):
    _sym.vjp(_extremum_vjp)
    _sym.samples(_max_samples)
    _sym.errors(_max_errors(_sym.name))


@torchsymbol(torch.argmax, tags=_INDEX)
def argmax(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the position of the largest element, along `dim` or in the flattened tensor."""
    return clang.argmax(input, dim, keepdim)


@torchsymbol(torch.argmin, tags=_INDEX)
def argmin(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the position of the smallest element, along `dim` or in the flattened tensor."""
    return clang.argmin(input, dim, keepdim)


def _arg_samples(make: MakeTensor) -> Any:
    for shape in ((4, 4), (), (2, 3, 5)):
        yield SampleInput(make(shape))
    yield SampleInput(make((2, 3)), None, True)
    yield from along(make)


for _sym in (argmax, argmin):
    _sym.samples(_arg_samples)
    _sym.errors(_extremum_errors(_sym.name, IndexError, bools=False))


@torchsymbol(torch.median, tags=_TAGS)
def median(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the median, or along `dim` the medians and their positions. The result is NaN if any element is NaN.

    Of two middle elements, the median is the smaller one.
    """
    if dim is None:
        flat = ltorch.reshape(input, (-1,))
        if flat.shape[0] == 0:
            return ltorch.full((), float("nan"), dtype=input.dtype, device=input.device)
        return _median_along(flat, 0)[0]
    dim = canonicalize_dim(input.ndim, dim)
    if input.ndim == 0:
        return torch.return_types.median((ltorch.clone(input), ltorch.zeros_like(input, dtype=torch.int64)))
    check(input.shape[dim] != 0, lambda: f"median(): Expected reduction dim {dim} to have non-zero size.", IndexError)
    values, indices = _median_along(input, dim)
    if keepdim:
        values, indices = values.unsqueeze(dim), indices.unsqueeze(dim)
    return torch.return_types.median((values, indices))


def _median_along(input: Any, dim: int) -> tuple[Any, Any]:
    n = input.shape[dim]
    values, indices = ltorch.sort(input, dim, stable=True)
    value, index = (ltorch.select(x, dim, (n - 1) // 2) for x in (values, indices))
    if not dtypes.is_float_dtype(input.dtype):
        return value, index
    # Sorting moves NaN to the end.
    last = ltorch.select(values, dim, n - 1)
    has_nan = ltorch.isnan(last)
    first_nan = clang.argmax(clang.maybe_convert_to_dtype(ltorch.isnan(input), dtypes.uint8), dim)
    return ltorch.where(has_nan, last, value), ltorch.where(has_nan, first_nan, index)


@median.vjp
def _(g: Any, out: Any, input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return _extremum_vjp(g, out, input, dim, keepdim)


@median.samples
def _(make: MakeTensor) -> Any:
    for shape in ((5, 5), (), (2, 3, 5)):
        yield SampleInput(make(shape))
    # The position is undefined if elements are equal.
    yield SampleInput(distinct_values(make, 4, 5), 1)
    yield SampleInput(distinct_values(make, 2, 3, 4), -2, True)
    yield SampleInput(make(()), 0)
