# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language that read and write by position: e.g. `a[key]`, index_*, take and masked_*."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder import clang
from thunder.clang.indexing import is_basic_index
from thunder.clang.shape import numel
from thunder.core import dtypes, prims
from thunder.core.errors import check
from thunder.core.prims.indexing import distinct_positions, positions
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.proxies import TensorProxy, number_value
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import index as index_of
from thunder.torch.base import torchsymbol
from thunder.torch.shape import VIEW, own_memory

_SHAPE = (OpTags.SHAPE_OP,)


# -- a[key] -----------------------------------------------------------------------------------------------------------
@torchsymbol(torch.Tensor.__getitem__, is_method=True, tags=VIEW)
def getitem(input: TensorProxy, key: Any) -> TensorProxy:
    """Return `input[key]`: a view if the key has only integers, slices, None and Ellipsis, otherwise a copy."""
    out = clang.getitem(input, key)
    return out if is_basic_index(key) else own_memory(out, input)


@getitem.view_when
def _(input: Any, key: Any) -> bool:
    return is_basic_index(key)


@getitem.view_scatter
def _(base: Any, new: Any, key: Any) -> Any:
    return clang.setitem(base, key, new)


@torchsymbol(tags=_SHAPE, layout="as input")
def setitem(input: TensorProxy, key: Any, value: Any) -> TensorProxy:
    """Return `input` after `input[key] = value`."""
    return own_memory(clang.setitem(input, key, value), input)


def _keys(make: MakeTensor) -> Any:
    index = positions(make, (2, 2), 3)
    yield from (1, -1, slice(1, None, 2), None, ..., (0, slice(None), None), (..., -1), (slice(2, 1), 0))
    yield from ((slice(None), 0, ..., slice(None, None, 3)), (), index, (index, slice(None), index))
    yield from ((slice(None), index, index), [2, 0], (slice(None), [0, 0, 1]), (1, ..., index), True, False)
    yield from ((None, index, None, [[1], [2]]), ([True, False, True, False],), positions(make, (), 3))


@getitem.samples
def _(make: MakeTensor) -> Any:
    for key in _keys(make):
        yield SampleInput(make((4, 3, 5)), key)
    yield SampleInput(make(()), ...)
    yield SampleInput(make(()), None)
    yield SampleInput(make((0, 3)), slice(None))
    yield SampleInput(make((3, 4)).mT, (slice(1, 3), 0))


def _key_errors(make: MakeTensor, *value: Any) -> Any:
    a = make((4, 3))
    yield SampleInput(a, 4, *value), IndexError, "index 4 is out of bounds for dimension 0 with size 4"
    yield SampleInput(a, (0, 0, 0), *value), IndexError, "too many indices for tensor of dimension 2"
    yield SampleInput(a, slice(None, None, -1), *value), ValueError, "step must be greater than zero"
    yield SampleInput(a, slice(None, None, 0), *value), ValueError, "slice step cannot be zero"
    yield SampleInput(a, 1.5, *value), IndexError, "only integers, slices"
    yield (
        SampleInput(a, ([0, 1], [0, 1, 2]), *value),
        IndexError,
        "shape mismatch: indexing tensors could not be broadcast",
    )
    yield SampleInput(a, make((2,), dtype=dtypes.float32), *value), IndexError, "tensors used as indices must be long"
    yield SampleInput(a, [True, False], *value), IndexError, r"The shape of the mask \[2\] at index 0 does not match"


@getitem.errors
def _(make: MakeTensor) -> Any:
    yield from _key_errors(make)


@setitem.samples
def _(make: MakeTensor) -> Any:
    for key in _keys(make):
        # A key that overwrites all elements leaves no gradient for the input.
        if key not in (None, ..., (), True) if not isinstance(key, torch.Tensor) else True:
            yield SampleInput(make((4, 3, 5)), key, 2)
    index = distinct_positions(make, (4,), 0)
    yield SampleInput(make((4, 3, 5)), 1, make((3, 5)))
    yield SampleInput(make((4, 3, 5)), (slice(1, None), 0), make((1, 5)))
    yield SampleInput(make((4, 3, 5)), (..., slice(None, None, 2)), make((1, 1, 3, 1)))
    yield SampleInput(make((4, 3, 5)), (index[:2], slice(1, None)), make((2, 5)))
    yield SampleInput(make((4, 3, 5)), (None, index), make(()))
    yield SampleInput(make((4, 3, 5)), make((4, 3), dtype=dtypes.bool8, requires_grad=False), make((5,)))
    yield SampleInput(make((4, 3, 5)), (slice(None), make((3,), dtype=dtypes.bool8, requires_grad=False)), -1)


