# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language that split a tensor along a dimension: split, chunk, unbind, select and narrow."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.errors import UnsupportedError, check
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.proxies import TensorProxy, number_value
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import index as index_of
from thunder.core.symint.numbers import is_unbacked
from thunder.torch.arguments import flexible
from thunder.torch.base import torchsymbol
from thunder.torch.shape import VIEW

_SHAPE = (OpTags.SHAPE_OP,)


def _write_part(base: TensorProxy, new: TensorProxy, dim: int, start: int) -> TensorProxy:
    """Return `base` with `new` written along `dim`, beginning at `start`."""
    starts, ends = [0] * base.ndim, list(base.shape)
    starts[dim], ends[dim] = start, start + new.shape[dim]
    return prims.slice_scatter(base, new, tuple(starts), tuple(ends))


def _part(a: TensorProxy, dim: int, start: int, end: int) -> TensorProxy:
    """Return one of several views, which is a tensor of its own even if it views all of `a`."""
    out = clang.slice_in_dim(a, start, end, dim=dim)
    return prims.alias(out) if out is a else out  # type: ignore[no-any-return]


def _parts(a: TensorProxy, dim: int, sizes: Sequence[int]) -> tuple[TensorProxy, ...]:
    out, start = [], 0
    for size in sizes:
        out.append(_part(a, dim, start, start + size))
        start += size
    return tuple(out)


# -- split, chunk -----------------------------------------------------------------------------------------------------
def _split_sizes(length: int, dim: int, sections: Any) -> list[int]:
    if isinstance(sections, Sequence):
        sizes = [index_of(n) for n in sections]

        def refused() -> str:
            return (
                f"split_with_sizes expects split_sizes to sum exactly to {length} (input tensor's size at dimension "
                f"{dim}), but got split_sizes={sizes}"
            )

        for left, relation, right in [(sum(sizes), "==", length), *[(n, ">=", 0) for n in sizes]]:
            clang.base.demand(left, relation, right, refused)
        return sizes
    size = index_of(number_value(sections))
    check(size >= 0, lambda: f"split expects split_size be non-negative, but got split_size={size}")
    check(
        size > 0 or length == 0,
        lambda: f"split_size can only be 0 if dimension size is 0, but got dimension size of {length}",
    )
    if length == 0 or size == 0:
        return [length]
    return _parts_of(length, size)


def _parts_of(length: int, size: int) -> list[int]:
    """Return the sizes of the parts of `length` with the given size. The last part may be smaller."""
    sizes: list[int] = []
    start = 0
    while start < length:
        sizes.append(size if start + size <= length else length - start)
        start += size
    return sizes


def _check_has_dims(name: str, a: TensorProxy) -> None:
    check(a.ndim > 0, lambda: f"{name} expects at least a 1-dimensional tensor")


@flexible(split_size="split_size_or_sections", split_sizes="split_size_or_sections")
@torchsymbol(torch.split, torch.functional.split, torch._VF.split, tags=VIEW)
def split(tensor: TensorProxy, split_size_or_sections: Any, dim: int = 0) -> tuple[TensorProxy, ...]:
    """Split `tensor` along `dim` into parts of one size (the last may be smaller), or of the sizes in a list."""
    _check_has_dims("split", tensor)
    dim = canonicalize_dim(tensor.ndim, dim)
    return _parts(tensor, dim, _split_sizes(tensor.shape[dim], dim, split_size_or_sections))


@torchsymbol(torch.split_with_sizes, tags=VIEW)
def split_with_sizes(input: TensorProxy, split_sizes: Sequence[int], dim: int = 0) -> tuple[TensorProxy, ...]:
    """Split `input` along `dim` into parts of the given sizes."""
    _check_has_dims("split", input)
    dim = canonicalize_dim(input.ndim, dim)
    return _parts(input, dim, _split_sizes(input.shape[dim], dim, tuple(split_sizes)))


def _split_back(base: Any, new: Any, sections: Any, dim: int = 0, *, index: int) -> Any:
    dim = canonicalize_dim(base.ndim, dim)
    return _write_part(base, new, dim, sum(_split_sizes(base.shape[dim], dim, sections)[:index]))


def _joined(g: Any, out: Any, input: TensorProxy, how: Any, dim: int = 0) -> TensorProxy:
    """Return the gradient of a tensor that was split: the concatenated gradients of its parts."""
    return prims.cat(list(g), canonicalize_dim(input.ndim, dim))  # type: ignore[no-any-return]


