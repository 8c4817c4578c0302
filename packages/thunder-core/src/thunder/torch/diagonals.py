# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language on diagonals and triangles of matrices, e.g. diagonal, diag_embed, tril and triu."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from thunder import clang
from thunder.clang.shape import diagonal_window, numel
from thunder.core import devices, dtypes, prims
from thunder.core.errors import check
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import NON_DIFFERENTIABLE, OpTags
from thunder.torch.base import torchsymbol
from thunder.torch.shape import VIEW, own_memory

_SHAPE = (OpTags.SHAPE_OP,)


# -- diagonals --------------------------------------------------------------------------------------------------------
@torchsymbol(torch.diagonal, tags=VIEW)
def diagonal(input: TensorProxy, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorProxy:
    """Return the diagonals of the matrices in dimensions `dim1` and `dim2`, as the last dimension of the result."""
    return clang.diagonal(input, offset, dim1, dim2)


def _with_diagonal(a: TensorProxy, src: TensorProxy, offset: int, dim1: int, dim2: int) -> TensorProxy:
    flat, window = diagonal_window(a, offset, dim1, dim2)
    written = prims.slice_scatter(flat, src, *window)
    first, second = canonicalize_dim(a.ndim, dim1), canonicalize_dim(a.ndim, dim2)
    matrices = clang.reshape(written, (*flat.shape[:-1], a.shape[first], a.shape[second]))
    return clang.movedim(matrices, (-2, -1), (first, second))


@diagonal.view_scatter
def _(base: Any, new: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return _with_diagonal(base, new, offset, dim1, dim2)


_DIAGONALS = (
    ((4, 4), {}), ((3, 5), {"offset": 1}), ((5, 3), {"offset": -2}), ((2, 3, 4), {"dim1": -1, "dim2": 0}),
    ((2, 4, 3, 5), {"offset": -1, "dim1": 1, "dim2": 3}), ((3, 3), {"offset": 7}), ((0, 3), {}),
)  # fmt: skip


def _diagonal_samples(make: MakeTensor) -> Any:
    for shape, options in _DIAGONALS:
        yield SampleInput(make(shape), **options)


def _diagonal_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 3)), 0, 1, 1), RuntimeError, "diagonal dimensions cannot be identical 1, 1"
    yield SampleInput(make((3,))), IndexError, "Dimension out of range"


diagonal.errors(_diagonal_errors)


@torchsymbol(torch.linalg.diagonal, id="torch.linalg.diagonal", is_method=False, tags=VIEW)
def linalg_diagonal(A: TensorProxy, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> TensorProxy:
    """Return the diagonals of the matrices in the last two dimensions."""
    return clang.diagonal(A, offset, dim1, dim2)


@linalg_diagonal.view_scatter
def _(base: Any, new: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    return _with_diagonal(base, new, offset, dim1, dim2)


diagonal.samples(_diagonal_samples)
linalg_diagonal.samples(_diagonal_samples)


@torchsymbol(torch.diagonal_scatter, tags=_SHAPE)
def diagonal_scatter(
    input: TensorProxy, src: TensorProxy, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorProxy:
    """Return a copy of `input` whose diagonal is replaced by `src`."""
    flat, window = diagonal_window(input, offset, dim1, dim2)
    shape = prims.sliced_shape("diagonal_scatter", flat, *window)
    check(
        src.shape == shape,
        lambda: (
            f"expected src to have a size equal to the slice of self. src size = {list(src.shape)}, "
            f"slice size = {list(shape)}"
        ),
    )
    return _with_diagonal(input, clang.maybe_convert_to_dtype(src, input.dtype), offset, dim1, dim2)


@diagonal_scatter.samples
def _(make: MakeTensor) -> Any:
    for shape, options in _DIAGONALS:
        src = torch.empty(shape, device="cpu").diagonal(**options).shape
        yield SampleInput(make(shape), make(tuple(src)), **options)


@diagonal_scatter.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 3)), make((2,))), RuntimeError, "expected src to have a size equal to the slice"
    yield SampleInput(make((3, 3)), make((3,)), 0, 1, 1), RuntimeError, "diagonal dimensions cannot be identical"


@torchsymbol(torch.diag_embed, tags=_SHAPE)
def diag_embed(input: TensorProxy, offset: int = 0, dim1: int = -2, dim2: int = -1) -> TensorProxy:
    """Return matrices with the last dimension of `input` on the diagonal, and zeros elsewhere."""
    rank = input.ndim + 1
    first, second = canonicalize_dim(rank, dim1), canonicalize_dim(rank, dim2)
    check(first != second, lambda: f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    if first > second:
        offset = -offset
    length = input.shape[-1]
    n = length + abs(offset)
    # In memory, the elements of the diagonal of an n x n matrix are n + 1 elements apart.
    start = offset if offset >= 0 else -offset * n
    reach = max(0, (length - 1) * (n + 1) + 1)
    start = min(start, n * n - reach)
    config = (*((0, 0, 0),) * (input.ndim - 1), (start, n * n - start - reach, n))
    flat = prims.pad(input, dtypes.dtype_to_numbertype(input.dtype)(0), config)
    matrices = clang.reshape(flat, (*input.shape[:-1], n, n))
    return clang.movedim(matrices, (-2, -1), (min(first, second), max(first, second)))


@diag_embed.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)))
    yield SampleInput(make((2, 3)), 1)
    yield SampleInput(make((2, 3)), -2)
    yield SampleInput(make((2, 3)), 1, 0, 2)
    yield SampleInput(make((2, 3)), 1, 2, 0)
    yield SampleInput(make((2, 0)))
    yield SampleInput(make((1,)), -1)
    yield SampleInput(make((3, 2)).mT)