@setitem.errors
def _(make: MakeTensor) -> Any:
    yield from _key_errors(make, 1)
    yield SampleInput(make((4, 3)), 0, make((2,))), RuntimeError, "cannot be broadcast"
    yield SampleInput(make((4, 3)), 0, "x"), TypeError, "can't assign a str"


# -- a part written, as a function ------------------------------------------------------------------------------------
@torchsymbol(torch.slice_scatter, tags=_SHAPE)
def slice_scatter(
    input: TensorProxy,
    src: TensorProxy,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> TensorProxy:
    """Return a copy of `input` in which `src` replaces `input[start:end:step]` along `dim`."""
    dim = canonicalize_dim(input.ndim, dim)
    check(step > 0, lambda: "slice step must be positive")
    first, last, _ = slice(start, end).indices(input.shape[dim])
    starts, ends, steps = [0] * input.ndim, list(input.shape), [1] * input.ndim
    starts[dim], ends[dim], steps[dim] = first, max(first, last), index_of(step)
    src = clang.maybe_convert_to_dtype(src, input.dtype)
    return prims.slice_scatter(input, src, tuple(starts), tuple(ends), None if step == 1 else tuple(steps))


@slice_scatter.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), make((2, 3)), 0, 1, 3)
    yield SampleInput(make((4, 3)), make((4, 2)), -1, -2)
    yield SampleInput(make((5, 3)), make((3, 3)), step=2)
    yield SampleInput(make((4, 3)), make((0, 3)), 0, 3, 1)
    yield SampleInput(make((4, 3)), make((4, 3)))


@slice_scatter.errors
def _(make: MakeTensor) -> Any:
    yield (
        SampleInput(make((4, 3)), make((3, 3)), 0, 1, 3),
        RuntimeError,
        "expected src to have a size equal to the slice",
    )
    yield SampleInput(make((4, 3)), make((3, 3)), 2), IndexError, "Dimension out of range"


@torchsymbol(torch.select_scatter, tags=_SHAPE)
def select_scatter(input: TensorProxy, src: TensorProxy, dim: int, index: int) -> TensorProxy:
    """Return a copy of `input` in which `src` replaces the slice at `index` along `dim`."""
    check(input.ndim > 0, lambda: "select() cannot be applied to a 0-dim tensor.", IndexError)
    dim = canonicalize_dim(input.ndim, dim)
    n, i = input.shape[dim], index_of(number_value(index))
    check(
        -n <= i < n,
        lambda: f"select(): index {i} out of range for tensor of size {list(input.shape)} at dimension {dim}",
        IndexError,
    )
    shape = (*input.shape[:dim], *input.shape[dim + 1 :])
    check(
        src.shape == shape,
        lambda: (
            f"expected src to have a size equal to the slice of self. src size = {list(src.shape)}, "
            f"slice size = {list(shape)}"
        ),
    )
    starts, ends = [0] * input.ndim, list(input.shape)
    starts[dim], ends[dim] = i % n, i % n + 1
    src = clang.unsqueeze(clang.maybe_convert_to_dtype(src, input.dtype), dim)
    return prims.slice_scatter(input, src, tuple(starts), tuple(ends))


@select_scatter.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), make((3,)), 0, 1)
    yield SampleInput(make((4, 3)), make((4,)), -1, -2)
    yield SampleInput(make((4,)), make(()), 0, 3)


@select_scatter.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), make((4,)), 0, 1), RuntimeError, "expected src to have a size equal to the slice"
    yield SampleInput(make((4, 3)), make((3,)), 0, 4), IndexError, "index 4 out of range for tensor of size"


# -- by tensors of positions ------------------------------------------------------------------------------------------
@torchsymbol(torch.index_put, tags=_SHAPE, autocast={"cuda": "widest"})
def index_put(
    input: TensorProxy, indices: Sequence[TensorProxy], values: TensorProxy, accumulate: bool = False
) -> TensorProxy:
    """Return a copy of `input` with `values` written (or added) at `indices`, which are positions or masks."""
    check(
        input.dtype is values.dtype,
        lambda: (
            f"Index put requires the source and destination dtypes match, got {input.dtype} for the destination and "
            f"{values.dtype} for the source."
        ),
    )
    # torch.index_put treats a 0-dimensional tensor of positions as a vector with one element.
    key = [i.reshape((1,)) if i is not None and i.ndim == 0 and i.dtype is not dtypes.bool8 else i for i in indices]
    whole = tuple([slice(None) if i is None else i for i in key])
    return own_memory(clang.setitem(input, whole, values, bool(accumulate)), input)