@split.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((5, 4)), 2)
    yield SampleInput(make((5, 4)), 2, -1)
    yield SampleInput(make((5, 4)), [1, 4])
    yield SampleInput(make((5, 4)), (1, 0, 3), 1)
    yield SampleInput(make((0, 4)), 0)
    yield SampleInput(make((5, 4)), 9)
    yield SampleInput(make((3, 5)).mT, 3)


@split.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((5, 4)), [1, 3]), RuntimeError, "split_with_sizes expects split_sizes to sum exactly to 5"
    yield SampleInput(make((5, 4)), -1), RuntimeError, "split_size"
    yield SampleInput(make(()), 1), RuntimeError, "expects at least a 1-dimensional tensor"
    yield SampleInput(make((5, 4)), 2, 2), IndexError, "Dimension out of range"


@split_with_sizes.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((5, 4)), [1, 4])
    yield SampleInput(make((5, 4)), (1, 0, 3), -1)


@split_with_sizes.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((5, 4)), [1, 3]), RuntimeError, "split_with_sizes expects split_sizes to sum exactly to 5"


def _chunk_sizes(length: int, chunks: int) -> list[int]:
    check(chunks > 0, lambda: f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    size = -(-length // chunks)
    return [0] * chunks if length == 0 else _parts_of(length, size)


@torchsymbol(torch.chunk, tags=VIEW)
def chunk(input: TensorProxy, chunks: int, dim: int = 0) -> tuple[TensorProxy, ...]:
    """Split `input` along `dim` into at most `chunks` parts of equal size. The last part may be smaller."""
    _check_has_dims("chunk", input)
    dim = canonicalize_dim(input.ndim, dim)
    return _parts(input, dim, _chunk_sizes(input.shape[dim], operator.index(chunks)))


@chunk.view_scatter
def _(base: Any, new: Any, chunks: Any, dim: int = 0, *, index: int) -> Any:
    dim = canonicalize_dim(base.ndim, dim)
    return _write_part(base, new, dim, sum(_chunk_sizes(base.shape[dim], operator.index(chunks))[:index]))


for _op in (split, split_with_sizes, chunk):
    _op.vjp(_joined)


@chunk.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((6, 4)), 3)
    yield SampleInput(make((5, 4)), 4)
    yield SampleInput(make((5, 4)), 3, -1)
    yield SampleInput(make((0, 4)), 2)
    yield SampleInput(make((3, 5)).mT, 2)


@chunk.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((5, 4)), 0), RuntimeError, "chunk expects `chunks` to be greater than 0, got: 0"
    yield SampleInput(make(()), 1), RuntimeError, "chunk expects at least a 1-dimensional tensor"


def _tensor_split_bounds(length: int, where: Any) -> list[tuple[int, int]]:
    if isinstance(where, TensorProxy):
        raise UnsupportedError(
            "tensor_split at positions in a tensor returns parts whose sizes are not known while tracing. Pass the "
            "positions as a Python number, list or tuple"
        )
    if isinstance(where, Sequence):
        at = [operator.index(i) for i in where]
        bounds = []
        before = 0
        for stop in (*at, length):
            start, end, _ = slice(before, stop).indices(length)
            bounds.append((start, max(start, end)))
            before = stop
        return bounds
    sections = operator.index(number_value(where))
    check(sections > 0, lambda: f"number of sections must be larger than 0, got {sections}")
    size, more = divmod(length, sections)
    ends = [size * (i + 1) + min(i + 1, more) for i in range(sections)]
    return list(zip([0, *ends], ends))


def _split_at(a: TensorProxy, where: Any, dim: int) -> tuple[TensorProxy, ...]:
    bounds = _tensor_split_bounds(a.shape[dim], where)
    return tuple([_part(a, dim, start, end) for start, end in bounds])


@flexible(indices="indices_or_sections", sections="indices_or_sections")
@torchsymbol(torch.tensor_split, tags=VIEW)
def tensor_split(input: TensorProxy, indices_or_sections: Any, dim: int = 0) -> tuple[TensorProxy, ...]:
    """Split `input` along `dim` into a number of parts, or before the positions in a list."""
    check(
        input.ndim > 0,
        lambda: "tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims",
    )
    return _split_at(input, indices_or_sections, canonicalize_dim(input.ndim, dim))