@diag_embed.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), 0, 1, 1), RuntimeError, "diagonal dimensions cannot be identical 1, 1"
    yield SampleInput(make((3,)), 0, 0, 2), IndexError, "Dimension out of range"


@torchsymbol(torch.diag, tags=_SHAPE)
def diag(input: TensorProxy, diagonal: int = 0) -> TensorProxy:
    """Return a matrix with the vector `input` as its diagonal, or the diagonal of a matrix `input`."""
    check(
        input.ndim in (1, 2),
        lambda: f"diag(): Supports 1D or 2D tensors. Got {input.ndim}D",
    )
    if input.ndim == 1:
        return diag_embed.meta(input, diagonal)
    return prims.clone(clang.diagonal(input, diagonal))


@diag.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)))
    yield SampleInput(make((3,)), -1)
    yield SampleInput(make((3, 4)))
    yield SampleInput(make((3, 4)), 2)
    yield SampleInput(make((0,)))


@diag.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2, 2))), RuntimeError, "Supports 1D or 2D tensors. Got 3D"


@torchsymbol(torch.diagflat, tags=_SHAPE)
def diagflat(input: TensorProxy, offset: int = 0) -> TensorProxy:
    """Return a matrix with the elements of `input` as its diagonal."""
    return diag_embed.meta(clang.reshape(input, (numel(input.shape),)), offset)


@diagflat.samples
def _(make: MakeTensor) -> Any:
    for shape, offset in (((3,), 0), ((2, 2), 1), ((), 0), ((0,), -1)):
        yield SampleInput(make(shape), offset)


@torchsymbol(torch.trace, tags=(OpTags.REDUCTION_OP,), autocast={"cpu": "float32"})
def trace(input: TensorProxy) -> TensorProxy:
    """Return the sum of the diagonal of a matrix."""
    check(input.ndim == 2, lambda: f"trace: expected a matrix, but got tensor with dim {input.ndim}")
    if dtypes.is_boolean_dtype(input.dtype) and input.device.type == "cpu":
        raise NotImplementedError('"trace" not implemented for bool: convert to integers')
    return clang.diagonal(input).sum()


@trace.samples
def _(make: MakeTensor) -> Any:
    for shape in ((3, 3), (2, 4), (0, 3)):
        yield SampleInput(make(shape))
    tall = SampleInput(make((4, 2)))
    yield tall.left_out_when("torch's gradient goes on after the end of the diagonal", device="cuda")
    yield SampleInput(make((3, 2)).mT)


@trace.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,))), RuntimeError, "trace: expected a matrix, but got tensor with dim 1"


@torchsymbol(id="torch.fill_diagonal", is_method=True, tags=_SHAPE)
def fill_diagonal(input: TensorProxy, fill_value: Any, wrap: bool = False) -> TensorProxy:
    """Return a copy of `input` whose diagonal is filled with `fill_value`.

    If `wrap` is true, the diagonal of a tall matrix starts again below its last column. torch only has the in-place
    method `fill_diagonal_`.
    """
    check(input.ndim >= 2, lambda: "dimensions must larger than 1")
    check(
        input.ndim == 2 or len(set(input.shape)) == 1,
        lambda: "all dimensions of input must be of equal length",
    )
    count, last = numel(input.shape), input.shape[-1]
    step = last + 1 if input.ndim == 2 else sum([last**d for d in range(input.ndim)])
    stop = count if wrap or input.ndim > 2 else min(count, last * last)
    flat = clang.reshape(input, (count,))
    written = clang.setitem(flat, slice(0, stop, max(step, 1)), fill_value)
    return own_memory(clang.reshape(written, input.shape), input)


@fill_diagonal.samples
def _(make: MakeTensor) -> Any:
    for shape in ((3, 3), (2, 4), (5, 2), (3, 3, 3), (0, 2)):
        yield SampleInput(make(shape), 1)
    yield SampleInput(make((7, 2)), 1, True)


@fill_diagonal.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), 1), RuntimeError, "dimensions must larger than 1"
    yield SampleInput(make((3, 4, 5)), 1), RuntimeError, "all dimensions of input must be of equal length"


# -- triangles --------------------------------------------------------------------------------------------------------
def _below(rows: int, columns: int, diagonal: int, device: devices.Device) -> TensorProxy:
    """Return a mask that is true where column - row <= `diagonal`."""
    i = prims.iota(rows, start=diagonal, step=1, device=device, dtype=dtypes.int64)
    j = prims.iota(columns, start=0, step=1, device=device, dtype=dtypes.int64)
    shape = (rows, columns)
    return prims.le(prims.broadcast_in_dim(j, shape, (1,)), prims.broadcast_in_dim(i, shape, (0,)))