@index_put.samples
def _(make: MakeTensor) -> Any:
    index = distinct_positions(make, (4,), 0)
    yield SampleInput(make((4, 3)), (index[:2],), make((2, 3)))
    yield SampleInput(make((4, 3)), [index[:2], positions(make, (2,), 3)], make(()))
    yield SampleInput(make((4, 3)), (positions(make, (6,), 4),), make((3,)), True)
    yield SampleInput(make((4, 3)), (make((4, 3), dtype=dtypes.bool8, requires_grad=False),), make(()))
    yield SampleInput(make((4, 3)), (make((4, 3), dtype=dtypes.bool8, requires_grad=False),), make(()), True)


@index_put.errors
def _(make: MakeTensor) -> Any:
    index = positions(make, (2,), 4)
    a = make((4, 3))
    yield SampleInput(a, (index,), make((3, 3))), RuntimeError, "cannot be broadcast to indexing result of shape"
    yield SampleInput(a, (index,), make((3,), dtype=dtypes.float64)), RuntimeError, "destination dtypes match"


@torchsymbol(torch.index_select, tags=_SHAPE)
def index_select(input: TensorProxy, dim: int, index: TensorProxy) -> TensorProxy:
    """Return the slices of `input` along `dim` at the positions in the vector `index`."""
    return prims.take(input, dim, index)


@index_select.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), 0, positions(make, (5,), 4))
    yield SampleInput(make((4, 3)), -1, positions(make, (0,), 3))
    yield SampleInput(make((4, 3)), 1, positions(make, (), 3))
    yield SampleInput(make(()), 0, positions(make, (1,), 1))


def _vector_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), 0, positions(make, (2, 2), 3)), IndexError, "Index is supposed to be a vector"
    yield SampleInput(make((4, 3)), 2, positions(make, (2,), 3)), IndexError, "Dimension out of range"


index_select.errors(_vector_errors)


@torchsymbol(torch.index_add, tags=_SHAPE)
def index_add(input: TensorProxy, dim: int, index: TensorProxy, source: TensorProxy, *, alpha: Any = 1) -> TensorProxy:
    """Add `alpha` times the slices of `source` along `dim` to the slices of `input` at the positions in `index`."""
    if type(alpha) is not int or alpha != 1:
        source = clang.maybe_convert_to_dtype(clang.mul(source, alpha), source.dtype)
    return prims.index_add(input, dim, index, source)


@index_add.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), 0, positions(make, (5,), 4), make((5, 3)))
    yield SampleInput(make((4, 3)), -1, positions(make, (2,), 3), make((4, 2)), alpha=2)
    yield SampleInput(make((4, 3)), 0, positions(make, (0,), 4), make((0, 3)))
    yield SampleInput(make((4,)), 0, positions(make, (1,), 4), make((1,)))


@index_add.errors
def _(make: MakeTensor) -> Any:
    index = positions(make, (2,), 4)
    yield SampleInput(make((4, 3)), 0, index, make((5, 3))), RuntimeError, "Number of indices .2. should be equal to"
    yield (
        SampleInput(make((4, 3)), 0, index, make((2, 2))),
        RuntimeError,
        "source tensor shape must match self tensor shape",
    )


def _at(dim: int, index: TensorProxy) -> tuple[Any, ...]:
    return (*(None,) * dim, index)


@torchsymbol(torch.index_copy, tags=_SHAPE, autocast={"cpu": "widest"})
def index_copy(input: TensorProxy, dim: int, index: TensorProxy, source: TensorProxy) -> TensorProxy:
    """Return a copy of `input` with the slices of `source` along `dim` written to the positions in `index`."""
    dim = canonicalize_dim(input.ndim, dim)
    check(
        index.dtype is dtypes.int64, lambda: f"index_copy_(): Expected a long tensor for index, but got {index.dtype}"
    )
    check(index.ndim <= 1, lambda: f"index_copy_(): Index should have dimension 1 or 0 (got {index.ndim})", IndexError)
    check(
        input.dtype is source.dtype,
        lambda: (
            "index_copy_(): self and source expected to have the same dtype, but got (self) "
            f"{input.dtype} and (source) {source.dtype}"
        ),
    )
    if input.ndim == 0:
        check(numel(source.shape) == 1, lambda: "index_copy_(): When source is scalar, index should have one element")
        return prims.clone(clang.reshape(source, ()))
    flat = clang.reshape(index, (1,)) if index.ndim == 0 else index
    found = source.shape[dim] if dim < source.ndim else 1
    check(
        flat.shape[0] == found,
        lambda: f"index_copy_(): Number of indices ({flat.shape[0]}) should be equal to source.size(dim) ({found})",
        IndexError,
    )
    prims.check_slices_to_write("index_copy_", input, dim, flat, source)
    return prims.index_put(input, _at(dim, flat), source)


