# SPDX-License-Identifier: Apache-2.0
"""Reductions of the core language: they add negative dimensions, `keepdim`, and torch's result types.

`dim` is an integer or a sequence of integers. If `dim` is None or empty, all dimensions are reduced.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

from thunder.clang.base import clang_ops, clangop, maybe_convert_to_dtype
from thunder.core import dtypes, prims
from thunder.core.errors import check
from thunder.core.prims.metas import canonicalize_dim, canonicalize_dims
from thunder.core.proxies import TensorProxy

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "mean", "prod", "sum", "var", "var_mean",
]  # fmt: skip


def reduction_dims(a: TensorProxy, dim: Any) -> tuple[int, ...]:
    """Return the argument `dim` as nonnegative dimensions; return an empty tuple for a 0-d tensor."""
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return tuple(range(a.ndim))
    dims = canonicalize_dims(a.ndim, dim if isinstance(dim, int) else tuple(dim))
    return dims if a.ndim else ()


def kept(a: TensorProxy, reduced: Any, dims: Sequence[int], keepdim: bool) -> Any:
    """Return `reduced`; if `keepdim` is true, insert the reduced dimensions `dims` of `a` with size 1."""
    if not keepdim or not dims:
        return reduced
    shape = [1 if d in dims else n for d, n in enumerate(a.shape)]
    return prims.broadcast_in_dim(reduced, shape, tuple(d for d in range(a.ndim) if d not in dims))


def compute_dtype(dtype: dtypes.dtype) -> dtypes.dtype:
    """Return the dtype in which torch's kernels compute for inputs of `dtype`: float32 for 16-bit floats."""
    return dtypes.float32 if dtypes.is_low_precision_dtype(dtype) else dtype


def _reduce(prim: Callable[..., Any], a: TensorProxy, dim: Any, keepdim: bool) -> Any:
    dims = reduction_dims(a, dim)
    return kept(a, prim(a, dims), dims, keepdim)


def _number_of(a: TensorProxy, dims: Sequence[int]) -> int:
    return math.prod(a.shape[d] for d in dims)


# -- sums and products -------------------------------------------------------------------------------------------------
def _accumulated(
    prim: Callable[..., Any], of_bools: Callable[..., Any], a: TensorProxy, dim: Any, keepdim: bool, dtype: Any
) -> Any:
    result = dtypes.to_dtype(dtype) or (dtypes.int64 if dtypes.is_exact_dtype(a.dtype) else a.dtype)
    if dtypes.is_boolean_dtype(result):
        return of_bools(a, None if dim is None else reduction_dims(a, dim), keepdim)
    return _reduce(prim, maybe_convert_to_dtype(a, result), dim, keepdim)


