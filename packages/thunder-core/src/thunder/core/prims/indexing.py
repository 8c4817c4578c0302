# SPDX-License-Identifier: Apache-2.0
"""Primitives that read and write elements by position: slices, indices along one dimension, and index tensors.

Index tensors follow `dim` in the signatures, as in torch. Their values are not known while tracing. An index out of
range is therefore an error when the program runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core import devices, dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.creation import full, iota
from thunder.core.prims.metas import canonicalize_dim, check_same_device
from thunder.core.prims.shape import broadcast_in_dim, reshape, slice, sliced_shape, transpose
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import NON_DIFFERENTIABLE, OpTags

_SHAPE = (OpTags.SHAPE_OP,)
INDEX_DTYPES = (dtypes.int64, dtypes.int32)


def sizes_of(a: TensorProxy) -> tuple[int, ...]:
    """Return the shape of `a` for indexing: a 0-d tensor counts as a vector of one element."""
    return a.shape or (1,)


def positions(make: MakeTensor, shape: Sequence[int], bound: int) -> Any:
    """Return a sample index tensor of `shape` with values below `bound`."""
    return make(tuple(shape), low=0, high=bound, dtype=dtypes.int64, requires_grad=False)


def distinct_positions(make: MakeTensor, shape: Sequence[int], dim: int) -> Any:
    """Return a sample index tensor without repeated values along `dim`, so that the result of a write is defined."""
    return make(tuple(shape), dtype=dtypes.float32, requires_grad=False).argsort(dim)


def arithmetic_index(size: Sequence[int], stride: Sequence[int], offset: int, device: devices.Device) -> TensorProxy:
    """Return the positions in memory of a strided tensor's elements: `offset + sum(i * stride)`, as a flat tensor."""
    total: Any = None
    count = 1
    for d, (n, step) in enumerate(zip(size, stride)):
        start = offset if d == 0 else 0
        line = iota(n, start=start, step=step, device=device, dtype=dtypes.int64)
        line = broadcast_in_dim(line, tuple(size), (d,)) if len(size) > 1 else line
        total = line if total is None else total + line
        count *= n
    if total is None:
        return full((1,), offset, device=device, dtype=dtypes.int64)  # type: ignore[no-any-return]
    return reshape(total, (count,)) if len(size) > 1 else total  # type: ignore[no-any-return]


# -- slices with fixed bounds -----------------------------------------------------------------------------------------
@prim(tags=_SHAPE)
def slice_scatter(
    a: TensorProxy, src: TensorProxy, starts: Sequence[int], ends: Sequence[int], strides: Sequence[int] | None = None,
    /,
) -> TensorProxy:  # fmt: skip
    """Return a copy of `a` in which `src` replaces the elements that `slice` would return."""
    shape = sliced_shape("slice_scatter", a, starts, ends, strides)
    check(
        src.shape == shape,
        lambda: (
            f"expected src to have a size equal to the slice of self. src size = {list(src.shape)}, "
            f"slice size = {list(shape)}"
        ),
    )
    _same_dtype("slice_scatter", a, src)
    return TensorProxy(like=a, device=check_same_device("slice_scatter", a, src))


def _same_dtype(name: str, a: TensorProxy, src: TensorProxy) -> None:
    check(a.dtype is src.dtype, lambda: f"{name}(): Expected self.dtype {a.dtype} to be equal to src.dtype {src.dtype}")


@slice_scatter.vjp
def _(g: Any, out: Any, a: Any, src: Any, starts: Any, ends: Any, strides: Any = None) -> Any:
    zeros = g.new_zeros(src.shape)
    return slice_scatter(g, zeros, starts, ends, strides), slice(g, starts, ends, strides)


@slice_scatter.batch
def _(b: Any, a: Any, src: Any, starts: Any, ends: Any, strides: Any = None) -> Any:
    how = (0, *starts), (b.size, *ends), None if strides is None else (1, *strides)
    return slice_scatter(b.expand(a), b.expand(src), *how)


