# SPDX-License-Identifier: Apache-2.0
"""Operations that update a part of a tensor, e.g. `x[2:] = y`, and how torch runs them in place.

A program contains their functional forms, which copy the whole tensor. Where nothing reads the old tensor afterwards,
`in_place.py` replaces them by the forms of this file, as in eager mode: a token of a cache is written, not the cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.strides import Strides, contiguous_strides, dense_strides
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.executors.torchex.base import MODULE, ex, qualified_name
from thunder.runtime.kernels import indexing

__all__ = ["is_part_update", "keeps_strides", "part_in_place", "strides_of_part_update", "writes_part"]

_METHODS = (
    "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "masked_fill", "masked_scatter", "scatter",
    "scatter_add", "scatter_reduce",
)  # fmt: skip

# Their results have the strides of the tensor, if it is dense; results of torch's functions may be contiguous instead.
_CLONING: dict[Any, Callable[..., torch.Tensor]] = {
    indexing.setitem: indexing.setitem_,
    indexing.slice_scatter: indexing.slice_scatter_,
}
_IN_PLACE: dict[Any, Callable[..., torch.Tensor]] = {
    **_CLONING,
    indexing.index_put: indexing.index_put_,
    **{getattr(torch, name): getattr(torch.Tensor, f"{name}_") for name in _METHODS},
}


def is_part_update(op: BoundSymbol) -> bool:
    """Check whether an operation copies its first argument, and updates a part of the copy."""
    return op.sym.fn in _IN_PLACE and isinstance(op.output, TensorProxy)


def writes_part(op: BoundSymbol) -> bool:
    """Check whether an operation updates a part of its first argument in place."""
    id = op.sym.id
    return type(id) is tuple and id[0] == "torchex" and id[2:] == ("in place",)


def keeps_strides(fn: Any) -> bool:
    """Check whether results of a function have the strides of its first argument, if this argument is dense."""
    return fn in _CLONING


def strides_of_part_update(op: BoundSymbol, known: Mapping[str, Strides]) -> Strides | None:
    """Return the strides of the result if they are known."""
    x = op.args[0] if op.args else None
    if not isinstance(x, TensorProxy) or tuple(x.shape) != tuple(op.output.shape):
        return None
    strides = known.get(x.name)
    if strides is None:
        return None
    if op.sym.fn in _CLONING:
        return strides if dense_strides(x.shape, strides) == strides else None
    return strides if strides == contiguous_strides(x.shape) else None


def part_in_place(op: BoundSymbol, target: TensorProxy, whole: frozenset[str]) -> BoundSymbol | None:
    """Return the operation that updates the target itself, which must be the first argument (a name of `whole`)."""
    x = op.args[0] if op.args else None
    if not isinstance(x, TensorProxy) or x.name not in whole or x.dtype is not op.output.dtype:
        return None
    if sum(p.name == x.name or p.name == target.name for p in op.flat_args if isinstance(p, TensorProxy)) != 1:
        return None
    sym = _updating(op.sym.fn, op.sym.tags, op.sym)
    return op.replace(sym=sym)


@functools.cache
def _updating(fn: Any, tags: frozenset[OpTags], functional: Symbol) -> Symbol:
    def meta(a: TensorProxy, *args: Any, **kwargs: Any) -> Any:
        return prims.copy_(functional(a, *args, **kwargs), a)

    found = _IN_PLACE[fn]
    return Symbol(
        found.__name__, meta, id=("torchex", fn, "in place"), module=qualified_name(found)[0] or MODULE, executor=ex,
        fn=found, tags=(*tags, OpTags.IN_PLACE_OP),
    )  # fmt: skip
