# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language that reorder dimensions or elements: e.g. permute, transpose, flip and roll."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder import clang
from thunder.clang.shape import numel
from thunder.core import dtypes, prims
from thunder.core.errors import check
from thunder.core.prims.metas import canonicalize_dim, canonicalize_dims
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.arguments import flexible
from thunder.torch.base import torchsymbol
from thunder.torch.shape import VIEW, own_memory, strides_order

_SHAPE = (OpTags.SHAPE_OP,)


# -- any order --------------------------------------------------------------------------------------------------------
@flexible(one_by_one="dims")
@torchsymbol(torch.permute, tags=VIEW)
def permute(input: TensorProxy, dims: Sequence[int]) -> TensorProxy:
    """Return `input` with its dimensions in the order of `dims`."""
    check(
        len(dims) == input.ndim,
        lambda: (
            "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
            f"ordering of dimensions i.e. input.dim() = {input.ndim} is not equal to len(dims) = {len(dims)}"
        ),
    )
    return clang.transpose(input, dims)


@permute.view_scatter
def _(base: Any, new: Any, dims: Any) -> Any:
    order = canonicalize_dims(base.ndim, tuple(dims))
    return clang.transpose(new, tuple(sorted(range(base.ndim), key=order.__getitem__)))


@permute.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3, 4)), (2, 0, 1))
    yield SampleInput(make((2, 3)), (-1, 0))
    yield SampleInput(make((2, 3)), (0, 1))
    yield SampleInput(make(()), ())
    yield SampleInput(make((0, 3, 2)), (1, 2, 0))


@permute.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (0,)), RuntimeError, "number of dimensions in the tensor input does not match"
    yield SampleInput(make((2, 3)), (0, 0)), RuntimeError, "dim"
    yield SampleInput(make((2, 3)), (0, 2)), IndexError, "Dimension out of range"


def _exchange(a: TensorProxy, dim0: int, dim1: int) -> TensorProxy:
    first, second = canonicalize_dim(a.ndim, dim0), canonicalize_dim(a.ndim, dim1)
    if a.ndim == 0 or first == second:
        return a
    order = list(range(a.ndim))
    order[first], order[second] = second, first
    return clang.transpose(a, order)


@torchsymbol(torch.transpose, tags=VIEW)
def transpose(input: TensorProxy, dim0: int, dim1: int) -> TensorProxy:
    """Exchange two dimensions of `input`."""
    return _exchange(input, dim0, dim1)


@torchsymbol(torch.swapaxes, tags=VIEW)
def swapaxes(input: TensorProxy, axis0: int, axis1: int) -> TensorProxy:
    """Exchange two dimensions of `input`: an alias of `transpose`, as in NumPy."""
    return _exchange(input, axis0, axis1)


@torchsymbol(torch.swapdims, tags=VIEW)
def swapdims(input: TensorProxy, dim0: int, dim1: int) -> TensorProxy:
    """Exchange two dimensions of `input`: an alias of `transpose`."""
    return _exchange(input, dim0, dim1)


def _transpose_samples(make: MakeTensor) -> Any:
    for shape, dim0, dim1 in (((2, 3), 0, 1), ((2, 3, 4), -1, 0), ((2, 3), 1, 1), ((), 0, -1), ((0, 3), 0, 1)):
        yield SampleInput(make(shape), dim0, dim1)
    yield SampleInput(make((5, 3, 2)).mT, 1, 2)


def _transpose_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 0, 2), IndexError, "Dimension out of range"


for _sym in (transpose, swapaxes, swapdims):
    _sym.view_scatter(lambda base, new, dim0, dim1: _exchange(new, dim0, dim1))
    _sym.samples(_transpose_samples)
    _sym.errors(_transpose_errors)


@torchsymbol(torch.movedim, tags=VIEW)
def movedim(input: TensorProxy, source: int | Sequence[int], destination: int | Sequence[int]) -> TensorProxy:
    """Move the dimensions `source` to the positions `destination`. The others keep their order."""
    return clang.movedim(input, source, destination)


@torchsymbol(torch.moveaxis, tags=VIEW)
def moveaxis(input: TensorProxy, source: int | Sequence[int], destination: int | Sequence[int]) -> TensorProxy:
    """Move dimensions: an alias of `movedim`, as in NumPy."""
    return clang.movedim(input, source, destination)


def _movedim_samples(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3, 4)), 0, 2)
    yield SampleInput(make((2, 3, 4)), -1, 0)
    yield SampleInput(make((2, 3, 4, 5)), (0, 1), (-1, 0))
    yield SampleInput(make(()), 0, -1)
    yield SampleInput(make((0, 3)), 1, 0)


