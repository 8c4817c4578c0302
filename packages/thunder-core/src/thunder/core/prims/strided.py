# SPDX-License-Identifier: Apache-2.0
"""Primitives that return views with arbitrary strides: `unfold`, whose windows may overlap, and `as_strided`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.indexing import arithmetic_index, index_add
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.prims.shape import VIEW, product, reshape, transpose
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput


# -- windows ----------------------------------------------------------------------------------------------------------
@prim(torch="torch.Tensor.unfold", tags=VIEW)
def unfold(a: TensorProxy, dim: int, size: int, step: int, /) -> TensorProxy:
    """Return the windows of `size` elements that start at every `step`-th position along `dim`.

    The elements of a window are the last dimension of the result.
    """
    dim = canonicalize_dim(a.ndim, dim)
    longest = a.shape[dim] if a.ndim else 1
    check(size <= longest, lambda: f"Maximum size for tensor at dimension {dim} is {longest} but size is {size}")
    check(size >= 0, lambda: f"Size is {size} but must be >= 0")
    check(step > 0, lambda: f"Step is {step} but must be > 0")
    if a.ndim == 0:
        return TensorProxy(like=a, shape=(size,))
    windows = (longest - size) // step + 1
    return TensorProxy(like=a, shape=(*a.shape[:dim], windows, *a.shape[dim + 1 :], size))


@unfold.vjp
def _(g: Any, out: Any, a: Any, dim: Any, size: Any, step: Any) -> Any:
    zeros = a.new_zeros(a.shape)
    if a.ndim == 0:
        return zeros if size == 0 else reshape(g, ())
    dim = canonicalize_dim(a.ndim, dim)
    # Element j of window i is element i * step + j of `a`: make both dimensions adjacent, and add `g` at that position.
    order = (*range(dim + 1), a.ndim, *range(dim + 1, a.ndim))
    windows = out.shape[dim]
    flat = reshape(transpose(g, order), (*a.shape[:dim], windows * size, *a.shape[dim + 1 :]))
    return index_add(zeros, dim, arithmetic_index((windows, size), (step, 1), 0, a.device), flat)


@unfold.batch
def _(b: Any, a: Any, dim: Any, size: Any, step: Any) -> Any:
    out = unfold(b.at_least_1d(a), b.dim(a, dim), size, step)
    return reshape(out, (b.size, size)) if b.ndim(a) == 0 else out


@unfold.samples
def _(make: MakeTensor) -> Any:
    for shape, dim, size, step in (
        ((6, 2), 0, 2, 2), ((), 0, 1, 3), ((), -1, 0, 5), ((0,), 0, 0, 1), ((8,), 0, 2, 1), ((2, 7, 3), 1, 3, 2),
        ((2, 9), -1, 2, 4), ((5,), 0, 5, 1), ((3,), 0, 0, 1),
    ):  # fmt: skip
        yield SampleInput(make(shape), dim, size, step)
    yield SampleInput(make((3, 6)).mT, 0, 3, 1)


@unfold.errors
def _(make: MakeTensor) -> Any:
    too_long = "Maximum size for tensor at dimension 0 is {} but size is {}"
    yield SampleInput(make(()), 0, 2, 1), RuntimeError, too_long.format(1, 2)
    yield SampleInput(make((0,)), 0, 0, -1), RuntimeError, "Step is -1 but must be > 0"
    yield (
        SampleInput(make((8,)), 1, 2, 1),
        IndexError,
        r"Dimension out of range \(expected to be in range of \[-1, 0\], but got 1\)",
    )
    yield SampleInput(make((8,)), 0, -5, 1), RuntimeError, "Size is -5 but must be >= 0"
    yield SampleInput(make((8,)), 0, 10, 1), RuntimeError, too_long.format(8, 10)


@prim(tags=VIEW)
def as_strided(
    a: TensorProxy, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None, /
) -> TensorProxy:
    """Return a view of the memory of `a` with the sizes `size`, the strides `stride` and an offset.

    The strides of a trace's values are not known while tracing. Therefore, this primitive assumes a contiguous `a` that
    starts at the beginning of its memory. Running the primitive on any other tensor is an error.
    """
    check(
        len(size) == len(stride),
        lambda: f"mismatch in length of strides and shape: {len(stride)} strides for {len(size)} dimensions",
    )
    offset = storage_offset or 0
    check(
        all(n >= 0 for n in size) and all(s >= 0 for s in stride) and offset >= 0,
        lambda: "as_strided: sizes, strides and the offset must not be negative",
    )
    if product(size):
        last = offset + sum([(n - 1) * s for n, s in zip(size, stride)])
        check(
            last < product(a.shape),
            lambda: (
                f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset} refer to element "
                f"{last}, which is out of bounds for the {product(a.shape)} elements of {a.name}"
            ),
        )
    return TensorProxy(like=a, shape=tuple(size))


@as_strided.vjp
def _(g: Any, out: Any, a: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    where = arithmetic_index(size, stride, storage_offset or 0, a.device)
    flat = index_add(a.new_zeros((product(a.shape),)), 0, where, reshape(g, (product(size),)))
    return reshape(flat, a.shape)


@as_strided.batch
def _(b: Any, a: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    return as_strided(a, (b.size, *size), (product(a.shape[1:]), *stride), storage_offset)


@as_strided.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), (2, 2), (3, 1))
    yield SampleInput(make((10,)), (4, 3), (2, 1), 1)
    yield SampleInput(make((5,)), (), (), 3)
    yield SampleInput(make((5,)), (2, 0), (1, 1))


@as_strided.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4,)), (3, 2), (2, 1)), RuntimeError, "out of bounds"
    yield SampleInput(make((4,)), (3,), (2, 1)), RuntimeError, "mismatch in length of strides and shape"