@index_copy.samples
def _(make: MakeTensor) -> Any:
    index = distinct_positions(make, (4,), 0)
    yield SampleInput(make((4, 3)), 0, index, make((4, 3)))
    yield SampleInput(make((3, 4)), -1, index[:2], make((3, 2)))
    yield SampleInput(make((4,)), 0, index[:0], make((0,)))


@index_copy.errors
def _(make: MakeTensor) -> Any:
    index = positions(make, (2,), 4)
    yield SampleInput(make((4, 3)), 0, index, make((5, 3))), IndexError, "Number of indices"


@torchsymbol(torch.index_fill, tags=_SHAPE)
def index_fill(input: TensorProxy, dim: int, index: TensorProxy, value: Any) -> TensorProxy:
    """Return a copy of `input` with `value` in the slices along `dim` at the positions in `index`."""
    dim = canonicalize_dim(input.ndim, dim)
    check(index.dtype is dtypes.int64, lambda: "index_fill_(): Expected dtype int64 for index.", IndexError)
    check(
        not isinstance(value, TensorProxy) or value.ndim == 0,
        lambda: (
            f"index_fill_ only supports a 0-dimensional value tensor, but got tensor with {value.ndim} dimension(s)."
        ),
    )
    if input.ndim == 0:
        return clang.reshape(index_fill.meta(clang.reshape(input, (1,)), 0, index, value), ())
    flat = clang.reshape(index, (1,)) if index.ndim == 0 else index
    return clang.setitem(input, (*(slice(None),) * dim, flat), value)


@index_fill.vjp
def _(g: Any, out: Any, input: Any, dim: Any, index: Any, value: Any) -> Any:
    # A repeated position is written only once.
    kept = g.index_fill(dim, index, 0)
    return kept, None, None, (g - kept).sum() if isinstance(value, TensorProxy) else None


@index_fill.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), 0, positions(make, (2,), 4), 1)
    yield SampleInput(make((4, 3)), -1, positions(make, (5,), 3), make(()))
    yield SampleInput(make((4, 3)), 0, positions(make, (), 4), 2)
    yield SampleInput(make((4, 3)), 0, positions(make, (0,), 4), 2)


@index_fill.errors
def _(make: MakeTensor) -> Any:
    index = positions(make, (2,), 4)
    yield SampleInput(make((4, 3)), 0, index, make((2,))), RuntimeError, "only supports a 0-dimensional value tensor"


@torchsymbol(torch.take, tags=_SHAPE)
def take(input: TensorProxy, index: TensorProxy) -> TensorProxy:
    """Return the elements of the flattened `input` at the positions in `index`."""
    check(index.dtype is dtypes.int64, lambda: f"take(): Expected a long tensor for index, but got {index.dtype}")
    flat = clang.reshape(input, (numel(input.shape),))
    return prims.index(flat, (index,))


@take.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), positions(make, (2, 5), 12))
    yield SampleInput(make((4, 3)), make((3,), low=-12, high=0, dtype=dtypes.int64, requires_grad=False))
    yield SampleInput(make((4, 3)), positions(make, (), 12))
    yield SampleInput(make((0,)), positions(make, (0,), 1))


@take.errors
def _(make: MakeTensor) -> Any:
    yield (
        SampleInput(make((4, 3)), make((2,), low=0, dtype=dtypes.int32)),
        RuntimeError,
        "Expected a long tensor for index",
    )


@torchsymbol(torch.take_along_dim, tags=_SHAPE)
def take_along_dim(input: TensorProxy, indices: TensorProxy, dim: int | None = None) -> TensorProxy:
    """Compute `gather` with broadcasting of the other dimensions. Without `dim`, flatten both tensors first."""
    check(
        indices.dtype in (dtypes.int64, dtypes.int32),
        lambda: f"torch.take_along_dim(): dtype of indices should be Long but got {indices.dtype}",
    )
    if dim is None:
        return prims.index(
            clang.reshape(input, (numel(input.shape),)), (clang.reshape(indices, (numel(indices.shape),)),)
        )
    return clang.take_along_axis(input, indices, dim)


