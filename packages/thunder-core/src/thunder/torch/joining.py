# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language that join tensors (e.g. cat, stack, meshgrid) or repeat them (e.g. tile)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from thunder import clang
from thunder.clang.shape import numel
from thunder.core import dtypes, prims
from thunder.core.errors import TracingError, check
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.promotion import result_type
from thunder.core.proxies import TensorProxy, number_value
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import equal_shapes, index
from thunder.torch.arguments import flexible
from thunder.torch.base import torchsymbol
from thunder.torch.shape import atleast_1d, atleast_2d, atleast_3d, own_memory

_SHAPE = (OpTags.SHAPE_OP,)


# -- cat --------------------------------------------------------------------------------------------------------------
def _cat(tensors: Sequence[TensorProxy], dim: int) -> TensorProxy:
    check(len(tensors) > 0, lambda: "torch.cat(): expected a non-empty list of Tensors", ValueError)
    for i, t in enumerate(tensors):
        if t.ndim == 0:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")
    dtype = result_type(*tensors)
    # For historical reasons, a tensor of shape (0,) can be concatenated with any other tensor.
    kept = [t for t in tensors if not equal_shapes(t.shape, (0,))] or [tensors[0]]
    return prims.cat([clang.maybe_convert_to_dtype(t, dtype) for t in kept], canonicalize_dim(kept[0].ndim, dim))


@torchsymbol(torch.cat, is_method=False, tags=_SHAPE, autocast={"cpu": "widest"})
def cat(tensors: Sequence[TensorProxy], dim: int = 0) -> TensorProxy:
    """Concatenate tensors along `dim`."""
    return _cat(tensors, dim)


@torchsymbol(torch.concat, is_method=False, tags=_SHAPE)
def concat(tensors: Sequence[TensorProxy], dim: int = 0) -> TensorProxy:
    """Concatenate tensors along `dim`: an alias of `cat`."""
    return _cat(tensors, dim)


@torchsymbol(torch.concatenate, is_method=False, tags=_SHAPE)
def concatenate(tensors: Sequence[TensorProxy], dim: int = 0) -> TensorProxy:
    """Concatenate tensors along `dim`: an alias of `cat`, as in NumPy."""
    return _cat(tensors, dim)


def _cat_samples(make: MakeTensor) -> Any:
    yield SampleInput([make((2, 3)), make((4, 3))])
    yield SampleInput((make((2, 3)), make((2, 0)), make((2, 1))), 1)
    yield SampleInput([make((3,))], -1)
    yield SampleInput([make((0,)), make((2, 3)), make((1, 3))])
    yield SampleInput([make((0,)), make((0,))])
    yield SampleInput([make((2, 3)).mT, make((3, 2))], -1)
    yield SampleInput([make((2, 3)), make((2, 3), dtype=dtypes.float64)])


def _cat_errors(make: MakeTensor) -> Any:
    a = make((2, 3))
    yield SampleInput([a, make((2, 4))]), RuntimeError, "Sizes of tensors must match except in dimension 0"
    yield SampleInput([a, make((2,))]), RuntimeError, "Tensors must have same number of dimensions: got 2 and 1"
    yield SampleInput([make(())]), RuntimeError, "zero-dimensional tensor .at position 0. cannot be concatenated"
    yield SampleInput([a, a], 2), IndexError, "Dimension out of range"


for _sym in (cat, concat, concatenate):
    _sym.samples(_cat_samples)
    _sym.errors(_cat_errors)


@torchsymbol(torch.stack, is_method=False, tags=_SHAPE, autocast={"cpu": "widest"})
def stack(tensors: Sequence[TensorProxy], dim: int = 0) -> TensorProxy:
    """Join tensors of the same shape along a new dimension."""
    check(len(tensors) > 0, lambda: "stack expects a non-empty TensorList")
    dtype = result_type(*tensors)
    return clang.stack([clang.maybe_convert_to_dtype(t, dtype) for t in tensors], dim)


@stack.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput([make((2, 3)), make((2, 3))])
    yield SampleInput((make((2, 3)), make((2, 3)), make((2, 3))), -1)
    yield SampleInput([make(()), make(())], 0)
    yield SampleInput([make((0, 2))], 1)
    yield SampleInput([make((2,)), make((2,), dtype=dtypes.float64)], 1)


