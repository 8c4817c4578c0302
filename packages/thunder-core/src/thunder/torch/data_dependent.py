# SPDX-License-Identifier: Apache-2.0
"""Functions whose result has a shape that depends on values: while tracing they are errors that name the way out.

Of a tensor without elements the answer is known, and that is given. They are not in the table of operations: there is
nothing to run, and nothing that an executor could be tested on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from thunder.clang.base import compute_broadcast_shape
from thunder.core import dtypes, prims
from thunder.core.errors import TracingError, check
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import NON_DIFFERENTIABLE, Symbol
from thunder.torch.base import MODULE, language, torch_function_map, torchctx

_WITH_MASK = "Compute with the mask itself (torch.where(mask, a, b), a.masked_fill(mask, value)), which keeps the shape"
_SORTED = (
    "Sort instead (torch.sort) and compare neighbours, or count over a known range (torch.zeros(n).scatter_add(...))"
)


def _answered(*functions: Any) -> Callable[[Callable[..., Any]], Symbol]:
    """Register what `functions` of torch, and the method of that name, do in the torch language."""

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
    raise TracingError(
        f"{name} gives as many elements as {what}, which is not known while tracing. {way_out}, or leave this part out "
        "of the traced function"
    )


def _is_empty(shape: tuple[int, ...]) -> bool:
    return math.prod(shape) == 0


def _none(a: TensorProxy, shape: tuple[int, ...], dtype: dtypes.dtype) -> TensorProxy:
    return prims.full(shape, dtypes.dtype_to_numbertype(dtype)(0), device=a.device, dtype=dtype)


@_answered(torch.masked_select)
def masked_select(input: TensorProxy, mask: TensorProxy) -> TensorProxy:
    """Return the elements of `input` where `mask` is true: an error unless there are none to choose from."""
    check(mask.dtype is dtypes.bool8, lambda: "masked_select: expected BoolTensor for mask")
    if not _is_empty(compute_broadcast_shape(input.shape, mask.shape)):
        _refuse("masked_select", "the mask has true ones", _WITH_MASK)
    return _none(input, (0,), input.dtype)


@_answered(torch.nonzero)
def nonzero(input: TensorProxy, *, as_tuple: bool = False) -> Any:
    """Return the positions of the nonzero elements: an error unless there are no elements."""
    if not _is_empty(input.shape):
        _refuse("nonzero", "the input has nonzero ones", f"{_WITH_MASK}; or use torch.nonzero_static")
    if as_tuple:
        return tuple([_none(input, (0,), dtypes.int64) for _ in input.shape])
    return _none(input, (0, input.ndim), dtypes.int64)


@_answered(torch.argwhere)
def argwhere(input: TensorProxy) -> TensorProxy:
    """Return the positions of the nonzero elements, as rows: an error unless there are no elements."""
    if not _is_empty(input.shape):
        _refuse("argwhere", "the input has nonzero ones", _WITH_MASK)
    return _none(input, (0, input.ndim), dtypes.int64)


@_answered(torch.unique)
def unique(
    input: TensorProxy,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Return the different elements: an error unless there are no elements."""
    if not _is_empty(input.shape) or return_inverse or return_counts or dim is not None:
        _refuse("unique", "the input has different ones", _SORTED)
    return _none(input, (0,), input.dtype)


@_answered(torch.unique_consecutive)
def unique_consecutive(
    input: TensorProxy, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Return the elements without repetitions of the one before: an error unless there are no elements."""
    if not _is_empty(input.shape) or return_inverse or return_counts or dim is not None:
        _refuse("unique_consecutive", "the input has runs of equal ones", _SORTED)
    return _none(input, (0,), input.dtype)