@slice_scatter.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 6)), make((2, 3)), (1, 2), (3, 5))
    yield SampleInput(make((7,)), make((3,)), (0,), (7,), (3,))
    yield SampleInput(make((4, 6)), make((0, 6)), (2, 0), (2, 6))
    yield SampleInput(make(()), make(()), (), ())


@slice_scatter.errors
def _(make: MakeTensor) -> Any:
    a, src = make((4,)), make((3,))
    yield SampleInput(a, src, (1,), (3,)), RuntimeError, "expected src to have a size equal to the slice"


# -- an index vector for one dimension --------------------------------------------------------------------------------
def _check_index_vector(name: str, index: TensorProxy) -> None:
    check(index.dtype in INDEX_DTYPES, lambda: f"{name}(): Expected dtype int32 or int64 for index")
    check(index.ndim <= 1, lambda: f"{name}(): Index is supposed to be a vector", IndexError)


@prim(torch="torch.index_select", tags=_SHAPE)
def take(a: TensorProxy, dim: int, indices: TensorProxy, /) -> TensorProxy:
    """Return the slices of `a` along `dim` at the positions in the vector `indices`, which must not be negative."""
    dim = canonicalize_dim(a.ndim, dim)
    _check_index_vector("index_select", indices)
    check_same_device("take", a, indices)
    count = indices.shape[0] if indices.ndim else 1
    if a.ndim == 0:
        check(count == 1, lambda: f"index_select(): Index to scalar can have only 1 value, got {count} value(s)")
        return TensorProxy(like=a)
    return TensorProxy(like=a, shape=(*a.shape[:dim], count, *a.shape[dim + 1 :]))


@take.vjp
def _(g: Any, out: Any, a: Any, dim: Any, indices: Any) -> Any:
    return index_add(g.new_zeros(a.shape), dim, indices, g), None, None


@take.batch
def _(b: Any, a: Any, dim: Any, indices: Any) -> Any:
    if indices not in b:
        return take(b.at_least_1d(a), b.dim(a, dim), indices)
    dim = dim % max(b.ndim(a), 1)
    if b.ndim(a) == 0:
        return b.expand(a)
    if b.ndim(indices) == 0:
        indices = b.line_up(indices, 1)
    return b.apply(index, a, (*[None] * dim, indices))


@take.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), 0, positions(make, (5,), 4))
    yield SampleInput(make((2, 4, 3)), -2, positions(make, (2,), 4))
    yield SampleInput(make((2, 3)), 1, positions(make, (0,), 3))
    yield SampleInput(make((4, 3)).mT, 1, positions(make, (), 4))


@take.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), 0, positions(make, (2, 2), 3)), IndexError, "Index is supposed to be a vector"
    yield SampleInput(make((4, 3)), 2, positions(make, (2,), 3)), IndexError, "Dimension out of range"


@prim(torch="torch.index_add", tags=_SHAPE)
def index_add(a: TensorProxy, dim: int, indices: TensorProxy, value: TensorProxy, /) -> TensorProxy:
    """Return a copy of `a` in which the slices of `value` along `dim` are added at the positions in `indices`."""
    dim = canonicalize_dim(a.ndim, dim)
    _check_index_vector("index_add_", indices)
    check_same_device("index_add", a, indices, value)
    check(
        a.dtype is value.dtype,
        lambda: f"index_add_(): self ({a.dtype}) and source ({value.dtype}) must have the same scalar type",
    )
    check_slices_to_write("index_add_", a, dim, indices, value)
    return TensorProxy(like=a)


def check_slices_to_write(name: str, a: TensorProxy, dim: int, indices: TensorProxy, value: TensorProxy) -> None:
    """Check that `value` has a slice along `dim` for each index, and the shape of `a` in the other dimensions."""
    count, found = (indices.shape or (1,))[0], sizes_of(value)[dim] if dim < max(value.ndim, 1) else 1
    check(
        count == found,
        lambda: f"{name}(): Number of indices ({count}) should be equal to source.size(dim): ({found}), for dim: {dim}",
    )
    check(
        a.ndim == value.ndim and all(d == dim or n == m for d, (n, m) in enumerate(zip(a.shape, value.shape))),
        lambda: (
            f"{name}(): source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(a.shape)} source.shape = {list(value.shape)}"
        ),
    )