@stack.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput([make((2, 3)), make((3, 2))]), RuntimeError, "stack expects each tensor to be equal size"
    yield SampleInput([make((2,)), make((2,))], 2), IndexError, "Dimension out of range"


def _at_least(rank: int, tensors: Sequence[TensorProxy], name: str) -> list[TensorProxy]:
    check(len(tensors) > 0, lambda: f"{name} expects a non-empty TensorList")
    raised = {1: atleast_1d, 2: atleast_2d, 3: atleast_3d}[rank].meta
    return [raised(x) for x in tensors]


@torchsymbol(torch.hstack, is_method=False, tags=_SHAPE)
def hstack(tensors: Sequence[TensorProxy]) -> TensorProxy:
    """Concatenate tensors along their second dimension, or vectors along their only one."""
    tensors = _at_least(1, tensors, "hstack")
    return _cat(tensors, 0 if tensors[0].ndim == 1 else 1)


@torchsymbol(torch.vstack, is_method=False, tags=_SHAPE)
def vstack(tensors: Sequence[TensorProxy]) -> TensorProxy:
    """Concatenate tensors along their first dimension. Vectors are rows."""
    return _cat(_at_least(2, tensors, "vstack"), 0)


@torchsymbol(torch.row_stack, is_method=False, tags=_SHAPE)
def row_stack(tensors: Sequence[TensorProxy]) -> TensorProxy:
    """Concatenate tensors along their first dimension: an alias of `vstack`."""
    return _cat(_at_least(2, tensors, "row_stack"), 0)


@torchsymbol(torch.dstack, is_method=False, tags=_SHAPE)
def dstack(tensors: Sequence[TensorProxy]) -> TensorProxy:
    """Concatenate tensors along their third dimension."""
    return _cat(_at_least(3, tensors, "dstack"), 2)


@torchsymbol(torch.column_stack, is_method=False, tags=_SHAPE)
def column_stack(tensors: Sequence[TensorProxy]) -> TensorProxy:
    """Concatenate tensors along their second dimension. Vectors are columns."""
    check(len(tensors) > 0, lambda: "column_stack expects a non-empty TensorList")
    return _cat([clang.reshape(x, (numel(x.shape), 1)) if x.ndim <= 1 else x for x in tensors], 1)


def _stack_samples(make: MakeTensor) -> Any:
    yield SampleInput([make((2, 3)), make((2, 3))])
    yield SampleInput([make((3,)), make((3,))])
    yield SampleInput((make(()), make(())))
    yield SampleInput([make((2, 3, 1)), make((2, 3, 1))])


def _stack_errors(make: MakeTensor) -> Any:
    yield (
        SampleInput([make((2, 3, 4)), make((5, 6, 7))]),
        RuntimeError,
        "Sizes of tensors must match except in dimension",
    )


for _sym in (hstack, vstack, row_stack, dstack, column_stack):
    _sym.samples(_stack_samples)
    _sym.errors(_stack_errors)


@torchsymbol(torch.block_diag, is_method=False, tags=_SHAPE)
def block_diag(*tensors: TensorProxy) -> TensorProxy:
    """Return a matrix with the given matrices on its diagonal and zeros elsewhere."""
    check(len(tensors) > 0, lambda: "torch.block_diag(): expected at least one tensor", ValueError)
    dtype = result_type(*tensors)
    blocks = []
    for i, x in enumerate(tensors):
        if x.ndim > 2:
            raise RuntimeError(
                f"torch.block_diag: Input tensors must have 2 or fewer dimensions. Input {i} has {x.ndim} dimensions"
            )
        blocks.append(clang.maybe_convert_to_dtype(_at_least(2, [x], "block_diag")[0], dtype))
    width = sum([b.shape[1] for b in blocks])
    rows, left = [], 0
    for b in blocks:
        rows.append(clang.pad(b, 0, ((0, 0, 0), (left, width - left - b.shape[1], 0))))
        left += b.shape[1]
    return prims.cat(rows, 0)


@block_diag.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((1, 2)))
    yield SampleInput(make((3,)), make(()), make((2, 1)))
    yield SampleInput(make((0, 2)), make((2, 0)))


@block_diag.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2, 2))), RuntimeError, "must have 2 or fewer dimensions"


