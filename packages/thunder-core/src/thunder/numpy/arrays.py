# SPDX-License-Identifier: Apache-2.0
"""Properties, reductions, shape operations, matmul and creation of arrays in the NumPy language."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from thunder import clang
from thunder.core import devices, dtypes, prims
from thunder.core.dtypes import INTEGER, float16, float32, float64, int64, uint64
from thunder.core.errors import check
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_unary
from thunder.core.symbol import NON_DIFFERENTIABLE, OpTags
from thunder.numpy.base import language, npsymbol
from thunder.numpy.promotion import result_type

_REDUCTION = (OpTags.REDUCTION_OP,)
_SHAPE = (OpTags.SHAPE_OP,)


# -- properties: metadata of arrays, not operations -------------------------------------------------------------------
def size(a: TensorProxy) -> int:
    """Return the number of elements; in torch, `a.size()` returns the shape instead."""
    return math.prod(a.shape)


def itemsize(a: TensorProxy) -> int:
    """Return the size of an element in bytes."""
    return a.dtype.bytes


def nbytes(a: TensorProxy) -> int:
    """Return the size of all elements in bytes."""
    return size(a) * a.dtype.bytes


for _name, _fact in (("size", size), ("itemsize", itemsize), ("nbytes", nbytes)):
    language.add_property(_name, _fact)
language.add_method("getitem", clang.getitem)


# -- reductions -------------------------------------------------------------------------------------------------------
def _accumulator(a: TensorProxy, dtype: Any) -> dtypes.dtype:
    if dtype is not None:
        return dtypes.to_dtype(dtype)  # type: ignore[return-value]
    if a.dtype.category > INTEGER:
        return a.dtype
    return uint64 if dtypes.is_unsigned_dtype(a.dtype) else int64


@npsymbol(method_name="sum", tags=_REDUCTION)
def sum(a: TensorProxy, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> TensorProxy:
    """Return the sum over `axis`."""
    return clang.sum(a, axis, keepdims, dtype=_accumulator(a, dtype))


@npsymbol(method_name="prod", tags=_REDUCTION)
def prod(a: TensorProxy, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> TensorProxy:
    """Return the product over `axis`."""
    return clang.prod(a, axis, keepdims, dtype=_accumulator(a, dtype))


@npsymbol(method_name="mean", tags=_REDUCTION)
def mean(a: TensorProxy, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> TensorProxy:
    """Return the mean over `axis`; for integers, the result is float64."""
    kind = dtypes.to_dtype(dtype) or (float64 if a.dtype.category <= INTEGER else a.dtype)
    return clang.mean(a, axis, keepdims, dtype=kind)


@npsymbol(method_name="max", tags=_REDUCTION)
def max(a: TensorProxy, axis: Any = None, *, keepdims: bool = False) -> TensorProxy:
    """Return the largest element over `axis`."""
    return clang.amax(a, axis, keepdims)


@npsymbol(method_name="min", tags=_REDUCTION)
def min(a: TensorProxy, axis: Any = None, *, keepdims: bool = False) -> TensorProxy:
    """Return the smallest element over `axis`."""
    return clang.amin(a, axis, keepdims)


@npsymbol(method_name="var", tags=_REDUCTION)
def var(a: TensorProxy, axis: Any = None, *, ddof: float = 0, keepdims: bool = False) -> TensorProxy:
    """Return the variance over `axis`; the divisor is the number of elements minus `ddof`."""
    a = prims.convert_element_type(a, float64) if a.dtype.category <= INTEGER else a
    return clang.var(a, axis, keepdims, correction=ddof)


@npsymbol(method_name="all", tags=(*_REDUCTION, NON_DIFFERENTIABLE))
def all(a: TensorProxy, axis: Any = None, *, keepdims: bool = False) -> TensorProxy:
    """Check whether all elements over `axis` are true."""
    return clang.all(clang.ne(a, 0), axis, keepdims)


@npsymbol(method_name="any", tags=(*_REDUCTION, NON_DIFFERENTIABLE))
def any(a: TensorProxy, axis: Any = None, *, keepdims: bool = False) -> TensorProxy:
    """Check whether any element over `axis` is true."""
    return clang.any(clang.ne(a, 0), axis, keepdims)


def _reduction_samples(make: MakeTensor) -> Any:
    for shape in ((4, 4), (), (8, 3, 5)):
        yield SampleInput(make(shape))
    yield SampleInput(make((2, 3, 4)), 1)
    yield SampleInput(make((2, 3, 4)), (0, -1), keepdims=True)
    yield SampleInput(make((5, 3)).mT, axis=0)


for _op in (sum, prod, mean, max, min, var, all, any):
    _op.samples(_reduction_samples)


# -- shapes -----------------------------------------------------------------------------------------------------------
def _sizes(shape: tuple[Any, ...]) -> Any:
    return shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape


@npsymbol(tags=_SHAPE)
def reshape(a: TensorProxy, shape: int | Sequence[int]) -> TensorProxy:
    """Reshape an array; one size may be -1."""
    return clang.reshape(a, (shape,) if isinstance(shape, int) else tuple(shape))


@npsymbol(tags=_SHAPE)
def transpose(a: TensorProxy, axes: Sequence[int] | None = None) -> TensorProxy:
    """Permute the dimensions to the order `axes`; by default, reverse the order."""
    order = range(a.ndim)[::-1] if axes is None else [canonicalize_dim(a.ndim, d) for d in axes]
    check(
        sorted(order) == list(range(a.ndim)),
        lambda: f"transpose: axes {tuple(axes or ())} are not a permutation of the {a.ndim} dimensions",
        ValueError,
    )
    return clang.transpose(a, tuple(order))


@npsymbol(method_name="ravel", tags=_SHAPE)
def ravel(a: TensorProxy) -> TensorProxy:
    """Flatten an array to one dimension."""
    return clang.reshape(a, (size(a),))


@npsymbol(tags=_SHAPE)
def expand_dims(a: TensorProxy, axis: int | Sequence[int]) -> TensorProxy:
    """Insert dimensions of size 1 at `axis`."""
    return clang.unsqueeze(a, axis)


@npsymbol(tags=_SHAPE)
def broadcast_to(array: TensorProxy, shape: Sequence[int]) -> TensorProxy:
    """Broadcast an array to `shape`."""
    return clang.base.expand(array, tuple(shape))


@npsymbol(tags=_SHAPE)
def concatenate(arrays: Sequence[TensorProxy], axis: int = 0) -> TensorProxy:
    """Concatenate arrays along `axis`."""
    kind = result_type(*arrays)
    return clang.cat([clang.maybe_convert_to_dtype(a, kind) for a in arrays], axis)


def _reshape_method(a: TensorProxy, *shape: Any) -> TensorProxy:
    return reshape(a, _sizes(shape))  # type: ignore[no-any-return]


def _transpose_method(a: TensorProxy, *axes: Any) -> TensorProxy:
    return transpose(a, _sizes(axes) if axes and axes != (None,) else None)  # type: ignore[no-any-return]


language.add_property("T", transpose)
language.add_method("reshape", _reshape_method)
language.add_method("transpose", _transpose_method)
language.add_method("flatten", ravel)


@reshape.samples
def _(make: MakeTensor) -> Any:
    for old, new in (((4, 6), (3, 8)), ((4, 6), -1), ((), (1, 1)), ((0, 3), (3, 0)), ((2, 3, 4), (6, -1))):
        yield SampleInput(make(old), new)


@transpose.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)
    yield SampleInput(make((2, 3, 4)), (1, -1, 0))


@transpose.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (0, 0)), ValueError, "are not a permutation of the 2 dimensions"


ravel.samples(elementwise_unary)


@expand_dims.samples
def _(make: MakeTensor) -> Any:
    for axis in (0, -1, (0, 2)):
        yield SampleInput(make((2, 3)), axis)


@broadcast_to.samples
def _(make: MakeTensor) -> Any:
    for old, new in (((3, 1), (3, 4)), ((), (2, 2)), ((4,), (2, 4))):
        yield SampleInput(make(old), new)


@concatenate.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput([make((2, 3)), make((1, 3))])
    yield SampleInput((make((2, 3)), make((2, 1), dtype=float64)), 1)


# -- matmul -----------------------------------------------------------------------------------------------------------
@npsymbol(method_name="matmul", tags=(OpTags.MATMUL_OP,))
def matmul(x1: TensorProxy, x2: TensorProxy) -> TensorProxy:
    """Return the matrix product `x1 @ x2`."""
    kind = result_type(x1, x2)
    return clang.matmul(clang.maybe_convert_to_dtype(x1, kind), clang.maybe_convert_to_dtype(x2, kind))


@matmul.samples
def _(make: MakeTensor) -> Any:
    for a, b in (((3, 4), (4, 2)), ((2, 3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,))):
        yield SampleInput(make(a), make(b))


# -- new arrays -------------------------------------------------------------------------------------------------------
@npsymbol(tags=(NON_DIFFERENTIABLE,))
def full(shape: int | Sequence[int], fill_value: Any, dtype: Any = None, *, device: Any = "cpu") -> TensorProxy:
    """Return an array of `shape` filled with `fill_value`."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = dtypes.to_dtype(dtype) or result_type(fill_value)
    return clang.full(sizes, fill_value, device=devices.to_device(device), dtype=kind)


