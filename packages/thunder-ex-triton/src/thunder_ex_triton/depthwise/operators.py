# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions as operators, and the pass that replaces convolutions and their gradients by them.

The pass runs before executors claim operations, after the pass that orders images channels-last: which candidate is the
fastest depends on the layout. It replaces operations that torch would run, where the rule or a measurement says so. The
option `triton_depthwise=False` turns this off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy, Trace, are_named, dtypes, rewrite
from thunder_ex_triton.channels_last import CHANNELS_LAST, primitives_of
from thunder_ex_triton.depthwise.launches import BOTH_LAYOUTS, parts_of
from thunder_ex_triton.depthwise.rule import TORCH, Depthwise, choose, compute, tile_named
from thunder_ex_triton.probe import unusable_device

__all__ = [
    "OPTION", "TAKEN", "convolve", "input_gradient", "is_depthwise", "like", "like_input", "like_weight", "register",
    "weight_gradient",
]  # fmt: skip

OPTION = "triton_depthwise"
TAKEN = (dtypes.float32, dtypes.float16, dtypes.bfloat16)
_LARGEST = 7  # loops over the elements of the weight are unrolled
_MOST_ELEMENTS = 1 << 31  # the kernels number columns with 32 bits


def _how(weight: Any, stride: Sequence[int], padding: Sequence[int]) -> tuple[Any, ...]:
    """Return the other arguments of a convolution."""
    n = len(stride)
    return (*map(tuple, (stride, padding)), (1,) * n, False, (0,) * n, weight.shape[0])


# -- operators ---------------------------------------------------------------------------------------------------------
def like(a: Any, weight: Any, bias: Any, stride: Any, padding: Any, tile: str) -> Any:
    """Decompose a convolution into torch's operations."""
    return prims.convolution(a, weight, bias, *_how(weight, stride, padding))


def like_input(g: Any, a: Any, weight: Any, stride: Any, padding: Any, tile: str) -> Any:
    """Decompose the gradient of the input into torch's operations."""
    return prims.convolution_input_grad(g, a, weight, *_how(weight, stride, padding))


def like_weight(g: Any, a: Any, weight: Any, stride: Any, padding: Any, with_bias: bool, tile: str) -> Any:
    """Decompose the gradient of the weight, and of the bias, into torch's operations."""
    found = prims.convolution_weight_grad(g, a, weight, *_how(weight, stride, padding))
    return (found, ltorch.sum(g, (0, *range(2, g.ndim)))) if with_bias else found


def convolve(a: Any, weight: Any, bias: Any, stride: Any, padding: Any, tile: str) -> torch.Tensor:
    """Return the convolution."""
    return compute("forward", a, None, weight, bias, stride, padding, tile)  # type: ignore[no-any-return]


def input_gradient(g: Any, a: Any, weight: Any, stride: Any, padding: Any, tile: str) -> torch.Tensor:
    """Return the gradient of the input."""
    return compute("input", a, g, weight, None, stride, padding, tile)  # type: ignore[no-any-return]


def weight_gradient(g: Any, a: Any, weight: Any, stride: Any, padding: Any, with_bias: bool, tile: str) -> Any:
    """Return the gradient of the weight, and of the bias."""
    of_weight, of_bias = compute("weight", a, g, weight, with_bias, stride, padding, tile)
    return (of_weight, of_bias) if with_bias else of_weight


def _packed(a: Any, weight: Any, *how: Any) -> int:
    """Return the bytes of the ordered weight."""
    return math.prod(weight.shape) * weight.dtype.bytes


def _packed_for_input(g: Any, a: Any, weight: Any, *how: Any) -> int:
    return _packed(a, weight)


def _parts(g: Any, a: Any, weight: Any, stride: Any, padding: Any, with_bias: bool, tile: str) -> int:
    """Return the most bytes of the parts."""
    parts = max(parts_of(g.shape, each)[0] for each in (tile_named(tile), BOTH_LAYOUTS))
    return parts * (math.prod(weight.shape) + weight.shape[0]) * 4