# -- again and again --------------------------------------------------------------------------------------------------
def _repeated(a: TensorProxy, repeats: Sequence[int]) -> TensorProxy:
    sizes = (1,) * (len(repeats) - a.ndim) + a.shape
    # Expand each dimension to (repeats, size), and then merge the two.
    spread = [n for pair in zip(repeats, sizes) for n in pair]
    kept = tuple([2 * d + 1 for d in range(len(repeats) - a.ndim, len(repeats))])
    wide = prims.broadcast_in_dim(a, spread, kept)
    return own_memory(clang.reshape(wide, tuple([r * n for r, n in zip(repeats, sizes)])), a)


@flexible(one_by_one="repeats", size="repeats", sizes="repeats")
@torchsymbol(torch.Tensor.repeat, tags=_SHAPE)
def repeat(input: TensorProxy, repeats: Sequence[int]) -> TensorProxy:
    """Repeat `input` along each dimension. Additional repeats add leading dimensions."""
    counts = [index(n) for n in repeats]
    check(
        len(counts) >= input.ndim,
        lambda: "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor",
    )
    for n in counts:
        clang.base.demand(
            n, ">=", 0, lambda: f"Trying to create tensor with negative dimension: repeat counts are {counts}"
        )
    return _repeated(input, counts)


@flexible(one_by_one="dims")
@torchsymbol(torch.tile, tags=_SHAPE)
def tile(input: TensorProxy, dims: Sequence[int]) -> TensorProxy:
    """Repeat `input` along its last dimensions. Missing repeats are ones."""
    counts = [index(n) for n in dims]
    return _repeated(input, [1] * (input.ndim - len(counts)) + counts)


@repeat.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (2, 2))
    yield SampleInput(make((3,)), (4, 2))
    yield SampleInput(make(()), (3,))
    yield SampleInput(make((2, 3)), (1, 0))
    yield SampleInput(make((2, 3)), (1, 1))
    yield SampleInput(make((3, 2)).mT, (1, 2))


@repeat.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (2,)), RuntimeError, "Number of dimensions of repeat dims can not be smaller"
    yield SampleInput(make((2,)), (-1,)), RuntimeError, "Trying to create tensor with negative dimension"


@tile.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (2, 2))
    yield SampleInput(make((2, 3)), (2,))
    yield SampleInput(make((3,)), (2, 1, 2))
    yield SampleInput(make(()), ())


def _unknown_count() -> TracingError:
    return TracingError(
        "the size of the result of repeat_interleave with a tensor of counts is the sum of the counts, which is not "
        "known while tracing. Pass output_size=, or a Python number of repeats"
    )


@torchsymbol(torch.repeat_interleave, tags=_SHAPE)
def repeat_interleave(
    input: TensorProxy, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> TensorProxy:
    """Return each element of `input` (or each slice along `dim`) `repeats` times in a row."""
    if repeats is None:  # torch.repeat_interleave(counts): repeat each position
        if output_size is None:
            raise _unknown_count()
        positions = prims.iota(input.shape[0], start=0, step=1, device=input.device, dtype=dtypes.int64)
        return prims.take(positions, 0, _dealt(input, output_size))
    if dim is None:
        input, dim = clang.reshape(input, (numel(input.shape),)), 0
    dim = canonicalize_dim(input.ndim, dim)
    if isinstance(repeats, TensorProxy):
        return _interleaved_by_tensor(input, repeats, dim, output_size)
    repeats = index(number_value(repeats))
    clang.base.demand(repeats, ">=", 0, lambda: "Repeats must be non-negative")
    wide = clang.unsqueeze(input, dim + 1)
    wide = clang.base.expand(wide, (*wide.shape[: dim + 1], repeats, *wide.shape[dim + 2 :]))
    return own_memory(
        clang.reshape(wide, (*input.shape[:dim], input.shape[dim] * repeats, *input.shape[dim + 1 :])), input
    )


def _dealt(counts: TensorProxy, total: int) -> TensorProxy:
    """Return an index for each of `total` elements: index i occurs `counts[i]` times in a row."""
    ends = prims.cumsum(clang.maybe_convert_to_dtype(counts, dtypes.int64), 0)
    places = prims.iota(total, start=0, step=1, device=counts.device, dtype=dtypes.int64)
    return prims.searchsorted(ends, places, right=True)


def _interleaved_by_tensor(a: TensorProxy, repeats: TensorProxy, dim: int, output_size: int | None) -> TensorProxy:
    check(
        dtypes.is_nonboolean_integer_dtype(repeats.dtype),
        lambda: f"repeats has to be Long or Int tensor, but it is {repeats.dtype}",
    )
    check(repeats.ndim <= 1, lambda: "repeats must be 0-dim or 1-dim tensor")
    length = a.shape[dim]
    check(
        repeats.ndim == 0 or repeats.shape[0] in (1, length),
        lambda: (
            f"repeats must have the same size as input along dim, but got repeats.size(0) = {repeats.shape[0]} and "
            f"input.size({dim}) = {length}"
        ),
    )
    if output_size is None:
        raise _unknown_count()
    counts = clang.base.expand(repeats, (length,)) if repeats.shape != (length,) else repeats
    return prims.take(a, dim, _dealt(counts, operator.index(number_value(output_size))))


@repeat_interleave.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 2)
    yield SampleInput(make((2, 3)), 3, 1)
    yield SampleInput(make((2, 3)), 2, dim=-2)
    yield SampleInput(make(()), 3)
    yield SampleInput(make((2, 3)), 0, 0)
    yield SampleInput(make((2, 3)), 1, 1)
    counts = torch.tensor([1, 0, 2], device=make((0,)).device)
    yield SampleInput(make((2, 3)), counts, 1, output_size=3)
    yield SampleInput(counts, output_size=3)