@tensor_split.view_scatter
def _(base: Any, new: Any, indices_or_sections: Any, dim: int = 0, *, index: int) -> Any:
    dim = canonicalize_dim(base.ndim, dim)
    return _write_part(base, new, dim, _tensor_split_bounds(base.shape[dim], indices_or_sections)[index][0])


@tensor_split.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((7, 4)), 3)
    yield SampleInput(make((7, 4)), 2, 1)
    yield SampleInput(make((7, 4)), (2, 5))
    yield SampleInput(make((7, 4)), [3, 1, -1, 9])
    yield SampleInput(make((0, 4)), 2)
    yield SampleInput(make((4, 7)).mT, 3)


@tensor_split.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((7, 4)), 0), RuntimeError, "number of sections must be larger than 0, got 0"
    yield SampleInput(make(()), 1), RuntimeError, "tensor_split expected at least a 1-dimensional tensor"


def _check_even_split(name: str, a: TensorProxy, where: Any, dim: int) -> None:
    if isinstance(where, (Sequence, TensorProxy)):
        return
    sections = operator.index(number_value(where))
    check(
        sections > 0 and a.shape[dim] % sections == 0,
        lambda: (
            f"torch.{name} attempted to split along dimension {dim}, but the size of the dimension {a.shape[dim]} is "
            f"not divisible by the split_size {sections}!"
        ),
    )


def _hsplit_dim(a: TensorProxy) -> int:
    return 0 if a.ndim == 1 else 1


def _split_along(
    name: str, input: TensorProxy, indices_or_sections: Any, dim: int, *, least: int = 1
) -> tuple[TensorProxy, ...]:
    """Split a tensor with at least `least` dimensions. A given number of parts must divide the length."""
    check(
        input.ndim >= least,
        lambda: (
            f"torch.{name} requires a tensor with at least {least} dimension, but got a tensor with {input.ndim} "
            "dimensions!"
        ),
    )
    _check_even_split(name, input, indices_or_sections, dim)
    return _split_at(input, indices_or_sections, dim)


@flexible(indices="indices_or_sections", sections="indices_or_sections")
@torchsymbol(torch.hsplit, tags=VIEW)
def hsplit(input: TensorProxy, indices_or_sections: Any) -> tuple[TensorProxy, ...]:
    """Split `input` along its second dimension, or along its only one. A number of parts must divide the length."""
    return _split_along("hsplit", input, indices_or_sections, _hsplit_dim(input))


@flexible(indices="indices_or_sections", sections="indices_or_sections")
@torchsymbol(torch.vsplit, tags=VIEW)
def vsplit(input: TensorProxy, indices_or_sections: Any) -> tuple[TensorProxy, ...]:
    """Split `input` along its first dimension. A number of parts must divide the length."""
    return _split_along("vsplit", input, indices_or_sections, 0, least=2)


@flexible(indices="indices_or_sections", sections="indices_or_sections")
@torchsymbol(torch.dsplit, tags=VIEW)
def dsplit(input: TensorProxy, indices_or_sections: Any) -> tuple[TensorProxy, ...]:
    """Split `input` along its third dimension. A number of parts must divide the length."""
    return _split_along("dsplit", input, indices_or_sections, 2, least=3)


def _even_samples(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 4, 4)), 2)
    yield SampleInput(make((4, 4, 4)), (1, 3))


def _even_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 4, 4)), 3), RuntimeError, "is not divisible by the split_size 3!"
    yield SampleInput(make(()), 1), RuntimeError, "requires a tensor with at least"


def _back_at(dim_of: Any) -> Any:
    def rule(base: Any, new: Any, where: Any, *, index: int) -> Any:
        dim = dim_of(base)
        return _write_part(base, new, dim, _tensor_split_bounds(base.shape[dim], where)[index][0])

    return rule


for _sym, _dim_of in ((hsplit, _hsplit_dim), (vsplit, lambda a: 0), (dsplit, lambda a: 2)):
    _sym.samples(_even_samples)
    _sym.errors(_even_errors)
    _sym.view_scatter(_back_at(_dim_of))
for _sym in (split, split_with_sizes):
    _sym.view_scatter(_split_back)