@npsymbol(tags=(NON_DIFFERENTIABLE,))
def zeros_like(a: TensorProxy, dtype: Any = None) -> TensorProxy:
    """Return an array of zeros of the shape of `a`."""
    return clang.full_like(a, 0, dtype=dtypes.to_dtype(dtype))


@npsymbol(tags=(NON_DIFFERENTIABLE,))
def ones_like(a: TensorProxy, dtype: Any = None) -> TensorProxy:
    """Return an array of ones of the shape of `a`."""
    return clang.full_like(a, 1, dtype=dtypes.to_dtype(dtype))


@npsymbol(tags=(NON_DIFFERENTIABLE,))
def arange(start: int, stop: int | None = None, step: int = 1, *, device: Any = "cpu") -> TensorProxy:
    """Return the numbers start, start + step, … that are before `stop`; a single argument is `stop`."""
    first, last = (0, start) if stop is None else (start, stop)
    check(step != 0, lambda: "arange: the step must not be 0", ValueError)
    return clang.iota(len(range(first, last, step)), start=first, step=step, device=devices.to_device(device))


@full.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput((2, 3), 1.5)
    yield SampleInput(4, 1, float32)


@arange.samples
def _(make: MakeTensor) -> Any:
    for args in ((4,), (2, 7), (7, 2, -2), (3, 3)):
        yield SampleInput(*args)


@arange.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(0, 3, 0), ValueError, "the step must not be 0"


zeros_like.samples(elementwise_unary)


@ones_like.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)
    yield SampleInput(make((2, 3)), float16)
