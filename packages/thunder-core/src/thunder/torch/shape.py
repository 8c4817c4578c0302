# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language that change the shape of a tensor, e.g. reshape, squeeze and expand.

The `view_scatter` rule of each view defines how a write to the view changes the tensor that it is a view of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder import clang
from thunder.clang.base import is_one, is_same_size
from thunder.clang.shape import infer_shape, numel
from thunder.core import dtypes, prims
from thunder.core.errors import check
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import index, is_unbacked
from thunder.torch.arguments import flexible
from thunder.torch.base import torchsymbol

VIEW = (OpTags.SHAPE_OP, OpTags.VIEW_OP)


def reshaped_back(base: Any, new: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the base of a view after a write. The view has the elements of the base in the same order."""
    return clang.reshape(new, base.shape)


def own_memory(out: TensorProxy, input: TensorProxy) -> TensorProxy:
    """Return `out`, or a copy if it is `input` itself, for operations whose result in torch is always a copy."""
    return prims.clone(input) if out is input else out


# -- reshape ----------------------------------------------------------------------------------------------------------
@flexible(one_by_one="shape", size="shape")
@torchsymbol(torch.reshape, tags=VIEW, view="maybe", keeps_order=True)
def reshape(input: TensorProxy, shape: Sequence[int]) -> TensorProxy:
    """Return the elements of `input`, in the same order, in `shape`. One size may be -1."""
    return clang.reshape(input, shape)


def _reshape_samples(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 6)), (3, 8))
    yield SampleInput(make((4, 6)), (-1,))
    yield SampleInput(make((2, 3, 4)), (2, -1))
    yield SampleInput(make(()), (1, 1))
    yield SampleInput(make((1,)), ())
    yield SampleInput(make((0, 3)), (3, -1, 2))
    yield SampleInput(make((4, 6)), (4, 6))


def _reshape_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (4, 2)), RuntimeError, r"shape '\[4, 2\]' is invalid for input of size 6"
    yield SampleInput(make((2, 3)), (-1, 4)), RuntimeError, r"shape '\[-1, 4\]' is invalid for input of size 6"
    yield SampleInput(make((2, 3)), (-1, -1)), RuntimeError, "only one dimension can be inferred"
    yield SampleInput(make((0, 3)), (0, -1)), RuntimeError, "cannot reshape tensor of"


@reshape.samples
def _(make: MakeTensor) -> Any:
    yield from _reshape_samples(make)
    yield SampleInput(make((5, 3)).mT, (15,))


@flexible(one_by_one="shape", size="shape", dtype="shape")
@torchsymbol(torch.Tensor.view, tags=VIEW, keeps_order=True)
def view(input: TensorProxy, shape: Any) -> TensorProxy:
    """Return `input` in another shape. Given a dtype, reinterpret its memory as elements of that dtype."""
    if isinstance(shape, Sequence):
        return clang.reshape(input, shape)
    return prims.bitcast(input, dtypes.to_dtype(shape))


view.samples(_reshape_samples)
view.errors(_reshape_errors)
reshape.errors(_reshape_errors)


@view.view_scatter
def _(base: Any, new: Any, shape: Any) -> Any:
    if isinstance(shape, Sequence):
        return clang.reshape(new, base.shape)
    return prims.bitcast(new, base.dtype)


@torchsymbol(torch.Tensor.view_as, tags=VIEW, keeps_order=True)
def view_as(input: TensorProxy, other: TensorProxy) -> TensorProxy:
    """Return `input` in the shape of `other`."""
    return clang.reshape(input, other.shape)


@torchsymbol(torch.Tensor.reshape_as, tags=VIEW, view="maybe", keeps_order=True)
def reshape_as(input: TensorProxy, other: TensorProxy) -> TensorProxy:
    """Return `input` in the shape of `other`."""
    return clang.reshape(input, other.shape)


def _reshape_as_samples(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 6)), make((3, 8)))
    yield SampleInput(make(()), make((1,)))
    yield SampleInput(make((0, 2)), make((3, 0)))


def _reshape_as_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((4, 2))), RuntimeError, r"shape '\[4, 2\]' is invalid for input of size 6"


@torchsymbol(torch.flatten, tags=VIEW, view="maybe", returns_input=True, keeps_order=True)
def flatten(input: TensorProxy, start_dim: int = 0, end_dim: int = -1) -> TensorProxy:
    """Merge the dimensions of `input` from `start_dim` to `end_dim`."""
    return clang.flatten(input, start_dim, end_dim)


@flatten.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3, 4)))
    yield SampleInput(make((2, 3, 4)), 1)
    yield SampleInput(make((2, 3, 4)), 0, -2)
    yield SampleInput(make(()))
    yield SampleInput(make((0, 3)), 1, 1)
    yield SampleInput(make((4, 3, 2)).mT)


@flatten.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 1, 0), RuntimeError, "start_dim cannot come after end_dim"
    yield SampleInput(make((2, 3)), 3), IndexError, "Dimension out of range"


@torchsymbol(torch.ravel, tags=VIEW, view="maybe", keeps_order=True)
def ravel(input: TensorProxy) -> TensorProxy:
    """Return the elements of `input` in one dimension."""
    return clang.reshape(input, (-1,)) if input.ndim != 1 else prims.stride_order(input, (0,))


@ravel.samples
def _(make: MakeTensor) -> Any:
    for shape in ((2, 3), (), (4,), (0, 3)):
        yield SampleInput(make(shape) if shape != (0, 3) else make((0,)))
    yield SampleInput(make((4, 3)).mT)
    yield SampleInput(make((8,))[::2])


@torchsymbol(torch.unflatten, tags=VIEW, keeps_order=True)
def unflatten(input: TensorProxy, dim: int, sizes: Sequence[int]) -> TensorProxy:
    """Split dimension `dim` of `input` into dimensions of `sizes`. One size may be -1."""
    check(len(sizes) > 0, lambda: "unflatten: sizes must be non-empty")
    dim = canonicalize_dim(input.ndim, dim, False)
    length = input.shape[dim]
    found = tuple([index(n) for n in sizes])
    inferred = found
    if -1 in found:
        rest = numel([n for n in found if n != -1])
        if rest and length % rest == 0 and found.count(-1) == 1:
            inferred = infer_shape(found, length)
    check(
        numel(inferred) == length and -1 not in inferred,
        lambda: (
            f"unflatten: Provided sizes {list(found)} don't multiply up to the size of dim {dim} ({length}) in the "
            "input tensor"
        ),
    )
    return clang.reshape(input, (*input.shape[:dim], *inferred, *input.shape[dim + 1 :]))


@unflatten.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 12)), 1, (3, 4))
    yield SampleInput(make((12, 2)), -2, (3, -1))
    yield SampleInput(make((0, 4)), 1, (2, 2))
    yield SampleInput(make((2, 6)).mT, 0, (2, 3))


@unflatten.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 12)), 1, (5, 2)), RuntimeError, "don't multiply up to the size of dim 1"
    yield SampleInput(make((2, 12)), 2, (3, 4)), IndexError, "Dimension out of range"


# -- dimensions of one element ----------------------------------------------------------------------------------------
@flexible(several="dim")
@torchsymbol(torch.squeeze, tags=VIEW, keeps_order=True)
def squeeze(input: TensorProxy, dim: int | Sequence[int] | None = None) -> TensorProxy:
    """Remove the dimensions of length 1, or those of them that `dim` names."""
    return clang.squeeze(input, tuple(range(input.ndim)) if dim is None else dim)


@squeeze.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 1, 3, 1)))
    yield SampleInput(make((2, 1, 3, 1)), 1)
    yield SampleInput(make((2, 1, 3)), 0)
    yield SampleInput(make((1, 1, 3)), (0, -2))
    yield SampleInput(make(()))
    yield SampleInput(make(()), -1)
    yield SampleInput(make((1, 0)))


@squeeze.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 1)), 2), IndexError, "Dimension out of range"
    yield SampleInput(make((2, 1)), (1, -1)), RuntimeError, "appears multiple times in the list of dims"


@torchsymbol(torch.unsqueeze, tags=VIEW, keeps_order=True)
def unsqueeze(input: TensorProxy, dim: int) -> TensorProxy:
    """Insert a dimension of length 1 at `dim`."""
    return clang.unsqueeze(input, dim)


@unsqueeze.samples
def _(make: MakeTensor) -> Any:
    for shape, dim in (((2, 3), 0), ((2, 3), -1), ((2, 3), 1), ((), 0), ((0, 2), 2)):
        yield SampleInput(make(shape), dim)
    yield SampleInput(make((5, 3)).mT, 1)


@unsqueeze.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 3), IndexError, r"expected to be in range of \[-3, 2\], but got 3"


def _atleast(rank: int, tensors: tuple[Any, ...]) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        return tuple([_atleast(rank, (t,)) for t in tensors[0]])
    if len(tensors) != 1:
        return tuple([_atleast(rank, (t,)) for t in tensors])
    a = tensors[0]
    if a.ndim == 0 and rank:
        return clang.reshape(a, (1,) * rank)
    if a.ndim == 1 and rank > 1:
        return clang.unsqueeze(a, 0) if rank == 2 else clang.unsqueeze(a, (0, 2))
    return clang.unsqueeze(a, 2) if a.ndim == 2 and rank == 3 else a


@torchsymbol(torch.atleast_1d, is_method=False, tags=VIEW, view="maybe", returns_input=True, keeps_order=True)
def atleast_1d(*tensors: Any) -> Any:
    """Return each tensor with at least one dimension."""
    return _atleast(1, tensors)


@torchsymbol(torch.atleast_2d, is_method=False, tags=VIEW, view="maybe", returns_input=True, keeps_order=True)
def atleast_2d(*tensors: Any) -> Any:
    """Return each tensor with at least two dimensions."""
    return _atleast(2, tensors)


@torchsymbol(torch.atleast_3d, is_method=False, tags=VIEW, view="maybe", returns_input=True, keeps_order=True)
def atleast_3d(*tensors: Any) -> Any:
    """Return each tensor with at least three dimensions."""
    return _atleast(3, tensors)


def _atleast_samples(make: MakeTensor) -> Any:
    for shape in ((2,), (), (2, 3), (2, 3, 4), (0,)):
        yield SampleInput(make(shape))
    yield SampleInput(make(()), make((3,)), make((2, 3)))


# -- broadcasting -----------------------------------------------------------------------------------------------------
def _check_unknown(n: Any, old: Any) -> None:
    """Check at run time that a dimension can be expanded to a data-dependent length."""
    clang.base.demand(n, ">=", 0, lambda: f"The expanded size of the tensor ({n}) must not be negative here")
    if old is not None and old != 1:
        clang.base.demand(
            n, "==", old, lambda: f"The expanded size of the tensor ({n}) must match the existing size ({old})"
        )


def _expanded_shape(a: TensorProxy, size: Sequence[Any]) -> tuple[int, ...]:
    """Return `size` with -1 replaced by the sizes of `a`. Raise torch's errors if `a` cannot be expanded."""
    sizes = [index(n) for n in size]
    new = len(sizes) - a.ndim
    check(
        new >= 0,
        lambda: (
            f"expand(torch tensor{{{list(a.shape)}}}, size={sizes}): the number of sizes provided ({len(sizes)}) must "
            f"be greater or equal to the number of dimensions in the tensor ({a.ndim})"
        ),
    )
    for d, n in enumerate(sizes):
        old = a.shape[d - new] if d >= new else None
        if is_unbacked(n):
            _check_unknown(n, old)
        elif n == -1:
            if old is None:
                raise RuntimeError(
                    f"The expanded size of the tensor (-1) isn't allowed in a leading, non-existing dimension {d}"
                )
            sizes[d] = old
        elif n < 0 or (old is not None and not (is_one(old) or is_same_size(old, n))):
            raise RuntimeError(
                f"The expanded size of the tensor ({n}) must match the existing size ({old}) at non-singleton "
                f"dimension {d}.  Target sizes: {sizes}.  Tensor sizes: {list(a.shape)}"
            )
    return tuple(sizes)


@flexible(one_by_one="size")
@torchsymbol(torch.Tensor.expand, tags=VIEW)
def expand(input: TensorProxy, size: Sequence[int], *, implicit: bool = False) -> TensorProxy:
    """Expand dimensions of length 1 to the lengths in `size`. -1 keeps a length."""
    shape = _expanded_shape(input, size)
    return prims.broadcast_in_dim(input, shape, tuple(range(len(shape) - input.ndim, len(shape))))


@torchsymbol(torch.Tensor.expand_as, tags=VIEW)
def expand_as(input: TensorProxy, other: TensorProxy) -> TensorProxy:
    """Expand `input` to the shape of `other`."""
    return clang.base.expand(input, _expanded_shape(input, other.shape))


@flexible(one_by_one="size")
@torchsymbol(torch.broadcast_to, tags=VIEW)
def broadcast_to(input: TensorProxy, size: Sequence[int]) -> TensorProxy:
    """Expand `input` to `size`."""
    return clang.base.expand(input, _expanded_shape(input, size))


def expanded_back(base: Any, new: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the base of an expanded tensor after a write. As in torch, it is an error if elements share memory."""
    check(
        numel(new.shape) in (numel(base.shape), 0),
        lambda: (
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        ),
    )
    return clang.reshape(new, base.shape) if numel(new.shape) == numel(base.shape) else base


def _expand_samples(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 1)), (2, 3))
    yield SampleInput(make((3,)), (2, 3))
    yield SampleInput(make((1, 3)), (4, -1))
    yield SampleInput(make(()), (2, 2))
    yield SampleInput(make((1, 2)), (0, 2))
    yield SampleInput(make((2, 3)), (2, 3))


def _expand_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (2, 4)), RuntimeError, r"The expanded size of the tensor \(4\) must match"
    yield SampleInput(make((2, 3)), (3,)), RuntimeError, "must be greater or equal to the number of dimensions"
    yield SampleInput(make((3,)), (-1, 3)), RuntimeError, "isn't allowed in a leading, non-existing dimension 0"


expand.samples(_expand_samples)
expand.errors(_expand_errors)
broadcast_to.samples(_expand_samples)


@expand_as.samples
def _(make: MakeTensor) -> Any:
    for s in _expand_samples(make):
        if -1 not in s.args[1]:
            yield SampleInput(s.args[0], make(s.args[1]))


@expand_as.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((2, 4))), RuntimeError, r"The expanded size of the tensor \(4\) must match"


@broadcast_to.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (2, 4)), RuntimeError, r"The expanded size of the tensor \(4\) must match"


@torchsymbol(torch.broadcast_tensors, is_method=False, tags=(OpTags.SHAPE_OP,))
def broadcast_tensors(*tensors: TensorProxy) -> tuple[TensorProxy, ...]:
    """Expand tensors to a common shape."""
    wrong = [(i, type(x).__name__) for i, x in enumerate(tensors) if not isinstance(x, TensorProxy)]
    check(
        not wrong,
        lambda: f"expected Tensor as element {wrong[0][0]} in argument 0, but got {wrong[0][1]}",
        TypeError,
    )
    return clang.maybe_broadcast(*tensors)


@broadcast_tensors.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 1)), make((3,)))
    yield SampleInput(make(()), make((0, 2)), make((1, 1)))
    yield SampleInput(make((2,)))


@broadcast_tensors.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((2,))), RuntimeError, r"The size of tensor a \(3\) must match"


for _sym in (view_as, reshape_as):
    _sym.samples(_reshape_as_samples)
    _sym.errors(_reshape_as_errors)
for _sym in (atleast_1d, atleast_2d, atleast_3d):
    _sym.samples(_atleast_samples)
for _sym in (reshape, view_as, reshape_as, flatten, ravel, unflatten, squeeze, unsqueeze):
    _sym.view_scatter(reshaped_back)
for _sym in (atleast_1d, atleast_2d, atleast_3d):
    _sym.view_scatter(reshaped_back)
    _sym.view_when(lambda *tensors: len(tensors) == 1 and isinstance(tensors[0], TensorProxy))
for _sym in (expand, expand_as, broadcast_to):
    _sym.view_scatter(expanded_back)


# -- memory -----------------------------------------------------------------------------------------------------------
def strides_order(rank: int, memory_format: Any) -> tuple[int, ...]:
    """Return the order of strides of a memory format (see `prims.stride_order`)."""
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        wanted = 4 if memory_format is torch.channels_last else 5
        name = "channels_last" if wanted == 4 else "channels_last_3d"
        check(rank == wanted, lambda: f"required rank {wanted} tensor to use {name} format")
        return (rank - 1, 0, *range(rank - 2, 0, -1))
    return tuple(range(rank - 1, -1, -1))


@torchsymbol(
    torch.Tensor.contiguous,
    tags=VIEW,
    explicit=True,
    view="maybe",
    returns_input=True,
    keeps_order=True,
    layout="contiguous",
)
def contiguous(input: TensorProxy, *, memory_format: Any = torch.contiguous_format) -> TensorProxy:
    """Return `input` in `memory_format`, or `input` itself if it already has that format."""
    check(
        memory_format is not torch.preserve_format,
        lambda: "preserve memory format is unsupported by the contiguous operator",
    )
    return prims.stride_order(input, strides_order(input.ndim, memory_format))


@contiguous.view_scatter
def _(base: Any, new: Any, *, memory_format: Any = None) -> Any:
    return new


@contiguous.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)))
    yield SampleInput(make((3, 2)).mT)
    yield SampleInput(make(()))
    yield SampleInput(make((0, 2)))
    yield SampleInput(make((2, 3, 4, 5)), memory_format=torch.channels_last)
    yield SampleInput(make((2, 3, 2, 4, 5)), memory_format=torch.channels_last_3d)


@contiguous.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), memory_format=torch.channels_last), RuntimeError, "required rank 4 tensor"
    yield SampleInput(make((3, 2)), memory_format=torch.preserve_format), RuntimeError, "preserve memory format"


@torchsymbol(torch.as_strided, tags=VIEW)
def as_strided(
    input: TensorProxy, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> TensorProxy:
    """Return a view of the memory of `input` with other strides. `input` must be contiguous, without an offset."""
    return prims.as_strided(input, tuple(size), tuple(stride), storage_offset)


@as_strided.view_scatter
def _(base: Any, new: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    return as_strided_scatter(base, new, size, stride, storage_offset)


def _as_strided_samples(make: MakeTensor) -> Any:
    yield make((4, 3)), (2, 2), (3, 1), None
    yield make((10,)), (4, 2), (2, 1), 1
    yield make((5,)), (), (), 3
    yield make((5,)), (2, 0), (1, 1), None


@as_strided.samples
def _(make: MakeTensor) -> Any:
    for args in _as_strided_samples(make):
        yield SampleInput(*args)


@as_strided.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4,)), (3,), (2, 1)), RuntimeError, "mismatch in length of strides and shape"


@torchsymbol(torch.as_strided_scatter, tags=(OpTags.SHAPE_OP,))
def as_strided_scatter(
    input: TensorProxy, src: TensorProxy, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> TensorProxy:
    """Return a copy of `input` in which `src` replaces the elements that `as_strided` would return."""
    check(
        src.shape == tuple(size),
        lambda: (
            f"expected src to have a size equal to the slice of self. src size = {list(src.shape)}, "
            f"slice size = {list(size)}"
        ),
    )
    where = prims.arithmetic_index(tuple(size), tuple(stride), storage_offset or 0, input.device)
    flat = clang.reshape(input, (-1,) if numel(input.shape) else (0,))
    values = clang.maybe_convert_to_dtype(clang.reshape(src, (numel(size),)), input.dtype)
    return clang.reshape(prims.index_put(flat, (where,), values), input.shape)


@as_strided_scatter.samples
def _(make: MakeTensor) -> Any:
    # torch's gradient of the input is wrong: zero for the kept elements, instead of for the overwritten ones.
    for a, size, stride, offset in _as_strided_samples(make):
        yield SampleInput(a.detach(), make(size), size, stride, offset)


@as_strided_scatter.errors
def _(make: MakeTensor) -> Any:
    input, src = make((4,)), make((3,))
    yield SampleInput(input, src, (2,), (1,)), RuntimeError, "expected src to have a size equal to the slice"
