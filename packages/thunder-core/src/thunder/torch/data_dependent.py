# SPDX-License-Identifier: Apache-2.0
"""Functions whose result has a data-dependent shape. While tracing, they raise errors that suggest alternatives.

For a tensor without elements the result is known, and is returned. These functions are not in the table of operations,
because they have nothing to execute and executors cannot be tested on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from thunder.clang.base import compute_broadcast_shape
from thunder.core import dtypes, prims
from thunder.core.errors import UnsupportedError, check
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import NON_DIFFERENTIABLE, Symbol
from thunder.torch.base import MODULE, language, torch_function_map, torchctx

_WITH_MASK = "Compute with the mask itself (torch.where(mask, a, b), a.masked_fill(mask, value)), which keeps the shape"
_SORTED = (
    "Sort instead (torch.sort) and compare neighbours, or count over a known range (torch.zeros(n).scatter_add(...))"
)


def _answered(*functions: Any) -> Callable[[Callable[..., Any]], Symbol]:
    """Decorate the implementation of `functions` of torch, and of the tensor method of the same name."""

    def declare(fn: Callable[..., Any]) -> Symbol:
        name = fn.__name__
        sym = Symbol(name, torchctx(fn), id=f"torch.{name}", module=MODULE, tags=(NON_DIFFERENTIABLE,))
        for target in (*functions, getattr(torch.Tensor, name, None)):
            if target is not None:
                torch_function_map()[target] = sym
        language.add_method(name, sym)
        return sym

    return declare


def _refuse(name: str, what: str, way_out: str) -> NoReturn:
    raise UnsupportedError(
        f"the size of the result of {name} is {what}, which is not known while tracing. {way_out}, or call {name} "
        "outside the traced function"
    )


def _is_empty(shape: tuple[int, ...]) -> bool:
    return math.prod(shape) == 0


def _none(a: TensorProxy, shape: tuple[int, ...], dtype: dtypes.dtype) -> TensorProxy:
    return prims.full(shape, dtypes.dtype_to_numbertype(dtype)(0), device=a.device, dtype=dtype)


@_answered(torch.masked_select)
def masked_select(input: TensorProxy, mask: TensorProxy) -> TensorProxy:
    """Return the elements of `input` where `mask` is true. Raise an error unless the result must be empty."""
    check(mask.dtype is dtypes.bool8, lambda: "masked_select: expected BoolTensor for mask")
    if not _is_empty(compute_broadcast_shape(input.shape, mask.shape)):
        _refuse("masked_select", "the number of true elements of the mask", _WITH_MASK)
    return _none(input, (0,), input.dtype)


@_answered(torch.nonzero)
def nonzero(input: TensorProxy, *, as_tuple: bool = False) -> Any:
    """Return the positions of nonzero elements. Raise an error unless `input` is empty."""
    if not _is_empty(input.shape):
        _refuse("nonzero", "the number of nonzero elements", f"{_WITH_MASK}, or use torch.nonzero_static")
    if as_tuple:
        return tuple([_none(input, (0,), dtypes.int64) for _ in input.shape])
    return _none(input, (0, input.ndim), dtypes.int64)


@_answered(torch.argwhere)
def argwhere(input: TensorProxy) -> TensorProxy:
    """Return the positions of nonzero elements as rows. Raise an error unless `input` is empty."""
    if not _is_empty(input.shape):
        _refuse("argwhere", "the number of nonzero elements", _WITH_MASK)
    return _none(input, (0, input.ndim), dtypes.int64)


@_answered(torch.unique)
def unique(
    input: TensorProxy,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Return the distinct elements. Raise an error unless `input` is empty."""
    if not _is_empty(input.shape) or return_inverse or return_counts or dim is not None:
        _refuse("unique", "the number of distinct elements", _SORTED)
    return _none(input, (0,), input.dtype)


@_answered(torch.unique_consecutive)
def unique_consecutive(
    input: TensorProxy, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Return the elements without consecutive repetitions. Raise an error unless `input` is empty."""
    if not _is_empty(input.shape) or return_inverse or return_counts or dim is not None:
        _refuse("unique_consecutive", "the number of runs of equal elements", _SORTED)
    return _none(input, (0,), input.dtype)
