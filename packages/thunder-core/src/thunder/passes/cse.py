# SPDX-License-Identifier: Apache-2.0
"""Common subexpression elimination: replace the results of a repeated call by the results of the first equal call.

Contract: the program computes the same outputs. The pass never merges operations with effects (e.g. random draws or
writes to memory), and never merges two calls across a write to memory.
"""

from __future__ import annotations

from typing import Any

from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, proxies_in
from thunder.core.symint.numbers import same_shape
from thunder.core.trace import Trace
from thunder.passes.rewrite import Rewriter

__all__ = ["cse", "escaping_values"]


def _writes(bsym: BoundSymbol) -> bool:
    return bsym.has_effect and (OpTags.IN_PLACE_OP in bsym.sym.tags or any(_writes(sub) for sub in bsym.subsymbols))


def escaping_values(trace: Trace) -> set[str]:
    """Return the values that escape to the caller, directly or through a view. These values must stay distinct."""
    escaping: set[str] = set()
    view = OpTags.VIEW_OP
    for bsym in reversed(trace.bound_symbols):
        # An operation with a joint rule may return its argument (e.g. a hook, which only affects gradients).
        shares = view in bsym.sym.tags or bsym.sym.joint_rule is not None
        if bsym.sym is prims.python_return or (shares and not escaping.isdisjoint(bsym.out_names)):
            escaping.update(bsym.arg_names)
    return escaping


def _same_shapes(one: BoundSymbol, other: BoundSymbol) -> bool:
    """Check whether two equal calls have the same shapes. Data-dependent sizes have different names in each call."""
    pairs = zip(_shapes_in(one), _shapes_in(other))
    return all(same_shape(a, b) for a, b in pairs)


def _shapes_in(bsym: BoundSymbol) -> list[Any]:
    return [p.shape for p in proxies_in(bsym.output) if isinstance(p, TensorProxy)]


class _CommonSubexpressions(Rewriter):
    """Replaces the results of repeated calls by those of the first."""

    pass_name = "Common Subexpression Elimination"
    drops_dead_code = False

    def start(self) -> None:
        self.escaping = escaping_values(self.trace)
        self.seen: dict[Any, BoundSymbol] = {}

    def rewrite(self, op: BoundSymbol) -> Any:
        if op.has_effect or not op.out_names or not self.escaping.isdisjoint(op.out_names):
            if _writes(op):
                self.seen.clear()
            return None
        try:
            first = self.seen.setdefault(op.key, op)
        except TypeError:  # an argument is unhashable
            return None
        return first.output if first is not op and _same_shapes(first, op) else None


def cse(trace: Trace) -> Trace:
    """Return the trace without repeated calls."""
    return _CommonSubexpressions().run(trace)
