# SPDX-License-Identifier: Apache-2.0
"""Shape operations of the core language: they accept negative dimensions and inferred sizes (-1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.clang.base import clangop, demand, maybe_broadcast, maybe_convert_to_dtype
from thunder.core import prims
from thunder.core.errors import check
from thunder.core.prims.metas import canonicalize_dim, canonicalize_dims
from thunder.core.promotion import promote
from thunder.core.proxies import TensorProxy
from thunder.core.symint.numbers import equal_shapes, index, is_unbacked, same_number, same_shape

__all__ = [
    "broadcast_tensors", "cat", "diagonal", "flatten", "flip", "movedim", "pad", "reshape", "slice_in_dim",
    "squeeze", "stack", "transpose", "unfold", "unsqueeze",
]  # fmt: skip


def numel(shape: Sequence[int]) -> int:
    """Return the number of elements of a tensor of `shape`."""
    n = 1
    for size in shape:
        n *= size
    return n


def infer_shape(shape: Sequence[Any], count: int) -> tuple[int, ...]:
    """Replace a -1 in `shape` so that it has `count` elements, or raise torch's errors."""
    sizes = [index(n) for n in shape]
    open_at = None
    known = 1
    for d, n in enumerate(sizes):
        if is_unbacked(n):
            known *= n  # if the size is negative, torch raises an error when the program runs
        elif n == -1:
            check(open_at is None, lambda: "only one dimension can be inferred")
            open_at = d
        else:
            if n < 0:
                raise RuntimeError(f"invalid shape dimension {n}")
            known *= n
    if open_at is not None:
        check(
            is_unbacked(known) or known != 0,
            lambda: (
                f"cannot reshape tensor of {count} elements into shape {sizes} because the unspecified dimension size "
                "-1 can be any value and is ambiguous"
            ),
        )
        if is_unbacked(count, known) or count % known == 0:
            if is_unbacked(count, known) and not same_number(count % known, 0):
                demand(count % known, "==", 0, lambda: f"shape '{sizes}' is invalid for input of size {count}")
            sizes[open_at] = count // known
            return tuple(sizes)
    check(open_at is None, lambda: f"shape '{sizes}' is invalid for input of size {count}")
    demand(known, "==", count, lambda: f"shape '{sizes}' is invalid for input of size {count}")
    return tuple(sizes)


@clangop(method_name="reshape")
def reshape(a: TensorProxy, shape: Sequence[int]) -> TensorProxy:
    """Reshape `a` to `shape`, in which one size may be -1."""
    sizes = infer_shape(shape, numel(a.shape))
    return a if same_shape(sizes, a.shape) else prims.reshape(a, sizes)


@clangop()
def transpose(a: TensorProxy, permutation: Sequence[int]) -> TensorProxy:
    """Permute the dimensions of `a`."""
    dims = canonicalize_dims(a.ndim, tuple(permutation), wrap_scalar=False)
    return a if dims == tuple(range(a.ndim)) else prims.transpose(a, dims)


@clangop()
def movedim(a: TensorProxy, source: int | Sequence[int], destination: int | Sequence[int]) -> TensorProxy:
    """Move the dimensions `source` to the positions `destination`; the others keep their order."""
    given = [(x,) if isinstance(x, int) else tuple(x) for x in (source, destination)]
    check(
        len(given[0]) == len(given[1]),
        lambda: (
            f"movedim: Invalid source or destination dims: source ({list(given[0])} dims) should contain the same "
            f"number of dims as destination ({list(given[1])} dims)"
        ),
    )
    source, destination = canonicalize_dims(a.ndim, given[0]), canonicalize_dims(a.ndim, given[1])
    if a.ndim == 0:
        return a
    order: list[Any] = [None] * a.ndim
    for s, d in zip(source, destination):
        order[d] = s
    rest = iter([d for d in range(a.ndim) if d not in source])
    return transpose(a, tuple([next(rest) if d is None else d for d in order]))


@clangop()
def squeeze(a: TensorProxy, dims: int | Sequence[int]) -> TensorProxy:
    """Remove the dimensions in `dims` that have size 1."""
    drop = tuple([d for d in canonicalize_dims(a.ndim, dims) if a.ndim and a.shape[d] == 1])
    return prims.squeeze(a, tuple(sorted(drop))) if drop else a


@clangop()
def unsqueeze(a: TensorProxy, dims: int | Sequence[int]) -> TensorProxy:
    """Insert dimensions of size 1 at the positions `dims` of the result."""
    rank = a.ndim + (1 if isinstance(dims, int) else len(dims))
    new = canonicalize_dims(rank, dims)
    kept = [d for d in range(rank) if d not in new]
    shape = [1] * rank
    for n, d in zip(a.shape, kept):
        shape[d] = n
    return prims.broadcast_in_dim(a, shape, kept)