def _triangle(name: str, a: TensorProxy, diagonal: int, lower: bool) -> TensorProxy:
    check(a.ndim >= 2, lambda: f"{name}: input tensor must have at least 2 dimensions")
    rows, columns = a.shape[-2:]
    mask = _below(rows, columns, diagonal if lower else diagonal - 1, a.device)
    mask = prims.broadcast_in_dim(mask, a.shape, (a.ndim - 2, a.ndim - 1)) if a.ndim > 2 else mask
    zero = dtypes.dtype_to_numbertype(a.dtype)(0)
    return prims.where(mask, a, zero) if lower else prims.where(mask, zero, a)


@torchsymbol(torch.tril, tags=_SHAPE, layout="contiguous")
def tril(input: TensorProxy, diagonal: int = 0) -> TensorProxy:
    """Return `input` with zeros above `diagonal`, for the matrices in the last two dimensions."""
    return _triangle("tril", input, diagonal, True)


@torchsymbol(torch.triu, tags=_SHAPE, layout="contiguous")
def triu(input: TensorProxy, diagonal: int = 0) -> TensorProxy:
    """Return `input` with zeros below `diagonal`, for the matrices in the last two dimensions."""
    return _triangle("triu", input, diagonal, False)


def _triangle_samples(make: MakeTensor) -> Any:
    for shape, diagonal in (((4, 4), 0), ((3, 5), 1), ((5, 3), -2), ((2, 3, 3), 0), ((0, 3), 0), ((3, 3), 9)):
        yield SampleInput(make(shape), diagonal)
    yield SampleInput(make((5, 3)).mT, -1)


def _triangle_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((3,))), RuntimeError, "must have at least 2 dimensions"


for _sym in (tril, triu):
    _sym.samples(_triangle_samples)
    _sym.errors(_triangle_errors)


def _check_indices(name: str, row: int, col: int, dtype: dtypes.dtype) -> None:
    check(row >= 0, lambda: f"row must be non-negative, got {row}")
    check(col >= 0, lambda: f"col must be non-negative, got {col}")
    check(
        dtype in (dtypes.int32, dtypes.int64),
        lambda: f'"{name}" not implemented for {dtype}',
        NotImplementedError,
    )


def _rows_and_columns(lines: list[tuple[int, int]], device: Any, dtype: Any) -> TensorProxy:
    """Return the positions (row, column) of elements. Row i contains columns `lines[i][0]` to `lines[i][1] - 1`."""
    device = devices.to_device(device if device is not None else torch.get_default_device())
    counts = [end - start for start, end in lines]
    total = sum(counts)

    def constant(values: list[int]) -> TensorProxy:
        return prims.tensor_from_sequence(values, device=device, dtype=dtypes.int64)

    if total == 0:
        return prims.full((2, 0), 0, device=device, dtype=dtype)
    ends = list(itertools.accumulate(counts))
    places = prims.iota(total, start=0, step=1, device=device, dtype=dtypes.int64)
    row = prims.searchsorted(constant(ends), places, right=True)
    first = constant([start - (end - count) for (start, _), end, count in zip(lines, ends, counts)])
    column = prims.add(places, prims.take(first, 0, row))
    return clang.maybe_convert_to_dtype(clang.stack([row, column]), dtype)


@torchsymbol(torch.tril_indices, is_method=False, tags=(NON_DIFFERENTIABLE,))
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = torch.int64, device: Any = None) -> TensorProxy:
    """Return the positions of the lower triangle of a `row` by `col` matrix: row indices first, then column indices."""
    kind = dtypes.to_dtype(dtype) or dtypes.int64
    _check_indices("tril_indices", row, col, kind)
    return _rows_and_columns([(0, min(max(i + offset + 1, 0), col)) for i in range(row)], device, kind)


@torchsymbol(torch.triu_indices, is_method=False, tags=(NON_DIFFERENTIABLE,))
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = torch.int64, device: Any = None) -> TensorProxy:
    """Return the positions of the upper triangle of a `row` by `col` matrix: row indices first, then column indices."""
    kind = dtypes.to_dtype(dtype) or dtypes.int64
    _check_indices("triu_indices", row, col, kind)
    return _rows_and_columns([(min(max(i + offset, 0), col), col) for i in range(row)], device, kind)


def _index_samples(make: MakeTensor) -> Any:
    device = make((0,)).device
    for row, col, offset in ((3, 4, 0), (4, 3, -1), (3, 3, 2), (0, 3, 0), (3, 3, -5), (5, 2, 1)):
        yield SampleInput(row, col, offset, device=device)
    yield SampleInput(2, 2, dtype=torch.int32, device=device)


def _index_errors(make: MakeTensor) -> Any:
    yield SampleInput(-1, 2), RuntimeError, "row must be non-negative"


for _sym in (tril_indices, triu_indices):
    _sym.samples(_index_samples)
    _sym.errors(_index_errors)