@clangop()
def sum(a: TensorProxy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorProxy:
    """Return the sum over `dim`; for integers and booleans, the result is int64."""
    return _accumulated(prims.sum, any, a, dim, keepdim, dtype)


@clangop()
def prod(a: TensorProxy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorProxy:
    """Return the product over `dim`; for integers and booleans, the result is int64."""
    return _accumulated(prims.prod, all, a, dim, keepdim, dtype)


@clangop()
def mean(a: TensorProxy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorProxy:
    """Return the mean over `dim` of a floating point or complex tensor."""
    given = dtypes.to_dtype(dtype)
    kind = given or a.dtype
    what = "Optional dtype" if given is not None else "Input dtype"
    check(
        dtypes.is_inexact_dtype(kind),
        lambda: (
            f"mean(): could not infer output dtype. {what} must be either a floating point or complex dtype. Got: "
            f"{kind}"
        ),
    )
    dims = reduction_dims(a, dim)
    total = _reduce(prims.sum, maybe_convert_to_dtype(a, compute_dtype(kind)), dims, keepdim) if dims else a
    quotient = clang_ops["true_divide"](maybe_convert_to_dtype(total, compute_dtype(kind)), _number_of(a, dims))
    return maybe_convert_to_dtype(quotient, kind)


# -- extremes ----------------------------------------------------------------------------------------------------------
def _check_extremum_of_all(name: str, a: TensorProxy, dim: Any) -> None:
    check(
        builtins.all(a.shape) or not (dim is None or (isinstance(dim, Sequence) and not dim)),
        lambda: (
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with "
            "the "
            "'dim' argument."
        ),
    )


@clangop()
def amax(a: TensorProxy, dim: Any = None, keepdim: bool = False) -> TensorProxy:
    """Return the largest element over `dim`, or NaN if an element is NaN."""
    _check_extremum_of_all("amax", a, dim)
    return _reduce(prims.amax, a, dim, keepdim)


@clangop()
def amin(a: TensorProxy, dim: Any = None, keepdim: bool = False) -> TensorProxy:
    """Return the smallest element over `dim`, or NaN if an element is NaN."""
    _check_extremum_of_all("amin", a, dim)
    return _reduce(prims.amin, a, dim, keepdim)


def _arg(name: str, prim: Callable[..., Any], a: TensorProxy, dim: int | None, keepdim: bool) -> TensorProxy:
    check(not dtypes.is_boolean_dtype(a.dtype), lambda: f"{name}(): does not support bool input")
    if dim is None:
        check(
            builtins.all(a.shape),
            lambda: f"{name}(): Expected reduction dim to be specified for input.numel() == 0.",
            IndexError,
        )
        flat = a if a.ndim == 1 else prims.reshape(a, (math.prod(a.shape),))
        return kept(a, prim(flat, 0), tuple(range(a.ndim)), keepdim)
    dim = canonicalize_dim(a.ndim, dim)
    return kept(a, prim(a, dim), (dim,) if a.ndim else (), keepdim)


@clangop()
def argmax(a: TensorProxy, dim: int | None = None, keepdim: bool = False) -> TensorProxy:
    """Return the index of the largest element along `dim`, or in the flattened tensor if `dim` is None."""
    return _arg("argmax", prims.argmax, a, dim, keepdim)


@clangop()
def argmin(a: TensorProxy, dim: int | None = None, keepdim: bool = False) -> TensorProxy:
    """Return the index of the smallest element along `dim`, or in the flattened tensor if `dim` is None."""
    return _arg("argmin", prims.argmin, a, dim, keepdim)


# -- moments -----------------------------------------------------------------------------------------------------------
def _check_moments(a: TensorProxy) -> None:
    check(
        dtypes.is_inexact_dtype(a.dtype),
        lambda: f"std and var only support floating point and complex dtypes, but got {a.dtype}",
    )


@clangop()
def var(a: TensorProxy, dim: Any = None, keepdim: bool = False, *, correction: float = 1) -> TensorProxy:
    """Return the variance over `dim`; the divisor is the number of elements minus `correction`."""
    _check_moments(a)
    dims = reduction_dims(a, dim)
    return kept(a, prims.var(a, dims, correction=correction), dims, keepdim)


@clangop()
def var_mean(
    a: TensorProxy, dim: Any = None, keepdim: bool = False, *, correction: float = 1
) -> tuple[TensorProxy, TensorProxy]:
    """Return the variance and the mean over `dim`."""
    _check_moments(a)
    dims = reduction_dims(a, dim)
    variance, average = prims.var_mean(a, dims, correction=correction)
    return kept(a, variance, dims, keepdim), kept(a, average, dims, keepdim)


# -- booleans ----------------------------------------------------------------------------------------------------------
def _truth_dims(a: TensorProxy, dim: Any) -> tuple[int, ...]:
    # Unlike in other reductions, an empty tuple means that no dimension is reduced.
    return () if isinstance(dim, Sequence) and not dim else reduction_dims(a, dim)


def _counted(a: TensorProxy, dims: tuple[int, ...], keepdim: bool, *, zeros: bool) -> TensorProxy:
    """Check whether an element over `dims` is nonzero, or, with `zeros`, whether an element is zero."""
    found = clang_ops["eq"](a, 0) if zeros else (a if dtypes.is_boolean_dtype(a.dtype) else clang_ops["ne"](a, 0))
    if not dims:
        return prims.clone(found) if found is a else found
    count = prims.sum(maybe_convert_to_dtype(found, dtypes.int64), dims)
    return kept(a, clang_ops["ne"](count, 0), dims, keepdim)


@clangop()
def any(a: TensorProxy, dim: Any = None, keepdim: bool = False) -> TensorProxy:
    """Check whether any element over `dim` is nonzero; an empty `dim` reduces no dimension."""
    return _counted(a, _truth_dims(a, dim), keepdim, zeros=False)


@clangop()
def all(a: TensorProxy, dim: Any = None, keepdim: bool = False) -> TensorProxy:
    """Check whether all elements over `dim` are nonzero; an empty `dim` reduces no dimension."""
    return clang_ops["logical_not"](_counted(a, _truth_dims(a, dim), keepdim, zeros=True))
