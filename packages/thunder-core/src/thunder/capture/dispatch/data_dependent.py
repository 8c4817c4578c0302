# SPDX-License-Identifier: Apache-2.0
"""Handlers of torch functions whose result has a data-dependent size, and of calls that pass tensors as sizes.

A data-dependent size is a symbolic number without a hint. The trace reads it from the result with `prims.size`. Few
torch functions return such results: `nonzero`, `unique`, `unique_consecutive`, `bincount` and `repeat_interleave`.
Indexing with a boolean mask calls `nonzero` on the mask (`indexing.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back
from thunder.capture.dispatch.opaque_operations import opaque_symbol
from thunder.capture.dispatch.registry import gives, handles
from thunder.capture.dispatch.scalars import is_empty, number_in, once
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.tracer import Tracer, needs_grad, tensors_in
from thunder.core import prims
from thunder.core.dtypes import float32, float64, int64, is_inexact_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.state import state
from thunder.core.symbol import BoundSymbol, proxies_in
from thunder.core.symint.numbers import SymbolicNumber
from thunder.core.symint.symbols import symbols_of
from thunder.runtime.torch_originals import original_torch

__all__ = ["nonzero", "refuse_out", "run", "unknown_size", "with_sizes"]


def unknown_size(low: Any = 0, high: Any = None) -> Any:
    """Return a new data-dependent size between `low` and `high`. Symbolic numbers are no limits."""
    assert state.trace is not None
    least, most = (n if isinstance(n, int) and not isinstance(n, SymbolicNumber) else None for n in (low, high))
    return symbols_of(state.trace).unbacked(int, low=least or 0, high=most)


def run(tracer: Tracer, func: Any, x: Any, *args: Any, differentiable: bool = False, **kwargs: Any) -> Any:
    """Record a call of the torch function `func`, and read the data-dependent sizes from its result.

    Without `differentiable`, the call receives a detached `x`.
    """
    value = aliasing.read(tracer.handle_of(x))

    def make() -> Any:
        given = ltorch.detach(value) if is_inexact_dtype(value.dtype) and not differentiable else value
        out = opaque_symbol(func)(given, *tracer.unwrap(args), **tracer.unwrap(kwargs))
        seen: set[str] = set()
        for p in proxies_in(out):
            for dim, size in enumerate(getattr(p, "shape", ())):
                leaf = size.leaves[0] if isinstance(size, SymbolicNumber) and size.hint is None else None
                if leaf is not None and leaf.name not in seen:
                    seen.add(leaf.name)
                    tracer.trace.record(BoundSymbol(prims.size, (p, dim), {}, leaf, (), state.source))
                    if tracer.derived_scalars is not None:
                        tracer.derived_scalars.resolve(size)
        return out

    plain = not any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values()))
    grad = differentiable and torch.is_grad_enabled() and any(map(needs_grad, tensors_in(x, args, kwargs)))
    with tracer.recording():
        made = once(tracer, f"{func.__name__} {args} {kwargs}", value, make) if plain else make()
        return tracer.wrap(made, requires_grad=grad)


# -- positions --------------------------------------------------------------------------------------------------------
@gives(torch.nonzero)
def _nonzero_result(input: TensorProxy) -> Any:
    return TensorProxy(like=input, shape=(unknown_size(0, math.prod(input.shape)), input.ndim), dtype=int64)


def refuse_out(name: str, out: Any) -> None:
    if out is not None:
        fall_back(f"{name} is called with out=, but the size of its result is data-dependent")


@handles(torch.nonzero, torch.Tensor.nonzero, traced=True)
def nonzero(tracer: Tracer, input: Any, *, as_tuple: bool = False, out: Any = None) -> Any:
    refuse_out("nonzero", out)
    if as_tuple and input.dim() == 0:
        input = input.unsqueeze(0)
    if is_empty(input):
        return NotImplemented
    found = run(tracer, torch.nonzero, input if input.dtype is torch.bool else torch.ne(input, 0))
    return torch.unbind(found, 1) if as_tuple else found


@handles(torch.argwhere, torch.Tensor.argwhere, traced=True)
def _argwhere(tracer: Tracer, input: Any) -> Any:
    return nonzero(tracer, input)


# -- tensors as sizes -------------------------------------------------------------------------------------------------
def with_sizes(func: Any) -> Callable[..., Any]:
    """Return a handler for `func` that replaces tensors of one element among the sizes by their numbers.

    For example, `x.reshape(t, -1)` becomes `x.reshape(t.item(), -1)`.
    """

    def handler(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
        if not args:
            return NotImplemented
        x, *sizes = args
        named = {k: plain(tracer, v) for k, v in kwargs.items()}
        given = plain(tracer, (*sizes,))
        if not _has_tensor((sizes, (*kwargs.values(),))) or _has_tensor((given, (*named.values(),))):
            return NotImplemented  # torch takes no truth value for a size
        return func(tracer.handle_of(x), *given, **named)

    def plain(tracer: Tracer, x: Any) -> Any:
        if type(x) in (tuple, list):
            return type(x)(plain(tracer, i) for i in x)
        return x if isinstance(x, torch.Tensor) and x.dtype is torch.bool else number_in(tracer, x)

    return handler


def _has_tensor(x: Any) -> bool:
    return any(map(_has_tensor, x)) if type(x) in (tuple, list) else isinstance(x, torch.Tensor)


# Functions of one tensor whose other arguments are sizes, dimensions, positions or counts.
_WITH_SIZES = (
    "reshape", "expand", "repeat", "narrow", "unflatten", "new_zeros", "new_ones", "new_empty", "permute", "transpose",
    "swapaxes", "swapdims", "movedim", "roll", "unsqueeze", "squeeze", "flatten", "chunk", "topk", "kthvalue", "unfold",
    "tril", "triu", "diagonal", "rot90",
)  # fmt: skip

for _name in _WITH_SIZES:
    for _function in (getattr(owner, _name, None) for owner in (torch, torch.Tensor)):
        if _function is not None:
            handles(_function)(with_sizes(_function))


@handles(torch.topk, torch.Tensor.topk, traced=True)
def _topk(tracer: Tracer, input: Any, k: Any, *args: Any, **kwargs: Any) -> Any:
    return torch.topk(input, number_in(tracer, k), *args, **kwargs) if isinstance(k, torch.Tensor) else NotImplemented


@handles(torch.arange, traced=True)
def _arange(tracer: Tracer, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    if not any(isinstance(x, torch.Tensor) for x in (*args, *kwargs.values())):
        return NotImplemented
    refuse_out("arange", out)
    numbers = {k: number_in(tracer, x) for k, x in kwargs.items()}
    return tracer.call_symbol(ltorch.arange, tuple([number_in(tracer, x) for x in args]), numbers)


# -- distinct values and counts ---------------------------------------------------------------------------------------
def _unique_result(
    input: TensorProxy, return_inverse: bool, return_counts: bool, dim: int | None, inverse: tuple[Any, ...]
) -> Any:
    n = 0 if is_empty(input) else unknown_size(1, math.prod(input.shape) if dim is None else input.shape[dim])
    shape = (n,) if dim is None else tuple([n if i == dim % input.ndim else m for i, m in enumerate(input.shape)])
    out = [TensorProxy(like=input, shape=shape, requires_grad=True)]
    if return_inverse:
        out.append(TensorProxy(like=input, shape=inverse, dtype=int64))
    if return_counts:
        out.append(TensorProxy(like=input, shape=(n,), dtype=int64))
    return out[0] if len(out) == 1 else tuple(out)


@gives(torch.unique)
def _unique_shapes(
    input: TensorProxy, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    inverse = input.shape if dim is None else (input.shape[dim],)
    return _unique_result(input, return_inverse, return_counts, dim, inverse)


@gives(torch.unique_consecutive)
def _unique_consecutive_shapes(
    input: TensorProxy, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    inverse = input.shape if dim is None else (input.shape[dim],)
    return _unique_result(input, return_inverse, return_counts, dim, inverse)


@handles(torch.unique, torch.Tensor.unique, traced=True)
def _unique(tracer: Tracer, input: Any, *args: Any, **kwargs: Any) -> Any:
    # The result requires grad, as in eager mode: torch raises an error only in backward.
    return run(tracer, torch.unique, input, *args, differentiable=True, **kwargs)


@handles(torch.unique_consecutive, torch.Tensor.unique_consecutive, traced=True)
def _unique_consecutive(tracer: Tracer, input: Any, *args: Any, **kwargs: Any) -> Any:
    # As for `torch.unique`, torch raises an error only in backward.
    return run(tracer, torch.unique_consecutive, input, *args, differentiable=True, **kwargs)


@gives(torch.bincount)
def _bincount_result(input: TensorProxy, weights: TensorProxy | None = None, minlength: int = 0) -> Any:
    kind = int64 if weights is None else weights.dtype if weights.dtype is float32 else float64
    return TensorProxy(like=input, shape=(unknown_size(minlength),), dtype=kind, requires_grad=True)


@handles(torch.bincount, torch.Tensor.bincount, traced=True)
def _bincount(tracer: Tracer, input: Any, weights: Any = None, minlength: int = 0) -> Any:
    # As for `torch.unique`, torch raises an error only in backward.
    return run(tracer, torch.bincount, input, weights, minlength, differentiable=True)


@gives(torch.repeat_interleave)
def _repeated_result(repeats: TensorProxy, *, output_size: Any = None) -> Any:
    return TensorProxy(like=repeats, shape=(unknown_size() if output_size is None else output_size,), dtype=int64)


@handles(torch.repeat_interleave, torch.Tensor.repeat_interleave, traced=True)
def _repeat_interleave(
    tracer: Tracer, input: Any, repeats: Any = None, dim: Any = None, *, output_size: Any = None
) -> Any:
    counts = input if repeats is None else repeats
    if not isinstance(counts, torch.Tensor) or output_size is not None or is_empty(counts):
        return NotImplemented
    if repeats is None:
        return run(tracer, torch.repeat_interleave, input)
    if dim is None:
        input, dim = input.reshape(-1), 0
    counts = counts.reshape(-1)
    if counts.shape[0] == 1:
        counts = counts.expand(input.shape[dim])
    elif counts.shape[0] != input.shape[dim]:
        raise RuntimeError("repeats must have the same size as input along dim")
    return original_torch.index_select(input, dim, run(tracer, torch.repeat_interleave, counts))