# -- one part ---------------------------------------------------------------------------------------------------------
def _selected(a: TensorProxy, dim: int, i: int) -> TensorProxy:
    return prims.squeeze(clang.slice_in_dim(a, i, i + 1, dim=dim), (dim,))


def _write_selected(base: TensorProxy, new: TensorProxy, dim: int, i: int) -> TensorProxy:
    return _write_part(base, clang.unsqueeze(new, dim), dim, i)


@torchsymbol(torch.unbind, tags=VIEW)
def unbind(input: TensorProxy, dim: int = 0) -> tuple[TensorProxy, ...]:
    """Return the slices of `input` along `dim`, without that dimension."""
    check(input.ndim > 0, lambda: "Dimension specified as 0 but tensor has no dimensions", IndexError)
    dim = canonicalize_dim(input.ndim, dim)
    return tuple([_selected(input, dim, i) for i in range(input.shape[dim])])


@unbind.view_scatter
def _(base: Any, new: Any, dim: int = 0, *, index: int) -> Any:
    return _write_selected(base, new, canonicalize_dim(base.ndim, dim), index)


@unbind.vjp
def _(g: Any, out: Any, input: TensorProxy, dim: int = 0) -> Any:
    return clang.stack(g, canonicalize_dim(input.ndim, dim)) if g else None


@unbind.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)))
    yield SampleInput(make((3, 2)), -1)
    yield SampleInput(make((4,)))
    yield SampleInput(make((3, 0)))
    yield SampleInput(make((2, 3)).mT)


@unbind.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make(())), IndexError, "tensor has no dimensions"
    yield SampleInput(make((3, 2)), 2), IndexError, "Dimension out of range"


def _select_position(a: TensorProxy, dim: int, i: int) -> int:
    n = a.shape[dim]
    check(
        -n <= i < n,
        lambda: f"select(): index {i} out of range for tensor of size {list(a.shape)} at dimension {dim}",
        IndexError,
    )
    return i % n


@torchsymbol(torch.select, tags=VIEW)
def select(input: TensorProxy, dim: int, index: int) -> TensorProxy:
    """Return the slice of `input` at `index` along `dim`, without that dimension."""
    check(input.ndim > 0, lambda: "select() cannot be applied to a 0-dim tensor.", IndexError)
    dim = canonicalize_dim(input.ndim, dim)
    if isinstance(index, TensorProxy):  # torch reads the value; here it remains a tensor
        return clang.getitem(input, (*(slice(None),) * dim, index))
    return _selected(input, dim, _select_position(input, dim, index_of(index)))


@select.view_scatter
def _(base: Any, new: Any, dim: int, index: Any) -> Any:
    dim = canonicalize_dim(base.ndim, dim)
    if isinstance(index, TensorProxy):
        return clang.setitem(base, (*(slice(None),) * dim, index), new)
    return _write_selected(base, new, dim, _select_position(base, dim, index_of(index)))


@select.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 4)), 0, 1)
    yield SampleInput(make((3, 4)), -1, -2)
    yield SampleInput(make((4,)), 0, 0)
    yield SampleInput(make((3, 0)), 0, 2)
    yield SampleInput(make((4, 3)).mT, 1, 3)


@select.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 4)), 0, 3), IndexError, "index 3 out of range for tensor of size"
    yield SampleInput(make(()), 0, 0), IndexError, r"select\(\) cannot be applied to a 0-dim tensor"


@torchsymbol(torch.narrow, tags=VIEW)
def narrow(input: TensorProxy, dim: int, start: Any, length: int) -> TensorProxy:
    """Return `length` elements of `input` along `dim`, beginning at `start`."""
    check(input.ndim > 0, lambda: "narrow() cannot be applied to a 0-dim tensor.")
    dim = canonicalize_dim(input.ndim, dim)
    length = index_of(number_value(length))
    clang.base.demand(length, ">=", 0, lambda: "narrow(): length must be non-negative.")
    if isinstance(start, TensorProxy):
        return prims.take(input, dim, _positions_from(input, dim, start, length))
    start = _narrow_start(input, dim, index_of(number_value(start)), length)
    return clang.slice_in_dim(input, start, start + length, dim=dim)