def _movedim_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (0, 1), (0,)), RuntimeError, "should contain the same number of dims"
    yield SampleInput(make((2, 3)), 2, 0), IndexError, "Dimension out of range"


for _sym in (movedim, moveaxis):
    _sym.view_scatter(lambda base, new, source, destination: clang.movedim(new, destination, source))
    _sym.samples(_movedim_samples)
    _sym.errors(_movedim_errors)


# -- matrices ---------------------------------------------------------------------------------------------------------
@torchsymbol(torch.t, tags=VIEW)
def t(input: TensorProxy) -> TensorProxy:
    """Return the transpose of a matrix. Return vectors and numbers unchanged."""
    check(input.ndim <= 2, lambda: f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return _exchange(input, 0, -1) if input.ndim == 2 else input


@t.view_scatter
def _(base: Any, new: Any) -> Any:
    return _exchange(new, 0, -1)


@t.samples
def _(make: MakeTensor) -> Any:
    for shape in ((2, 3), (3,), (), (0, 2)):
        yield SampleInput(make(shape))


@t.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3, 4))), RuntimeError, r"t\(\) expects a tensor with <= 2 dimensions, but self is 3D"


def _conjugate(a: Any) -> Any:
    return a.conj() if dtypes.is_complex_dtype(a.dtype) else a


@torchsymbol(torch.adjoint, tags=VIEW)
def adjoint(input: TensorProxy) -> TensorProxy:
    """Return the conjugate transposes of the matrices in the last two dimensions."""
    check(
        input.ndim != 1,
        lambda: "tensor.adjoint() is only supported on matrices or batches of matrices. Got 1-D tensor.",
    )
    return _conjugate(_exchange(input, -2, -1)) if input.ndim else _conjugate(input)


@adjoint.view_scatter
def _(base: Any, new: Any) -> Any:
    return _conjugate(_exchange(new, -2, -1) if new.ndim else new)


@adjoint.samples
def _(make: MakeTensor) -> Any:
    for shape in ((2, 3), (4, 2, 3), (0, 2)):
        yield SampleInput(make(shape))
    yield SampleInput(make((2, 3), dtype=dtypes.complex64))


@adjoint.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2,))), RuntimeError, "only supported on matrices or batches of matrices"


@torchsymbol(is_property=True, tags=VIEW)
def T(input: TensorProxy) -> TensorProxy:
    """`input` with its dimensions in reverse order."""
    return clang.transpose(input, tuple(reversed(range(input.ndim))))


@T.view_scatter
def _(base: Any, new: Any) -> Any:
    return clang.transpose(new, tuple(reversed(range(new.ndim))))


@torchsymbol(is_property=True, tags=VIEW)
def mT(input: TensorProxy) -> TensorProxy:
    """The transposes of the matrices in the last two dimensions."""
    check(
        input.ndim >= 2,
        lambda: f"tensor.mT is only supported on matrices or batches of matrices. Got {input.ndim}-D tensor.",
    )
    return _exchange(input, -2, -1)


@mT.view_scatter
def _(base: Any, new: Any) -> Any:
    return _exchange(new, -2, -1)


@torchsymbol(is_property=True, tags=VIEW)
def H(input: TensorProxy) -> TensorProxy:
    """The conjugate transpose of a matrix."""
    check(
        input.ndim in (0, 2),
        lambda: f"tensor.H is only supported on matrices (2-D tensors). Got {input.ndim}-D tensor.",
    )
    return _conjugate(_exchange(input, 0, -1))


@H.view_scatter
def _(base: Any, new: Any) -> Any:
    return _conjugate(_exchange(new, 0, -1))


@torchsymbol(is_property=True, tags=VIEW)
def mH(input: TensorProxy) -> TensorProxy:
    """The conjugate transposes of the matrices in the last two dimensions."""
    check(
        input.ndim >= 2,
        lambda: f"tensor.mH is only supported on matrices or batches of matrices. Got {input.ndim}-D tensor.",
    )
    return _conjugate(_exchange(input, -2, -1))


@mH.view_scatter
def _(base: Any, new: Any) -> Any:
    return _conjugate(_exchange(new, -2, -1))


def _matrix_samples(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)))
    yield SampleInput(make((0, 2)))
    yield SampleInput(make((5, 3)).mT)


def _matrix_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((3,))), RuntimeError, "is only supported on matrices"


for _sym in (T, mT, H, mH):
    _sym.samples(_matrix_samples)
for _sym in (mT, H, mH):
    _sym.errors(_matrix_errors)


