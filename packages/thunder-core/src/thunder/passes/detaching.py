# SPDX-License-Identifier: Apache-2.0
"""Drop `detach` from programs in which no gradients flow.

Operations under `torch.no_grad` are recorded with detached results, because user code may enable gradients later.

Contract: the program computes the same outputs. Values that escape to the caller remain separate tensors.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace
from thunder.passes.cse import escaping_values
from thunder.passes.rewrite import Rewriter

__all__ = ["without_detaching"]


# Operations that return the value of their last argument, with another gradient.
_DETACHED = frozenset({ltorch.detach, prims.detach, prims.assign_value})


class _WithoutDetaching(Rewriter):
    """Replaces detached values by the values themselves."""

    pass_name = "Without Gradients"
    drops_dead_code = False

    def start(self) -> None:
        self.escaping = escaping_values(self.trace)
        self.uses = Counter(name for op in self.trace.bound_symbols for name in op.arg_names)
        self.computed: set[str] = set()  # values computed here, in memory of their own

    def rewrite(self, op: BoundSymbol) -> Any:
        if op.sym in _DETACHED:
            value = op.args[-1]
            if op.output.name not in self.escaping or (value.name in self.computed and self.uses[value.name] == 1):
                self.uses[value.name] += self.uses[op.output.name] - 1
                return value
        elif not op.sym.is_structural and not op.has_effect and OpTags.VIEW_OP not in op.sym.tags:
            self.computed.update(op.out_names)
        return None


def without_detaching(trace: Trace) -> list[Trace]:
    """Return a list with the trace without `detach`, or an empty list if the trace contains none."""
    if all(op.sym not in _DETACHED for op in trace.bound_symbols):
        return []
    return [_WithoutDetaching().run(trace)]