@index_add.vjp
def _(g: Any, out: Any, a: Any, dim: Any, indices: Any, value: Any) -> Any:
    return g, None, None, take(g, dim, indices)


@index_add.batch
def _(b: Any, a: Any, dim: Any, indices: Any, value: Any) -> Any:
    dim = dim % max(b.ndim(a), 1)
    if b.ndim(a) == 0:
        a, value = b.line_up(b.expand(a), 1), b.line_up(b.expand(value), 1)
    if indices not in b:
        return index_add(b.expand(a), dim + 1, indices, b.expand(value))
    return b.apply(index_put, a, (*[None] * dim, b.line_up(indices, 1)), value, True)


@index_add.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), 0, positions(make, (5,), 4), make((5, 3)))
    yield SampleInput(make((2, 4, 3)), -2, positions(make, (2,), 4), make((2, 2, 3)))
    yield SampleInput(make((4,)), 0, positions(make, (0,), 4), make((0,)))
    yield SampleInput(make((3, 4)).mT, 1, positions(make, (3,), 3), make((4, 3)))


@index_add.errors
def _(make: MakeTensor) -> Any:
    index = positions(make, (2,), 4)
    yield SampleInput(make((4, 3)), 0, index, make((5, 3))), RuntimeError, "Number of indices"
    source = make((2, 2))
    yield SampleInput(make((4, 3)), 0, index, source), RuntimeError, "source tensor shape must match self tensor shape"