@take_along_dim.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), positions(make, (4, 2), 3), 1)
    yield SampleInput(make((4, 1)), positions(make, (1, 5), 4), 0)
    yield SampleInput(make((4, 3)), positions(make, (2, 5), 12))
    yield SampleInput(make((2, 4, 3)), positions(make, (1, 2, 3), 4), -2)


@take_along_dim.errors
def _(make: MakeTensor) -> Any:
    yield (
        SampleInput(make((4, 3)), positions(make, (4,), 3), 1),
        RuntimeError,
        "input and indices should have the same number of dimensions",
    )


@torchsymbol(torch.put, tags=_SHAPE)
def put(input: TensorProxy, index: TensorProxy, source: TensorProxy, accumulate: bool = False) -> TensorProxy:
    """Return a copy of `input` with `source` written (or added) at the positions `index` in the flattened tensor."""
    check(index.dtype is dtypes.int64, lambda: f"put_(): Expected a long tensor for index, but got {index.dtype}")
    check(
        input.dtype is source.dtype,
        lambda: (
            "put_(): self and source expected to have the same dtype, but got self.dtype = "
            f"{input.dtype} and source.dtype = {source.dtype}"
        ),
    )
    count = numel(index.shape)
    check(
        count == numel(source.shape),
        lambda: (
            "put_(): Expected source and index to have the same number of elements, but got source.numel() = "
            f"{numel(source.shape)}, index.numel() = {count}"
        ),
    )
    flat = clang.reshape(input, (numel(input.shape),))
    where, values = clang.reshape(index, (count,)), clang.reshape(source, (count,))
    return clang.reshape(prims.index_put(flat, (where,), values, bool(accumulate)), input.shape)


@put.samples
def _(make: MakeTensor) -> Any:
    index = distinct_positions(make, (12,), 0)
    yield SampleInput(make((4, 3)), index[:4].reshape(2, 2), make((2, 2)))
    yield SampleInput(make((4, 3)), positions(make, (6,), 12), make((2, 3)), True)
    yield SampleInput(make((4, 3)), index[:0], make((0,)))


@put.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), positions(make, (2,), 4), make((3,))), RuntimeError, "same number of elements"


# -- by masks ---------------------------------------------------------------------------------------------------------
@torchsymbol(torch.masked_scatter, tags=_SHAPE)
def masked_scatter(input: TensorProxy, mask: TensorProxy, source: TensorProxy) -> TensorProxy:
    """Return a copy of `input` in which the elements of `source` are written, in order, where `mask` is true."""
    check(
        mask.dtype is dtypes.bool8,
        lambda: f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}",
    )
    check(
        input.dtype is source.dtype,
        lambda: (
            f"masked_scatter: expected self and source to have same dtypes but got {input.dtype} and {source.dtype}"
        ),
    )
    input, mask = clang.maybe_broadcast(input, mask)
    count = numel(source.shape)
    if count == 0 or numel(input.shape) == 0:
        return prims.clone(input)
    flat = clang.reshape(mask, (numel(mask.shape),))
    # The n-th true position receives the n-th element. The values at other positions do not matter.
    order = prims.cumsum(clang.maybe_convert_to_dtype(flat, dtypes.int64), 0) - 1
    order = clang.maybe_convert_to_dtype(flat, dtypes.int64) * order
    dealt = prims.take(clang.reshape(source, (count,)), 0, order)
    return prims.where(mask, clang.reshape(dealt, mask.shape), input)


@masked_scatter.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), make((4, 3), dtype=dtypes.bool8, requires_grad=False), make((4, 3)))
    yield SampleInput(make((4, 3)), make((3,), dtype=dtypes.bool8, requires_grad=False), make((20,)))
    yield SampleInput(make((3,)), make((4, 3), dtype=dtypes.bool8, requires_grad=False), make((12,)))
    yield SampleInput(make((0, 3)), make((0, 3), dtype=dtypes.bool8, requires_grad=False), make((0,)))


@masked_scatter.errors
def _(make: MakeTensor) -> Any:
    a = make((4, 3))
    yield (
        SampleInput(a, make((4, 3), dtype=dtypes.int64), a),
        RuntimeError,
        "masked_scatter_ only supports boolean masks",
    )
