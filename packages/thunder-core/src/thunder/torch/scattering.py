# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language that read or write single elements along a dimension: gather and the scatters."""

from __future__ import annotations

from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.errors import check
from thunder.core.prims.indexing import distinct_positions, positions
from thunder.core.prims.metas import canonicalize_dim, is_number
from thunder.core.proxies import TensorProxy, number_type, number_value
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import converted
from thunder.torch.base import torchsymbol

_SHAPE = (OpTags.SHAPE_OP,)


@torchsymbol(torch.gather, tags=_SHAPE)
def gather(input: TensorProxy, dim: int, index: TensorProxy, *, sparse_grad: bool = False) -> TensorProxy:
    """Return the element of `input` for each element of `index`: the same position, but `index`'s value along `dim`."""
    return prims.gather(input, dim, index)


gather.samples_of(prims.gather)


def _line_errors(make: MakeTensor, *src: Any) -> Any:
    a = make((4, 3))
    yield SampleInput(a, 0, positions(make, (2,), 4), *src), RuntimeError, "same number of dimensions as"
    yield SampleInput(a, 0, positions(make, (2, 5), 4), *src), RuntimeError, "to be no larger"
    yield SampleInput(a, 2, positions(make, (2, 3), 3), *src), IndexError, "Dimension out of range"


# -- scatter ----------------------------------------------------------------------------------------------------------
_OLD_REDUCTIONS = {"add": "sum", "multiply": "prod"}


@torchsymbol(torch.scatter, tags=_SHAPE)
def scatter(
    input: TensorProxy, dim: int, index: TensorProxy, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> TensorProxy:
    """Return a copy of `input` with `src` (a tensor or number) written at `index`, the reverse of `gather`."""
    src = value if src is None else src
    check(src is not None, lambda: "scatter() requires a tensor `src` or a number `value`", TypeError)
    if not isinstance(src, TensorProxy):
        src = _as_number(src, input)
    if reduce is None:
        return prims.scatter(input, dim, index, src)
    check(reduce in _OLD_REDUCTIONS, lambda: "reduce argument must be either add or multiply.")
    if not isinstance(src, TensorProxy):
        src = prims.full(index.shape, src, device=input.device, dtype=input.dtype)
    return prims.scatter_reduce(input, dim, index, src, _OLD_REDUCTIONS[reduce], include_self=True)


def _as_number(src: Any, input: TensorProxy) -> Any:
    check(is_number(src), lambda: f"scatter(): src must be a tensor or a number, not {type(src).__name__}", TypeError)
    found = number_value(src)
    check(
        dtypes.category(number_type(found)) < dtypes.COMPLEX or input.dtype.category == dtypes.COMPLEX,
        lambda: f"value cannot be converted to type {input.dtype} without overflow",
    )
    return converted(found, dtypes.dtype_to_numbertype(input.dtype))


@scatter.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), 0, distinct_positions(make, (4, 3), 0), make((4, 3)))
    yield SampleInput(make((4, 5)), 1, distinct_positions(make, (2, 5), 1)[:, :2], make((3, 2)))
    yield SampleInput(make((4, 3)), -2, positions(make, (2, 3), 4), 2)
    yield SampleInput(make((4, 3)), 0, positions(make, (2, 3), 4), value=1)
    yield SampleInput(make(()), 0, positions(make, (), 1), make(()))
    yield SampleInput(make((4, 3)), 0, positions(make, (0, 3), 4), make((0, 3)))
    index = distinct_positions(make, (4, 3), 0)[:2]
    yield SampleInput(make((4, 3)), 0, index, make((2, 3)), reduce="add")
    yield SampleInput(make((4, 3)), 0, index, value=2, reduce="multiply")


@scatter.errors
def _(make: MakeTensor) -> Any:
    index = positions(make, (2, 3), 2)
    yield from _line_errors(make, 1)
    yield SampleInput(make((4, 3)), 0, index, make((1, 3))), RuntimeError, "no larger size than src"
    a, src = make((4, 3)), make((2, 3), dtype=dtypes.float64)
    yield SampleInput(a, 0, index, src), RuntimeError, "Expected self.dtype to be equal to src.dtype"
    yield SampleInput(a, 0, index, make((2, 3)), reduce="mean"), RuntimeError, "must be either add or multiply"


@torchsymbol(torch.scatter_add, tags=_SHAPE, autocast={"cuda": "widest"})
def scatter_add(input: TensorProxy, dim: int, index: TensorProxy, src: TensorProxy) -> TensorProxy:
    """Return a copy of `input` with the elements of `src` added at the positions in `index`."""
    return prims.scatter_add(input, dim, index, src)


scatter_add.samples_of(prims.scatter_add)


@scatter_add.errors
def _(make: MakeTensor) -> Any:
    assert prims.scatter_add.error_generator is not None
    yield from _line_errors(make, make((4, 5)))
    yield from prims.scatter_add.error_generator(make)


@torchsymbol(torch.scatter_reduce, tags=_SHAPE)
def scatter_reduce(
    input: TensorProxy, dim: int, index: TensorProxy, src: TensorProxy, reduce: str, *, include_self: bool = True
) -> TensorProxy:
    """Reduce the elements of `src` with the same position in `index`: by sum, prod, mean, amax or amin."""
    return prims.scatter_reduce(input, dim, index, src, reduce, include_self=bool(include_self))


scatter_reduce.samples_of(prims.scatter_reduce)


@torchsymbol(torch.index_reduce, tags=_SHAPE)
def index_reduce(
    input: TensorProxy, dim: int, index: TensorProxy, source: TensorProxy, reduce: str, *, include_self: bool = True
) -> TensorProxy:
    """Reduce the slices of `source` with the same position in the vector `index`."""
    dim = canonicalize_dim(input.ndim, dim)
    check(
        reduce in ("prod", "mean", "amax", "amin"),
        lambda: f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}.",
    )
    check(
        input.dtype is source.dtype,
        lambda: f"index_reduce(): Expected self ({input.dtype}) and source ({source.dtype}) to have the same dtype",
    )
    index = clang.reshape(index, (1,)) if index.ndim == 0 else index
    prims.check_slices_to_write("index_reduce", input, dim, index, source)
    if input.ndim:
        index = prims.broadcast_in_dim(index, source.shape, (dim,))
    return prims.scatter_reduce(input, dim, index, source, reduce, include_self=bool(include_self))


@index_reduce.samples
def _(make: MakeTensor) -> Any:
    for reduce in ("prod", "mean", "amax", "amin"):
        yield SampleInput(make((4, 3)), 0, positions(make, (5,), 4), make((5, 3)), reduce)
        yield SampleInput(make((4, 3)), 1, positions(make, (2,), 3), make((4, 2)), reduce, include_self=False)


@index_reduce.errors
def _(make: MakeTensor) -> Any:
    index = positions(make, (2,), 4)
    a, source = make((4, 3)), make((2, 3))
    yield SampleInput(a, 0, index, source, "sum"), RuntimeError, "Expected reduce to be one of prod, mean"
