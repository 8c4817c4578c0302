# SPDX-License-Identifier: Apache-2.0
"""Join the gradients of a convolution's input and parameters, which eager mode computes in one call of torch.

They are operations of their own until here, so that passes drop each of them, and other executors claim one of them.

Contract: the input is a claimed trace. Of two operations side by side, one computes the gradient of the input and the
other one those of the parameters, for equal arguments. One call takes their place. Values are unchanged.
"""

from __future__ import annotations

from typing import Any

from thunder.core.proxies import TensorProxy
from thunder.core.structures import argument_key
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import Trace, construct
from thunder.executors.torchex.base import MODULE, ex
from thunder.runtime.kernels import backward_kernels as kernels
from thunder.runtime.kernels.nn import convolution_input_grad, convolution_weight_grad

__all__ = ["join_convolutions"]


def _meta(g: TensorProxy, a: TensorProxy, weight: TensorProxy, has_bias: bool, *how: Any) -> tuple[TensorProxy, ...]:
    sizes = [(kernels.filters(weight, *how),)] * has_bias
    return TensorProxy(like=a), TensorProxy(like=weight), *[TensorProxy(like=g, shape=size) for size in sizes]


_GRADIENTS = Symbol(
    kernels.convolution_grads.__name__, _meta, id=("torchex", "convolution_grads"), module=MODULE, executor=ex,
    fn=kernels.convolution_grads,
)  # fmt: skip
_OF_PARAMETERS = (convolution_weight_grad, kernels.convolution_parameters_grad)


def join_convolutions(trace: Trace) -> Trace:
    """Return the trace with gradients of convolutions joined, or the trace itself if there are none."""
    operations: list[BoundSymbol] = []
    for op in trace.bound_symbols:
        pair = _pair(operations[-1], op) if operations else None
        if pair is None:
            operations.append(op)
        else:
            operations[-1] = _joined(*pair)
    if len(operations) == len(trace.bound_symbols):
        return trace
    with construct(trace, "Join Gradients of Convolutions") as out:
        out.bound_symbols[:] = operations
    return out


def _pair(one: BoundSymbol, other: BoundSymbol) -> tuple[BoundSymbol, BoundSymbol] | None:
    """Return the operations of the input and of the parameters, or None if two operations do not belong together."""
    if one.sym.fn is not convolution_input_grad:
        one, other = other, one
    if one.sym.fn is not convolution_input_grad or other.sym.fn not in _OF_PARAMETERS:
        return None
    return (one, other) if list(map(argument_key, one.args)) == list(map(argument_key, other.args)) else None


def _joined(of_input: BoundSymbol, of_parameters: BoundSymbol) -> BoundSymbol:
    several = of_parameters.sym.fn is kernels.convolution_parameters_grad
    g, a, weight, *how = of_input.args
    outputs = of_parameters.output if several else (of_parameters.output,)
    parts = [*of_input.subsymbols, *of_parameters.subsymbols]
    return BoundSymbol(_GRADIENTS, (g, a, weight, several, *how), {}, (of_input.output, *outputs), parts)