# -- the pass ----------------------------------------------------------------------------------------------------------
def register(registry: Any, executor: str) -> None:
    """Register the operators, the option and the pass."""
    registry.register_option(
        OPTION, type=bool, default=True, help="whether Triton's kernels may compute depthwise convolutions"
    )
    forward = registry.register_operator(
        "triton_depthwise_convolution", executor=executor, like=like, fn=convolve, workspace=_packed
    )
    of_input = registry.register_operator(
        "triton_depthwise_input_grad", executor=executor, like=like_input, fn=input_gradient,
        workspace=_packed_for_input,
    )  # fmt: skip
    of_weight = registry.register_operator(
        "triton_depthwise_weight_grad", executor=executor, like=like_weight, fn=weight_gradient, workspace=_parts
    )

    def replace(trace: Trace, context: Any) -> Trace:
        if not context.options.get(OPTION, True) or all(ex.name != executor for ex in context.executors):
            return trace
        made_by = {name: op for op in trace.bound_symbols for name in op.out_names}
        others = [ex for ex in context.executors if not ex.is_fallback]
        named = are_named(context.executors)
        chosen: dict[int, tuple[Depthwise, str]] = {}
        for op in trace.bound_symbols:
            call = depthwise_of(op, made_by)
            if call is not None and not any(ex.takes(op, named=named) for ex in others):
                tile = choose(call)
                if tile != TORCH:
                    chosen[id(op)] = call, tile

        def replacement(op: BoundSymbol) -> Any:
            if id(op) not in chosen:
                return None
            call, tile = chosen[id(op)]
            how = call.stride, call.padding
            if call.operation == "forward":
                return forward(call.a, call.weight, call.bias, *how, tile)
            if call.operation == "input":
                return of_input(call.g, call.a, call.weight, *how, tile)
            return of_weight(call.g, call.a, call.weight, *how, call.bias, tile)

        return rewrite(trace, "Depthwise convolutions", replacement, drops_dead_code=True) if chosen else trace

    registry.register_transform(OPTION, replace, phase="before_execution", after="triton_channels_last")


def depthwise_of(op: BoundSymbol, made_by: dict[str, BoundSymbol]) -> Depthwise | None:
    """Return the depthwise convolution or gradient that an operation consists of, if the kernels compute it."""
    if op.sym.is_structural:
        return None
    first, *others = primitives_of(op)
    given = {p.name for p in op.tensors()}
    if any(isinstance(p, TensorProxy) and p.name not in given for p in first.args):
        return None  # e.g. converted operands
    g, bias = None, None
    if first.sym is prims.convolution and not others:
        a, weight, bias, *how = first.args
        operation = "forward"
    elif first.sym is prims.convolution_input_grad and not others:
        g, a, weight, *how = first.args
        operation = "input"
    elif first.sym is prims.convolution_weight_grad:
        g, a, weight, *how = first.args
        operation, bias = "weight", bool(others)
        if others and not _sums(others, g):
            return None
    else:
        return None
    stride, padding, dilation, transposed, _, groups = how
    if transposed or any(n != 1 for n in dilation) or not is_depthwise(a, g, weight, bias, stride, groups):
        return None
    return Depthwise(operation, a, g, weight, bias, stride, padding, _is_ordered(a, made_by))


def _sums(others: Sequence[BoundSymbol], g: TensorProxy) -> bool:
    """Check whether the other operation is the gradient of the bias."""
    if [part.sym for part in others] != [prims.sum] or others[0].args[0].name != g.name:
        return False
    return tuple(others[0].args[1]) == (0, *range(2, g.ndim)) and others[0].output.dtype is g.dtype


def is_depthwise(a: Any, g: Any, weight: Any, bias: Any, stride: Sequence[Any], groups: int) -> bool:
    """Check whether a convolution has one filter for each channel, and operands that the kernels support."""
    tensors = [p for p in (a, g, weight, bias) if isinstance(p, TensorProxy)]
    if a.ndim not in (3, 4) or not all(type(n) is int and n > 0 for p in tensors for n in p.shape):
        return False
    if groups == 1 or not groups == a.shape[1] == weight.shape[0] or max(weight.shape[2:]) > _LARGEST:
        return False
    if any(p.dtype is not a.dtype or p.device is not a.device for p in tensors) or a.dtype not in TAKEN:
        return False
    if any(math.prod(p.shape) >= _MOST_ELEMENTS for p in tensors) or max(stride) > min(4, *weight.shape[2:]):
        return False
    return unusable_device(a.device) is None


def _is_ordered(a: TensorProxy, made_by: dict[str, BoundSymbol]) -> bool:
    """Check whether the pass has ordered an image channels-last."""
    op = made_by.get(a.name)
    return op is not None and op.sym is prims.stride_order and tuple(op.args[1]) == CHANNELS_LAST