@clangop()
def flatten(a: TensorProxy, start_dim: int = 0, end_dim: int = -1) -> TensorProxy:
    """Merge the dimensions from `start_dim` to `end_dim`."""
    start, end = canonicalize_dim(a.ndim, start_dim), canonicalize_dim(a.ndim, end_dim)
    check(start <= end, lambda: "flatten() has invalid args: start_dim cannot come after end_dim")
    if a.ndim == 0:
        return reshape(a, (1,))
    return reshape(a, (*a.shape[:start], numel(a.shape[start : end + 1]), *a.shape[end + 1 :]))


@clangop()
def flip(a: TensorProxy, dims: int | Sequence[int]) -> TensorProxy:
    """Reverse the order of elements along `dims`."""
    dims = canonicalize_dims(a.ndim, dims)
    return prims.flip(a, dims) if dims and a.ndim else a


@clangop()
def slice_in_dim(a: TensorProxy, start: int, stop: int, stride: int = 1, dim: int = 0) -> TensorProxy:
    """Slice one dimension from `start` to `stop`, which must be nonnegative and within the dimension."""
    dim = canonicalize_dim(a.ndim, dim, wrap_scalar=False)
    n = a.shape[dim]
    if is_unbacked(start, stop, n):
        whole = same_number(start, 0) and same_number(stop, n)
    else:
        whole = start == 0 and stop == n
    if whole and stride == 1:
        return a
    starts, stops, strides = [0] * a.ndim, list(a.shape), [1] * a.ndim
    starts[dim], stops[dim], strides[dim] = start, stop, stride
    return prims.slice(a, tuple(starts), tuple(stops), None if stride == 1 else tuple(strides))


@clangop()
def cat(tensors: Sequence[TensorProxy], dim: int = 0) -> TensorProxy:
    """Concatenate tensors along `dim`, in their promoted dtype."""
    check(len(tensors) > 0, lambda: "cat expects at least one tensor", ValueError)
    dtype = tensors[0].dtype
    for t in tensors:
        dtype = promote(dtype, t.dtype)
    return prims.cat([maybe_convert_to_dtype(t, dtype) for t in tensors], dim)


@clangop()
def stack(tensors: Sequence[TensorProxy], dim: int = 0) -> TensorProxy:
    """Stack tensors of one shape along a new dimension."""
    check(len(tensors) > 0, lambda: "stack expects a non-empty TensorList")
    first = tensors[0]
    for i, t in enumerate(tensors):
        if not equal_shapes(t.shape, first.shape):
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(first.shape)} at entry 0 and "
                f"{list(t.shape)} at entry {i}"
            )
    dim = canonicalize_dim(first.ndim + 1, dim)
    return cat([unsqueeze(t, dim) for t in tensors], dim)


@clangop()
def pad(a: TensorProxy, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> TensorProxy:
    """Insert `padding_value` before, after and between elements.

    `padding_config` contains `(low, high, between)` for each dimension.
    """
    return prims.pad(a, maybe_convert_to_dtype(padding_value, a.dtype), tuple(padding_config))


@clangop()
def unfold(a: TensorProxy, dim: int, size: int, step: int) -> TensorProxy:
    """Return the windows of `size` elements that start at every `step`-th position along `dim`.

    The elements of a window are the last dimension of the result.
    """
    return prims.unfold(a, dim, size, step)


@clangop()
def diagonal(a: TensorProxy, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorProxy:
    """Return the diagonals of the matrices in `dim1` and `dim2` as the last dimension.

    `offset` is the distance above the main diagonal.
    """
    flat, window = diagonal_window(a, offset, dim1, dim2)
    return prims.slice(flat, *window)


def diagonal_window(a: TensorProxy, offset: int, dim1: int, dim2: int) -> tuple[TensorProxy, Any]:
    """Return `a` with its matrices flattened to the last dimension, and the strided slice that selects the diagonal."""
    first, second = canonicalize_dim(a.ndim, dim1, False), canonicalize_dim(a.ndim, dim2, False)
    check(first != second, lambda: f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    rows, columns = a.shape[first], a.shape[second]
    rest = [d for d in range(a.ndim) if d not in (first, second)]
    moved = transpose(a, (*rest, first, second))
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    start = 0 if length == 0 else offset if offset >= 0 else -offset * columns
    stop = start + (length - 1) * (columns + 1) + 1 if length else start
    sizes = moved.shape[:-2]
    flat = reshape(moved, (*sizes, rows * columns))
    zeros, ones = (0,) * len(sizes), (1,) * len(sizes)
    return flat, ((*zeros, start), (*sizes, stop), (*ones, columns + 1))


@clangop()
def broadcast_tensors(*tensors: TensorProxy) -> tuple[TensorProxy, ...]:
    """Broadcast tensors to one shape."""
    return maybe_broadcast(*tensors)
