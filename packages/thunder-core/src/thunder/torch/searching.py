# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language that return positions: searchsorted, bucketize and nonzero_static."""

from __future__ import annotations

import operator
from typing import Any

import torch

from thunder import clang
from thunder.clang.shape import numel
from thunder.core import dtypes, prims
from thunder.core.errors import check
from thunder.core.prims.metas import is_number
from thunder.core.proxies import TensorProxy, number_type, number_value
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import NON_DIFFERENTIABLE
from thunder.torch.base import torchsymbol


@torchsymbol(torch.searchsorted, tags=(NON_DIFFERENTIABLE,))
def searchsorted(
    sorted_sequence: TensorProxy,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: TensorProxy | None = None,
) -> TensorProxy:
    """Return where to insert each element of `input` to keep the last dimension of `sorted_sequence` sorted."""
    check(
        side in (None, "left", "right"),
        lambda: f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}",
    )
    check(
        not (side == "left" and right),
        lambda: "torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True",
    )
    if sorter is not None:
        check(
            sorter.shape == sorted_sequence.shape,
            lambda: (
                "torch.searchsorted(): boundary and sorter must have the same size, but got boundary tensor "
                f"{list(sorted_sequence.shape)} and got sorter tensor {list(sorter.shape)}"
            ),
        )
        sorted_sequence = prims.gather(sorted_sequence, sorted_sequence.ndim - 1, sorter)
    values = _as_value(input, sorted_sequence)
    return prims.searchsorted(sorted_sequence, values, out_int32=bool(out_int32), right=bool(right or side == "right"))


def _as_value(input: Any, like: TensorProxy) -> TensorProxy:
    if not is_number(input):
        return input
    value = number_value(input)
    dtype = like.dtype if dtypes.category(number_type(value)) <= like.dtype.category else dtypes.float64
    return prims.full((), value, device=like.device, dtype=dtype)


@searchsorted.samples
def _(make: MakeTensor) -> Any:
    line = make((6,), requires_grad=False)
    yield SampleInput(line.sort()[0], make((3, 4)))
    yield SampleInput(make((2, 6)).sort()[0], make((2, 3)), right=True)
    yield SampleInput(line.sort()[0], make(()), out_int32=True)
    yield SampleInput(line, make((2,)), side="right", sorter=line.argsort())
    yield SampleInput(line.sort()[0], 1)


@searchsorted.errors
def _(make: MakeTensor) -> Any:
    a = make((3,))
    yield SampleInput(a, a, side="left", right=True), RuntimeError, "side and right can't be set to opposites"
    yield SampleInput(make(()), a), RuntimeError, "boundaries tensor should have positive dimension"
    yield SampleInput(make((2, 3)), make((3, 3))), RuntimeError, "boundaries tensor should be 1 dimension or the first"


@torchsymbol(torch.bucketize, tags=(NON_DIFFERENTIABLE,))
def bucketize(input: Any, boundaries: TensorProxy, *, out_int32: bool = False, right: bool = False) -> TensorProxy:
    """Return the index of the interval between the sorted `boundaries` that contains each element of `input`."""
    check(boundaries.ndim == 1, lambda: f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return prims.searchsorted(boundaries, _as_value(input, boundaries), out_int32=bool(out_int32), right=bool(right))


@bucketize.samples
def _(make: MakeTensor) -> Any:
    line = make((6,), requires_grad=False).sort()[0]
    yield SampleInput(make((3, 4)), line)
    yield SampleInput(make(()), line, right=True)
    yield SampleInput(make((2,)), line, out_int32=True)
    yield SampleInput(2, line)


@bucketize.errors
def _(make: MakeTensor) -> Any:
    yield (
        SampleInput(make((3,)), make((2, 2))),
        RuntimeError,
        r"boundaries tensor must be 1 dimension, but got dim\(2\)",
    )


@torchsymbol(torch.nonzero_static, tags=(NON_DIFFERENTIABLE,))
def nonzero_static(input: TensorProxy, *, size: int, fill_value: int = -1) -> TensorProxy:
    """Return the positions of the first `size` nonzero elements, as rows. Missing rows contain `fill_value`."""
    size, count = operator.index(number_value(size)), numel(input.shape)
    check(size >= 0, lambda: "nonzero_static: 'size' must be an non-negative integer")

    def whole(shape: tuple[int, ...], value: int) -> TensorProxy:
        return prims.full(shape, value, device=input.device, dtype=dtypes.int64)

    if input.ndim == 0 or count == 0 or size == 0:
        return whole((size, input.ndim), fill_value)
    flat = clang.maybe_convert_to_dtype(clang.reshape(clang.ne(input, 0), (count,)), dtypes.int64)
    seen = prims.cumsum(flat, 0)
    # The n-th nonzero element is written to row n, and all other elements to one additional row.
    wanted = clang.logical_and(clang.ne(flat, 0), clang.le(seen, size))
    place = prims.where(wanted, seen - 1, size)
    order = prims.iota(count, start=0, step=1, device=input.device, dtype=dtypes.int64)
    found = clang.slice_in_dim(prims.scatter(whole((size + 1,), 0), 0, place, order), 0, size)
    coordinates, step = [], count
    for n in input.shape:
        step //= n
        coordinates.append(clang.remainder(clang.floor_divide(found, step), n))
    total = clang.slice_in_dim(seen, count - 1, count)
    there = clang.lt(prims.iota(size, start=0, step=1, device=input.device, dtype=dtypes.int64), total)
    rows = clang.stack(coordinates, 1)
    return prims.where(prims.broadcast_in_dim(there, rows.shape, (0,)), rows, fill_value)


@nonzero_static.samples
def _(make: MakeTensor) -> Any:
    mask = make((3, 4), dtype=dtypes.bool8)
    for size in (12, 3, 20, 0):
        yield SampleInput(mask, size=size)
    yield SampleInput(make((5,), low=0, high=2), size=4, fill_value=7)
    yield SampleInput(make((0, 2)), size=2)


@nonzero_static.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), size=-1), RuntimeError, "must be an non-negative integer"