@repeat_interleave.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), -1), RuntimeError, "negative"
    yield SampleInput(make((2, 3)), 2, 2), IndexError, "Dimension out of range"


@torchsymbol(torch.meshgrid, is_method=False, tags=_SHAPE)
def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[TensorProxy, ...]:
    """Return the coordinates of the points of a grid, with one tensor for each axis. `indexing` is "ij" or "xy"."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    check(len(tensors) > 0, lambda: "meshgrid expects a non-empty TensorList")
    check(
        indexing in (None, "ij", "xy"),
        lambda: f'torch.meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}',
    )
    first = tensors[0]
    for x in tensors:
        if x.ndim > 1:
            raise RuntimeError(f"torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got: {x.name}")
        if x.dtype is not first.dtype:
            raise RuntimeError("torch.meshgrid expects all tensors to have the same dtype")
        if x.device is not first.device:
            raise RuntimeError("torch.meshgrid expects all tensors to have the same device")
    swap = indexing == "xy" and len(tensors) >= 2
    axes = [clang.reshape(x, (-1,)) if x.ndim == 0 else x for x in tensors]
    if swap:
        axes[0], axes[1] = axes[1], axes[0]
    shape = [x.shape[0] for x in axes]
    grids = [prims.broadcast_in_dim(x, shape, (d,)) for d, x in enumerate(axes)]
    if swap:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


@meshgrid.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), make((2,)), indexing="ij")
    yield SampleInput(make((3,)), make((2,)), make((4,)), indexing="xy")
    yield SampleInput(make((3,)), make(()), indexing="ij")
    yield SampleInput(make((0,)), make((2,)), indexing="xy")


@meshgrid.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), indexing="ij"), RuntimeError, "Expected 0D or 1D tensor"
    yield SampleInput(make((3,)), indexing="zz"), RuntimeError, "indexing must be one of"


@torchsymbol(torch.cartesian_prod, is_method=False, tags=_SHAPE)
def cartesian_prod(*tensors: TensorProxy) -> TensorProxy:
    """Return all combinations of elements of the tensors, as rows."""
    check(all(x.ndim == 1 for x in tensors), lambda: "Expect a 1D vector, but got a tensor of another rank")
    if len(tensors) == 1:
        return tensors[0]
    grids = meshgrid.meta(*tensors, indexing="ij")
    return clang.stack([clang.reshape(g, (numel(g.shape),)) for g in grids], 1)


@cartesian_prod.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), make((2,)))
    yield SampleInput(make((3,)))
    yield SampleInput(make((2,)), make((0,)), make((2,)))


@cartesian_prod.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), make((2,))), RuntimeError, "Expect a 1D vector"
