# SPDX-License-Identifier: Apache-2.0
"""Simplify the redistributions of a program with DTensors.

- `varying` is dropped: it only determines gradients.
- A sum over ranks of which each rank keeps a shard becomes a reduce-scatter, e.g. the gradient of a gathered value.
- A sum over ranks that only becomes a DTensor, e.g. the gradient of a replicated parameter, becomes a partial DTensor,
  as in eager mode: whoever reads it reduces it.

Contract: the program computes the same outputs. The order of collectives stays.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from thunder.core import prims
from thunder.core.groups import Group
from thunder.core.layouts import Layout, Partial
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.passes.cse import escaping_values
from thunder.passes.rewrite import Rewriter
from thunder.torch import redistribution

__all__ = ["partitioned"]


class _Partition(Rewriter):
    """Replaces `varying`, and `own_shard(sum_partial(a))`."""

    pass_name = "Simplify Redistributions"
    drops_dead_code = False

    def start(self) -> None:
        self.escaping = escaping_values(self.trace)
        uses = Counter(name for op in self.trace.bound_symbols for name in op.arg_names)
        reader = {name: op for op in self.trace.bound_symbols for name in op.arg_names}
        self.partial: set[str] = set()
        self.shard_of: dict[str, BoundSymbol] = {}  # sums over ranks -> the only operation that reads them
        for op in self.trace.bound_symbols:
            if op.sym is redistribution.sum_partial and op.args[1] == "sum" and uses[op.output.name] == 1:
                only = reader[op.output.name]
                if only.sym is redistribution.own_shard and only.args[2] == op.args[2]:
                    self.shard_of[op.output.name] = only
                elif only.sym is prims.dtensor_of and op.args[2] in only.args[1].mesh.groups:
                    self.partial.add(op.output.name)
        self.scattered: dict[str, Any] = {}
        self.summands: dict[str, Any] = {}  # sums over ranks that become partial DTensors -> the local summand

    def rewrite(self, op: BoundSymbol) -> Any:
        if op.sym is redistribution.varying:
            return op.args[0] if op.output.name not in self.escaping else None
        if op.sym is redistribution.sum_partial and op.output.name in self.shard_of:
            only = self.shard_of[op.output.name]
            self.scattered[only.output.name] = redistribution.scatter_sum(op.args[0], only.args[1], op.args[2])
            return (None,)
        if op.sym is redistribution.sum_partial and op.output.name in self.partial:
            self.summands[op.output.name] = op.args[0], op.args[2]
            return (None,)
        if op.sym is prims.dtensor_of and op.args[0].name in self.summands:
            summand, group = self.summands[op.args[0].name]
            return prims.dtensor_of(summand, _partial_in(op.args[1], group))
        return self.scattered.get(op.output.name) if op.sym is redistribution.own_shard else None


def _partial_in(layout: Layout, group: Group) -> Layout:
    """Return the layout with partial values in a process group."""
    pairs = zip(layout.placements, layout.mesh.groups)
    return Layout([Partial("sum") if g == group else p for p, g in pairs], layout.shape, layout.stride, layout.mesh)


def partitioned(trace: Trace) -> Trace:
    """Return the trace with simplified redistributions, or the trace itself if it has none."""
    if not any(
        op.sym in (redistribution.varying, redistribution.own_shard, prims.dtensor_of) for op in trace.bound_symbols
    ):
        return trace
    rewriter = _Partition()
    out = rewriter.run(trace)
    return out if rewriter.changed else trace