# -- index tensors for several dimensions -----------------------------------------------------------------------------
def indexed_shape(
    a: TensorProxy, indices: Sequence[TensorProxy | None]
) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Return the shape of `index(a, indices)`, the position of the index dimensions in it, and their sizes.

    The index dimensions are the common (broadcast) dimensions of the index tensors. They replace the indexed dimensions
    if these are adjacent; otherwise they come first. This is torch's rule.
    """
    at = [d for d, i in enumerate(indices) if i is not None]
    check(len(indices) <= a.ndim, lambda: f"too many indices for tensor of dimension {a.ndim}", IndexError)
    check(bool(at), lambda: "index: at least one index must be a tensor", IndexError)
    for i in indices:
        check(
            i is None or i.dtype in INDEX_DTYPES,
            lambda: "tensors used as indices must be long, int, byte or bool tensors",
            IndexError,
        )
    common = _common_shape([i.shape for i in indices if i is not None])
    rest = [n for d, n in enumerate(a.shape) if d not in at]
    first = at[0] if at[-1] - at[0] + 1 == len(at) else 0
    if 0 in [a.shape[d] for d in at] and 0 not in common:
        raise IndexError("index is out of bounds for dimension with size 0")
    return (*rest[:first], *common, *rest[first:]), first, common


def _common_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    if all(s == shapes[0] for s in shapes):
        return shapes[0]
    out = [1] * max(map(len, shapes))
    for shape in shapes:
        for i, n in enumerate(reversed(shape), start=1):
            check(
                n == 1 or out[-i] in (1, n),
                lambda: (
                    "shape mismatch: indexing tensors could not be broadcast together with shapes "
                    + ", ".join(str(list(s)) for s in shapes)
                ),
                IndexError,
            )
            out[-i] = n if n != 1 else out[-i]
    return tuple(out)


@prim(tags=_SHAPE)
def index(a: TensorProxy, indices: Sequence[TensorProxy | None], /) -> TensorProxy:
    """Return the elements of `a` at `indices`.

    For each of the first dimensions of `a`, `indices` contains an index tensor, or None for all positions. Negative
    positions count from the end. The index tensors are broadcast to one shape. In the result, these dimensions replace
    the indexed dimensions if the indexed dimensions are adjacent; otherwise they come first.
    """
    shape, _, _ = indexed_shape(a, indices)
    check_same_device("index", a, *[i for i in indices if i is not None and i.ndim])
    return TensorProxy(like=a, shape=shape)


@index.vjp
def _(g: Any, out: Any, a: Any, indices: Any) -> Any:
    return index_put(g.new_zeros(a.shape), indices, g, True), None


def _batched_indices(b: Any, a: Any, indices: Any) -> tuple[tuple[Any, ...], list[int], list[int]]:
    """Return indices into a batch, and two permutations of dimensions, `order` and its inverse.

    `order` contains, for each dimension of an example's result, the position of that dimension in the batch's result.
    Its first element is the position of the batch dimension.
    """
    _, first, common = indexed_shape(_like_one(b, a), [None if i is None else _like_one(b, i) for i in indices])
    ndim, n = b.ndim(a) - sum(i is not None for i in indices) + len(common), len(common)
    if not any(i in b for i in indices):
        whole = (None, *indices)
        at = [d for d, i in enumerate(whole) if i is not None]
        front = at[-1] - at[0] + 1 != len(at)  # True if the index dimensions precede the batch dimension
        order = [n, *range(n), *range(n + 1, ndim + 1)] if front else list(range(ndim + 1))
    else:
        count = arithmetic_index((b.size,), (1,), 0, a.device)
        examples = broadcast_in_dim(count, (b.size, *[1] * n), (0,))
        whole = (examples, *[i if i is None else b.line_up(i, n) for i in indices])
        # The batch dimension and the index dimensions come first.
        order = [0, *range(n + 1, n + 1 + first), *range(1, n + 1), *range(n + 1 + first, ndim + 1)]
    return whole, order, [order.index(d) for d in range(ndim + 1)]


def _like_one(b: Any, x: TensorProxy) -> TensorProxy:
    return TensorProxy(like=x, shape=b.shape(x))


@index.batch
def _(b: Any, a: Any, indices: Any) -> Any:
    whole, order, _ = _batched_indices(b, a, indices)
    out = index(b.expand(a), whole)
    return out if order == sorted(order) else transpose(out, tuple(order))


@index.samples
def _(make: MakeTensor) -> Any:
    a = (4, 3, 5)
    yield SampleInput(make(a), (positions(make, (2,), 4),))
    yield SampleInput(make(a), (positions(make, (2, 1), 4), positions(make, (3,), 3)))
    yield SampleInput(make(a), (None, positions(make, (2, 2), 3)))
    yield SampleInput(make(a), (positions(make, (2,), 4), None, positions(make, (2,), 5)))
    yield SampleInput(make(a), (None, positions(make, (), 3), positions(make, (0,), 5)))
    yield SampleInput(make(a), (make((3,), low=-4, high=0, dtype=dtypes.int32, requires_grad=False),))


@index.errors
def _(make: MakeTensor) -> Any:
    two, three = positions(make, (2,), 2), positions(make, (3,), 2)
    yield SampleInput(make((4, 3)), (two, three)), IndexError, "shape mismatch: indexing tensors could not be broadcast"
    yield SampleInput(make((4,)), (two, two)), IndexError, "too many indices for tensor of dimension 1"
    yield (
        SampleInput(make((4,)), (make((2,), dtype=dtypes.float32),)),
        IndexError,
        "tensors used as indices must be long",
    )


@prim(tags=_SHAPE)
def index_put(
    a: TensorProxy, indices: Sequence[TensorProxy | None], values: TensorProxy, accumulate: bool = False, /
) -> TensorProxy:
    """Return a copy of `a` in which `values` are written (with `accumulate`, added) at `indices`.

    `values` has the shape of `index(a, indices)`.
    """
    shape, _, _ = indexed_shape(a, indices)
    check(
        values.shape == shape,
        lambda: (
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
            f"shape {list(shape)}"
        ),
    )
    check(
        a.dtype is values.dtype,
        lambda: (
            f"Index put requires the source and destination dtypes match, got {a.dtype} for the destination and "
            f"{values.dtype} for the source."
        ),
    )
    check_same_device("index_put", a, values, *[i for i in indices if i is not None and i.ndim])
    return TensorProxy(like=a)


@index_put.vjp
def _(g: Any, out: Any, a: Any, indices: Any, values: Any, accumulate: Any = False) -> Any:
    kept = g if accumulate else index_put(g, indices, g.new_zeros(values.shape))
    return kept, None, index(g, indices), None


@index_put.batch
def _(b: Any, a: Any, indices: Any, values: Any, accumulate: Any = False) -> Any:
    whole, order, back = _batched_indices(b, a, indices)
    values = b.expand(values)
    values = values if order == sorted(order) else transpose(values, tuple(back))
    return index_put(b.expand(a), whole, values, accumulate)


@index_put.samples
def _(make: MakeTensor) -> Any:
    a = (4, 3, 5)
    distinct = distinct_positions(make, (4,), 0)
    yield SampleInput(make(a), (distinct[:2],), make((2, 3, 5)))
    yield SampleInput(make(a), (None, positions(make, (6,), 3)), make((4, 6, 5)), True)
    yield SampleInput(make(a), (distinct[:3], None, positions(make, (3,), 5)), make((3, 3)))
    yield SampleInput(make(a), (positions(make, (2, 1), 4), positions(make, (3,), 3)), make((2, 3, 5)), True)
    yield SampleInput(make(a), (positions(make, (0,), 4),), make((0, 3, 5)))


@index_put.errors
def _(make: MakeTensor) -> Any:
    two = positions(make, (2,), 2)
    yield (
        SampleInput(make((4, 3)), (two,), make((2, 4))),
        RuntimeError,
        "cannot be broadcast to indexing result of shape",
    )


# -- search -----------------------------------------------------------------------------------------------------------
@prim(torch="torch.searchsorted", tags=(NON_DIFFERENTIABLE,))
def searchsorted(
    sorted_sequence: TensorProxy, values: TensorProxy, /, *, out_int32: bool = False, right: bool = False
) -> TensorProxy:
    """Return the positions at which inserting `values` keeps the last dimension of `sorted_sequence` sorted."""
    s, v = sorted_sequence, values
    name = "torch.searchsorted()"
    check(s.ndim > 0, lambda: f"{name}: boundaries tensor should have positive dimension, but got 0 dimension")
    check(
        s.ndim == 1 or (s.ndim == v.ndim and s.shape[:-1] == v.shape[:-1]),
        lambda: (
            f"{name}: boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor and "
            f"input value tensor must match, but we got boundaries tensor {list(s.shape)} and input value tensor "
            f"{list(v.shape)}"
        ),
    )
    check_same_device("searchsorted", s, v)
    return TensorProxy(like=v, dtype=dtypes.int32 if out_int32 else dtypes.int64)


@searchsorted.batch
def _(b: Any, sequence: Any, values: Any, **how: Any) -> Any:
    if sequence not in b and sequence.ndim == 1:
        return searchsorted(sequence, values, **how)
    if b.ndim(sequence) > 1:
        return searchsorted(b.expand(sequence), b.expand(values), **how)
    values = b.expand(values)
    found = searchsorted(sequence, reshape(values, (b.size, _count(values.shape[1:]))), **how)
    return reshape(found, values.shape)


def _count(shape: Sequence[int]) -> Any:
    out: Any = 1
    for n in shape:
        out = out * n
    return out


@searchsorted.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((6,)).sort()[0], make((3, 4)))
    yield SampleInput(make((2, 6)).sort()[0], make((2, 3)), right=True)
    yield SampleInput(make((5,)).sort()[0], make(()), out_int32=True)
    yield SampleInput(make((0,)), make((2,)))


@searchsorted.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make(()), make((2,))), RuntimeError, "boundaries tensor should have positive dimension"
    yield SampleInput(make((2, 3)), make((3, 3))), RuntimeError, r"the first N-1 dimensions of boundaries tensor"