# -- other orders along dimensions ------------------------------------------------------------------------------------
@flexible(one_by_one="dims")
@torchsymbol(torch.flip, tags=_SHAPE)
def flip(input: TensorProxy, dims: Sequence[int]) -> TensorProxy:
    """Reverse the order of the elements of `input` along `dims`."""
    return own_memory(clang.flip(input, tuple(dims)), input)


@flip.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (0,))
    yield SampleInput(make((2, 3, 4)), (0, -1))
    yield SampleInput(make((2, 3)), ())
    yield SampleInput(make((0, 3)), (1,))
    yield SampleInput(make((5, 3)).mT, (0, 1))


@flip.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (0, 0)), RuntimeError, "dim 0 appears multiple times in the list of dims"
    yield SampleInput(make((2, 3)), (2,)), IndexError, "Dimension out of range"


@torchsymbol(torch.fliplr, tags=_SHAPE)
def fliplr(input: TensorProxy) -> TensorProxy:
    """Reverse the order of the columns of `input`."""
    check(input.ndim >= 2, lambda: "Input must be >= 2-d.")
    return clang.flip(input, (1,))


@torchsymbol(torch.flipud, tags=_SHAPE)
def flipud(input: TensorProxy) -> TensorProxy:
    """Reverse the order of the rows of `input`."""
    check(input.ndim >= 1, lambda: "Input must be >= 1-d.")
    return clang.flip(input, (0,))


def _flip_samples(make: MakeTensor) -> Any:
    for shape in ((2, 3), (2, 3, 4), (0, 3)):
        yield SampleInput(make(shape))


for _sym in (fliplr, flipud):
    _sym.samples(_flip_samples)


@fliplr.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,))), RuntimeError, "Input must be >= 2-d."


@flipud.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make(())), RuntimeError, "Input must be >= 1-d."


@torchsymbol(torch.roll, tags=_SHAPE)
def roll(input: TensorProxy, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> TensorProxy:
    """Move the elements of `input` along `dims` by `shifts`. Elements moved past the end return at the beginning."""
    shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    check(len(shifts) > 0, lambda: "`shifts` required")
    if not dims and len(shifts) == 1:
        flat = clang.reshape(input, (numel(input.shape),))
        return own_memory(clang.reshape(_rolled(flat, shifts[0], 0), input.shape), input)
    check(
        len(shifts) == len(dims),
        lambda: f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}",
    )
    out = input
    for shift, dim in zip(shifts, dims):
        out = _rolled(out, shift, canonicalize_dim(out.ndim, dim))
    return own_memory(out, input)


def _rolled(a: TensorProxy, shift: int, dim: int) -> TensorProxy:
    length = a.shape[dim] if a.ndim else 1
    shift = shift % length if length else 0
    if shift == 0:  # torch concatenates with no elements, which makes the result contiguous
        return prims.stride_order(prims.clone(a), strides_order(a.ndim, torch.contiguous_format))
    last = clang.slice_in_dim(a, length - shift, length, dim=dim)
    return clang.cat([last, clang.slice_in_dim(a, 0, length - shift, dim=dim)], dim)


@roll.vjp
def _(g: TensorProxy, output: TensorProxy, input: TensorProxy, shifts: Any, dims: Any = ()) -> TensorProxy:
    back = -shifts if isinstance(shifts, int) else tuple([-shift for shift in shifts])
    return roll(g, back, dims)  # type: ignore[no-any-return]


@roll.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), 1)
    yield SampleInput(make((4, 3)), 2, 0)
    yield SampleInput(make((4, 3)), (1, -5), (0, 1))
    yield SampleInput(make((0, 3)), 2, 0)
    yield SampleInput(make((4, 3)).mT, -1, -1)
    yield SampleInput(make((4, 3)).mT, -4, 1)
    yield SampleInput(make(()), 3)


@roll.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), (1, 2), 0), RuntimeError, "shifts and dimensions must align"
    yield SampleInput(make((4, 3)), ()), RuntimeError, "`shifts` required"


@torchsymbol(torch.rot90, tags=_SHAPE)
def rot90(input: TensorProxy, k: int = 1, dims: Sequence[int] = (0, 1)) -> TensorProxy:
    """Rotate `input` `k` times by 90 degrees, from the first of `dims` towards the second."""
    check(len(dims) == 2, lambda: f"expected total rotation dims == 2, but got dims = {len(dims)}")
    check(input.ndim >= 2, lambda: f"expected total dims >= 2, but got total dims = {input.ndim}")
    first, second = [canonicalize_dim(input.ndim, d) for d in dims]
    check(
        first != second,
        lambda: f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}",
    )
    k = k % 4
    if k == 0:
        return input.clone()
    if k == 2:
        return clang.flip(input, (first, second))
    return _exchange(clang.flip(input, (second if k == 1 else first,)), first, second)


