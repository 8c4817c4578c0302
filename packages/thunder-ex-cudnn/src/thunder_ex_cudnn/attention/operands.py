# SPDX-License-Identifier: Apache-2.0
"""A pass that removes copies of the operands of attention, or makes them once for all layers.

cuDNN reads queries, keys and values of any strides if the last dimension is dense, so `contiguous()` before attention
only costs time. The result has the order in memory of the queries: if these are views of a projection, the next
projection reads the result without a copy.

Biases must have dense rows. A bias whose rows are not dense (e.g. relative positions, of which a table stores the
numbers of all heads together) would be copied at each call. The pass copies it where it is computed.

Values do not change. The program's results keep the strides that they have in eager mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.extend import BoundSymbol, Proxy, TensorProxy, Trace, proxies_in, rewrite
from thunder.toolkit.layouts import changed_strides, eager_strides, has_fixed_strides
from thunder_ex_cudnn.attention.graphs import fits
from thunder_ex_cudnn.attention.implementation import takes

__all__ = ["register"]

_ATTENTION = "torch.scaled_dot_product_attention"


class _Operands:
    """The operands of the calls of attention in one trace, and what they are replaced by."""

    def __init__(self, trace: Trace, attention: Any):
        self.attention = attention
        self.made = {name: op for op in trace.bound_symbols for name in op.out_names}
        self.calls = [op for op in trace.bound_symbols if self.is_taken(op)]
        calls = {id(op) for op in self.calls}
        self.read_elsewhere = {name for op in trace.bound_symbols if id(op) not in calls for name in op.arg_names}
        self.sources: dict[str, TensorProxy] = {}  # by the name of the copy
        self.biases: set[str] = set()  # that have loose rows
        self.dense: dict[str, Any] = {}  # the copies of biases, by the name of the bias
        copies = {p.name: self.made[p.name] for op in self.calls for p in op.args[:3] if self.is_copy(p)}
        biases = [p for op in self.calls for p in op.args[3:4] if isinstance(p, TensorProxy) and p.ndim > 1]
        if copies or biases:
            strides = eager_strides(trace, [*(op.args[0] for op in copies.values()), *biases])
            for name, op in copies.items():
                a = op.args[0]
                if a.name in strides and fits(a.shape, strides[a.name], a.dtype.bytes):
                    self.sources[name] = a
            self.biases = {p.name for p in biases if p.name in strides and _has_loose_rows(p.shape, strides[p.name])}
            self.keep_queries(trace)

    def is_taken(self, op: BoundSymbol) -> bool:
        """Check whether cuDNN runs an operation."""
        if op.sym.id == _ATTENTION:
            return takes(*op.args, **op.kwargs) is True
        return op.sym is self.attention

    def is_copy(self, p: Any) -> bool:
        """Check whether a tensor is a contiguous copy (or the tensor itself) that only attention reads."""
        op = self.made.get(p.name)
        contiguous = op is not None and op.sym is ltorch.contiguous and has_fixed_strides(op)
        return contiguous and p.name not in self.read_elsewhere

    def keep_queries(self, trace: Trace) -> None:
        """Keep copies of queries from which the program's results have their strides."""
        moved = [op for op in self.calls if op.args[0].name in self.sources]

        def origins(op: BoundSymbol) -> Sequence[Proxy] | None:
            return op.flat_outs if any(op is other for other in moved) else None

        changed = changed_strides(trace, origins)
        if changed is None or any(p.name in changed for p in proxies_in(trace.output)):
            for op in moved:
                self.sources.pop(op.args[0].name, None)

    def __call__(self, op: BoundSymbol) -> Any:
        if not self.is_taken(op):
            return None
        query, key, value = (self.sources.get(p.name, p) for p in op.args[:3])
        rest = [self.with_dense_rows(x) for x in op.args[3:4]]
        args = (query, key, value, *rest)
        if all(new is old for new, old in zip(args, op.args)):
            return None
        return op.sym(*args, *op.args[4:], **op.kwargs)

    def with_dense_rows(self, bias: Any) -> Any:
        """Return a bias in a layout that cuDNN reads."""
        if not isinstance(bias, TensorProxy) or bias.name not in self.biases:
            return bias
        if bias.name not in self.dense:
            self.dense[bias.name] = ltorch.contiguous(bias)
        return self.dense[bias.name]


def _has_loose_rows(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Check whether rows are not dense, in memory in which every element has its own place."""
    return shape[-1] > 1 and strides[-1] > 1 and all(step > 0 for n, step in zip(shape, strides) if n > 1)


def register(registry: Any, executor: str) -> None:
    """Register the pass, which runs after attention that is written out has become one operator."""
    attention = registry.operator("cudnn_attention")

    def replace(trace: Trace, context: Any) -> Trace:
        operands = _Operands(trace, attention)
        return rewrite(trace, "Operands of attention", operands) if operands.calls else trace

    registry.register_transform("cudnn_attention_operands", replace, phase="before_grad", executor=executor)
