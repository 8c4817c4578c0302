# SPDX-License-Identifier: Apache-2.0
"""Convolutions as operators of families of kernels, and the pass that replaces convolutions and gradients by them.

The pass runs before executors claim operations, after the pass that orders images channels-last: which candidate is the
fastest depends on the layout. It replaces operations that torch would run, where the rule of a family or a measurement
says so. The options `triton_depthwise=False`, `triton_grouped=False` and `triton_narrow=False` turn this off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import BoundSymbol, Symbol, TensorProxy, Trace, is_left_to_torch, rewrite
from thunder_ex_triton.channels_last import CHANNELS_LAST, primitives_of
from thunder_ex_triton.convolutions.family import TORCH, Convolution, Family
from thunder_ex_triton.depthwise.rule import DEPTHWISE
from thunder_ex_triton.grouped.rule import GROUPED, NARROW

__all__ = ["FAMILIES", "like", "like_input", "like_weight", "register"]

#: Families by option. No convolution is supported by two of them.
FAMILIES = {"triton_depthwise": DEPTHWISE, "triton_grouped": GROUPED, "triton_narrow": NARROW}


# -- operators ---------------------------------------------------------------------------------------------------------
def _how(a: Any, weight: Any, stride: Sequence[int], padding: Sequence[int]) -> tuple[Any, ...]:
    """Return the other arguments of a convolution."""
    n = len(stride)
    return (*map(tuple, (stride, padding)), (1,) * n, False, (0,) * n, a.shape[1] // weight.shape[1])


def like(a: Any, weight: Any, bias: Any, stride: Any, padding: Any, tile: str) -> Any:
    """Decompose a convolution into torch's operations."""
    return prims.convolution(a, weight, bias, *_how(a, weight, stride, padding))


def like_input(g: Any, a: Any, weight: Any, stride: Any, padding: Any, tile: str) -> Any:
    """Decompose the gradient of the input into torch's operations."""
    return prims.convolution_input_grad(g, a, weight, *_how(a, weight, stride, padding))


def like_weight(g: Any, a: Any, weight: Any, stride: Any, padding: Any, with_bias: bool, tile: str) -> Any:
    """Decompose the gradient of the weight, and of the bias, into torch's operations."""
    found = prims.convolution_weight_grad(g, a, weight, *_how(a, weight, stride, padding))
    return (found, ltorch.sum(g, (0, *range(2, g.ndim)))) if with_bias else found


class _Operators(NamedTuple):
    """The operators of a family."""

    family: Family
    forward: Symbol
    of_input: Symbol
    of_weight: Symbol

    def replacement(self, call: Convolution, tile: str) -> Any:
        how = call.stride, call.padding
        if call.operation == "forward":
            return self.forward(call.a, call.weight, call.bias, *how, tile)
        if call.operation == "input":
            return self.of_input(call.g, call.a, call.weight, *how, tile)
        return self.of_weight(call.g, call.a, call.weight, *how, call.bias, tile)


def _operators(family: Family, registry: Any, executor: str) -> _Operators:
    """Register the operators of a family."""

    def convolve(a: Any, weight: Any, bias: Any, stride: Any, padding: Any, tile: str) -> Any:
        return family.compute("forward", a, None, weight, bias, stride, padding, tile)

    def input_gradient(g: Any, a: Any, weight: Any, stride: Any, padding: Any, tile: str) -> Any:
        return family.compute("input", a, g, weight, None, stride, padding, tile)

    def weight_gradient(g: Any, a: Any, weight: Any, stride: Any, padding: Any, with_bias: bool, tile: str) -> Any:
        found = family.compute("weight", a, g, weight, with_bias, stride, padding, tile)
        return found if with_bias else found[0]

    def forward_workspace(a: Any, weight: Any, bias: Any, stride: Any, padding: Any, tile: str) -> int:
        return family.workspace("forward", a, None, weight, stride, padding, family.tile("forward", tile))

    def input_workspace(g: Any, a: Any, weight: Any, stride: Any, padding: Any, tile: str) -> int:
        return family.workspace("input", a, g, weight, stride, padding, family.tile("input", tile))

    def weight_workspace(g: Any, a: Any, weight: Any, stride: Any, padding: Any, with_bias: bool, tile: str) -> int:
        return family.workspace("weight", a, g, weight, stride, padding, family.tile("weight", tile))

    return _Operators(
        family,
        *(
            registry.register_operator(
                f"triton_{family.name}_{name}", executor=executor, like=like, fn=fn, workspace=workspace
            )
            for name, like, fn, workspace in (
                ("convolution", like, convolve, forward_workspace),
                ("input_grad", like_input, input_gradient, input_workspace),
                ("weight_grad", like_weight, weight_gradient, weight_workspace),
            )
        ),
    )


# -- the pass ----------------------------------------------------------------------------------------------------------
def register(registry: Any, executor: str) -> None:
    """Register the operators, the options and the pass."""
    families = {option: _operators(family, registry, executor) for option, family in FAMILIES.items()}
    for option, operators in families.items():
        registry.register_option(
            option, type=bool, default=True,
            help=f"whether Triton's kernels may compute {operators.family.name} convolutions",
        )  # fmt: skip

    def replace(trace: Trace, context: Any) -> Trace:
        enabled = [operators for option, operators in families.items() if context.options.get(option, True)]
        if not enabled:
            return trace
        made_by = {name: op for op in trace.bound_symbols for name in op.out_names}
        chosen: dict[int, tuple[_Operators, Convolution, str]] = {}
        for op in trace.bound_symbols:
            call = _convolution_of(op, made_by)
            using = next((o for o in enabled if call is not None and o.family.supports(call)), None)
            if call is not None and using is not None and is_left_to_torch(op, context.executors):
                tile = using.family.choose(call)
                if tile != TORCH:
                    chosen[id(op)] = using, call, tile

        def replacement(op: BoundSymbol) -> Any:
            if id(op) not in chosen:
                return None
            using, call, tile = chosen[id(op)]
            return using.replacement(call, tile)

        return rewrite(trace, "Convolutions by Triton", replacement, drops_dead_code=True) if chosen else trace

    registry.register_transform(
        "triton_convolutions", replace, phase="before_execution", after="triton_channels_last", executor=executor
    )


def _convolution_of(op: BoundSymbol, made_by: dict[str, BoundSymbol]) -> Convolution | None:
    """Return the convolution, or its gradient, that an operation consists of."""
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
    stride, padding, dilation, transposed, *_ = how
    if transposed or any(n != 1 for n in dilation):
        return None
    return Convolution(operation, a, g, weight, bias, stride, padding, _is_ordered(a, made_by))


def _sums(others: Sequence[BoundSymbol], g: TensorProxy) -> bool:
    """Check whether the other operation is the gradient of the bias."""
    if [part.sym for part in others] != [prims.sum] or others[0].args[0].name != g.name:
        return False
    return tuple(others[0].args[1]) == (0, *range(2, g.ndim)) and others[0].output.dtype is g.dtype


def _is_ordered(a: TensorProxy, made_by: dict[str, BoundSymbol]) -> bool:
    """Check whether the pass has ordered an image channels-last."""
    op = made_by.get(a.name)
    return op is not None and op.sym is prims.stride_order and tuple(op.args[1]) == CHANNELS_LAST