@rot90.samples
def _(make: MakeTensor) -> Any:
    for k in range(-1, 4):
        yield SampleInput(make((2, 3)), k)
    yield SampleInput(make((2, 3, 4)), 1, (2, 0))
    yield SampleInput(make((0, 3)))


@rot90.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 1, (0, 0)), RuntimeError, "expected rotation dims to be different"
    yield SampleInput(make((3,))), RuntimeError, "expected total dims >= 2"


# -- channels ---------------------------------------------------------------------------------------------------------
def _check_channels(name: str, a: TensorProxy, factor: int, factor_name: str) -> None:
    check(
        a.ndim >= 3,
        lambda: f"{name} expects input to have at least 3 dimensions, but got input with {a.ndim} dimension(s)",
    )
    check(factor > 0, lambda: f"{name} expects a positive {factor_name}, but got {factor}")


@torchsymbol(
    torch.nn.functional.pixel_shuffle, torch.pixel_shuffle, is_method=False, tags=(*_SHAPE, OpTags.LAYOUT_OF_KERNEL)
)
def pixel_shuffle(input: TensorProxy, upscale_factor: int) -> TensorProxy:
    """Move channels to pixels: `(…, c * r * r, h, w)` becomes `(…, c, h * r, w * r)`."""
    r = upscale_factor
    _check_channels("pixel_shuffle", input, r, "upscale_factor")
    *batch, c, h, w = input.shape
    check(
        c % (r * r) == 0,
        lambda: (
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, "
            f"but input.size(-3)={c} is not divisible by {r * r}"
        ),
    )
    n = len(batch)
    split = clang.reshape(input, (*batch, c // (r * r), r, r, h, w))
    moved = clang.transpose(split, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return clang.reshape(moved, (*batch, c // (r * r), h * r, w * r))


@torchsymbol(torch.nn.functional.pixel_unshuffle, torch.pixel_unshuffle, is_method=False, tags=_SHAPE)
def pixel_unshuffle(input: TensorProxy, downscale_factor: int) -> TensorProxy:
    """Move pixels to channels: `(…, c, h * r, w * r)` becomes `(…, c * r * r, h, w)`."""
    r = downscale_factor
    _check_channels("pixel_unshuffle", input, r, "downscale_factor")
    *batch, c, h, w = input.shape
    for name, size in (("height", h), ("width", w)):
        if size % r:
            raise RuntimeError(
                f"pixel_unshuffle expects {name} to be divisible by downscale_factor, but the {name} {size} is not "
                f"divisible by {r}"
            )
    n = len(batch)
    split = clang.reshape(input, (*batch, c, h // r, r, w // r, r))
    moved = clang.transpose(split, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return clang.reshape(moved, (*batch, c * r * r, h // r, w // r))


@torchsymbol(
    torch.nn.functional.channel_shuffle, torch.channel_shuffle, is_method=False, tags=(*_SHAPE, OpTags.LAYOUT_OF_KERNEL)
)
def channel_shuffle(input: TensorProxy, groups: int) -> TensorProxy:
    """Reorder the channels (the second dimension): the first channel of each group, then the second ones, and so on."""
    check(
        input.ndim > 2,
        lambda: f"channel_shuffle expects input with > 2 dims, but got input with sizes {list(input.shape)}",
    )
    b, c, *rest = input.shape
    check(
        groups > 0 and c % groups == 0,
        lambda: f"Number of channels must be divisible by groups. Got {c} channels and {groups} groups.",
    )
    split = clang.reshape(input, (b, groups, c // groups, *rest))
    return clang.reshape(_exchange(split, 1, 2), input.shape)


@pixel_shuffle.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((1, 8, 2, 3)), 2)
    yield SampleInput(make((9, 2, 2)), 3)
    yield SampleInput(make((0, 4, 2, 2)), 2)


@pixel_shuffle.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((1, 7, 2, 2)), 2), RuntimeError, "divisible by the square of upscale_factor"
    yield SampleInput(make((4, 2)), 2), RuntimeError, "expects input to have at least 3 dimensions"


@pixel_unshuffle.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((1, 2, 4, 6)), 2)
    yield SampleInput(make((1, 3, 3)), 3)


@pixel_unshuffle.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((1, 2, 3, 4)), 2), RuntimeError, "expects height to be divisible by downscale_factor"


@channel_shuffle.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 6, 2, 2)), 3)
    yield SampleInput(make((1, 4, 5)), 2)


@channel_shuffle.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 5, 2)), 2), RuntimeError, "Number of channels must be divisible by groups"
