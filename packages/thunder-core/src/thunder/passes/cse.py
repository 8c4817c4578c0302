# SPDX-License-Identifier: Apache-2.0
"""Common subexpression elimination: replace the results of a repeated call by the results of the first equal call.

Contract: the program computes the same outputs. The pass never merges operations with effects (e.g. random draws or
writes to memory), and never merges two calls across a write to memory. It notes the casts to another dtype that it
merges, and what it merges after them (`merged_casts`), because autograd sums the gradients of separate casts in the
dtype before the cast.
"""

from __future__ import annotations

from typing import Any

from thunder.core import dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, proxies_in
from thunder.core.symint.numbers import same_shape
from thunder.core.trace import Trace
from thunder.passes.merged_casts import MERGED_CASTS
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


def _is_cast(bsym: BoundSymbol) -> bool:
    """Check whether an operation only converts its operand to another dtype."""
    if bsym.sym.is_prim:
        return bsym.sym is prims.convert_element_type
    return len(bsym.subsymbols) == 1 and _is_cast(bsym.subsymbols[0])


class _CommonSubexpressions(Rewriter):
    """Replaces the results of repeated calls by those of the first."""

    pass_name = "Common Subexpression Elimination"
    drops_dead_code = False

    def start(self) -> None:
        self.escaping = escaping_values(self.trace)
        self.seen: dict[Any, BoundSymbol] = {}
        self.merged_casts: dict[str, Any] = dict(self.trace.info.get(MERGED_CASTS, {}))

    def rewrite(self, op: BoundSymbol) -> Any:
        if op.has_effect or not op.out_names or not self.escaping.isdisjoint(op.out_names):
            if _writes(op):
                self.seen.clear()
            return None
        try:
            first = self.seen.setdefault(op.key, op)
        except TypeError:  # an argument is unhashable
            return None
        if first is op or not _same_shapes(first, op):
            return None
        self._note_cast(first)
        return first.output

    def _note_cast(self, op: BoundSymbol) -> None:
        """Note a call that replaces later ones, if it is a cast to a dtype that is not wider, or depends on one."""
        made = op.output
        if not isinstance(made, TensorProxy) or not dtypes.is_inexact_dtype(made.dtype):
            return
        wide = [self.merged_casts[name] for name in op.arg_names if name in self.merged_casts]
        if _is_cast(op) and isinstance(given := op.args[0], TensorProxy) and dtypes.is_inexact_dtype(given.dtype):
            wide.append(given.dtype)
        kind = dtypes.is_complex_dtype(made.dtype)  # the real part of a merged cast has a real gradient
        wide = [dtype for dtype in wide if dtypes.is_complex_dtype(dtype) == kind]
        widest = max(wide, key=lambda dtype: dtype.bytes, default=made.dtype)
        if widest is not made.dtype and widest.bytes >= made.dtype.bytes:
            self.merged_casts[made.name] = widest
            self.out.info[MERGED_CASTS] = self.merged_casts


def cse(trace: Trace) -> Trace:
    """Return the trace without repeated calls."""
    return _CommonSubexpressions().run(trace)