def _positions_from(a: TensorProxy, dim: int, start: TensorProxy, length: int) -> TensorProxy:
    check(
        start.ndim == 0 and dtypes.is_nonboolean_integer_dtype(start.dtype),
        lambda: "start must be an 0-dim integral Tensor.",
    )
    steps = prims.iota(length, start=0, step=1, device=a.device, dtype=dtypes.int64)
    start = clang.maybe_convert_to_dtype(start, dtypes.int64)
    return clang.where(clang.lt(start, 0), clang.add(start, a.shape[dim]), start) + steps


def _narrow_start(a: TensorProxy, dim: int, start: int, length: int) -> int:
    n = a.shape[dim]
    for low, high in ((-n, start), (start, n)):
        clang.base.demand(
            low,
            "<=",
            high,
            lambda: f"start out of range (expected to be in range of [{-n}, {n}], but got {start})",
            IndexError,
        )
    start = start.position(n) if is_unbacked(start) else start + n if start < 0 else start  # type: ignore[attr-defined]
    clang.base.demand(
        start + length, "<=", n, lambda: f"start ({start}) + length ({length}) exceeds dimension size ({n})."
    )
    return start


@narrow.view_scatter
def _(base: Any, new: Any, dim: int, start: Any, length: int) -> Any:
    dim = canonicalize_dim(base.ndim, dim)
    if isinstance(start, TensorProxy):
        where = _positions_from(base, dim, start, length)
        return prims.index_put(base, (*(None,) * dim, where), new)
    return _write_part(base, new, dim, _narrow_start(base, dim, index_of(number_value(start)), new.shape[dim]))


@torchsymbol(torch.narrow_copy, tags=_SHAPE)
def narrow_copy(input: TensorProxy, dim: int, start: int, length: int) -> TensorProxy:
    """Return a copy of the result of `narrow`."""
    return prims.clone(narrow.meta(input, dim, start, length))


def _narrow_samples(make: MakeTensor) -> Any:
    yield SampleInput(make((5, 4)), 0, 1, 3)
    yield SampleInput(make((5, 4)), -1, -3, 2)
    yield SampleInput(make((5, 4)), 0, 5, 0)
    yield SampleInput(make((4, 5)).mT, 0, 0, 5)


def _narrow_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((5, 4)), 0, 3, 3), RuntimeError, r"start \(3\) \+ length \(3\) exceeds dimension size \(5\)"
    yield SampleInput(make((5, 4)), 0, 0, -1), RuntimeError, "length must be non-negative"
    yield SampleInput(make(()), 0, 0, 1), RuntimeError, r"narrow\(\) cannot be applied to a 0-dim tensor"


for _sym in (narrow, narrow_copy):
    _sym.samples(_narrow_samples)
    _sym.errors(_narrow_errors)


@torchsymbol(torch.Tensor.unfold, id="torch.Tensor.unfold", tags=VIEW)
def unfold(input: TensorProxy, dimension: int, size: int, step: int) -> TensorProxy:
    """Return windows of `size` elements along `dimension`, every `step` elements. The last dimension is the window."""
    return clang.unfold(input, dimension, size, step)


@unfold.view_scatter
def _(base: Any, new: Any, dimension: int, size: int, step: int) -> Any:
    check(
        step >= size or base.ndim == 0,
        lambda: (
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        ),
    )
    if base.ndim == 0:
        return clang.reshape(new, ()) if size else base
    dim = canonicalize_dim(base.ndim, dimension)
    where = prims.arithmetic_index((new.shape[dim], size), (step, 1), 0, base.device)
    values = clang.movedim(new, -1, dim + 1)
    values = clang.reshape(values, (*base.shape[:dim], where.shape[0], *base.shape[dim + 1 :]))
    return prims.index_put(base, (*(None,) * dim, where), values)


@unfold.samples
def _(make: MakeTensor) -> Any:
    for shape, dim, size, step in (((6, 2), 0, 2, 2), ((8,), 0, 2, 1), ((2, 7, 3), -2, 3, 2), ((), 0, 1, 3)):
        yield SampleInput(make(shape), dim, size, step)


@unfold.errors
def _(make: MakeTensor) -> Any:
    yield (
        SampleInput(make((8,)), 0, 10, 1),
        RuntimeError,
        "[Mm]aximum size for tensor at dimension 0 is 8 but size is 10",
    )
    yield SampleInput(make((8,)), 0, 2, 0), RuntimeError, "[Ss]tep is 0 but must be > 0"
