# SPDX-License-Identifier: Apache-2.0
"""Common subexpressions: of two equal calls the second takes the first one's result.

Contract: the result computes the same outputs. Operations that draw random numbers, write memory or have other effects
are never merged, and nothing is merged across a write to memory.
"""

from __future__ import annotations

from typing import Any

from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, proxies_in
from thunder.core.symint.numbers import same_shape
from thunder.core.trace import Trace, construct

__all__ = ["cse", "escaping_values"]


def _writes(bsym: BoundSymbol) -> bool:
    return bsym.has_effect and (OpTags.IN_PLACE_OP in bsym.sym.tags or any(_writes(sub) for sub in bsym.subsymbols))


def escaping_values(trace: Trace) -> set[str]:
    """The values that the caller gets hold of, directly or as the memory behind a view: each stays its own tensor."""
    escaping: set[str] = set()
    view = OpTags.VIEW_OP
    for bsym in reversed(trace.bound_symbols):
        # What an operation with a joint rule gives may be what it is given, for the sake of its gradient (hooks).
        shares = view in bsym.sym.tags or bsym.sym.joint_rule is not None
        if bsym.sym is prims.python_return or (shares and not escaping.isdisjoint(bsym.out_names)):
            escaping.update(bsym.arg_names)
    return escaping


def _alike(one: BoundSymbol, other: BoundSymbol) -> bool:
    """Whether two equal calls give the same shapes: sizes that only running tells are named anew by each of them."""
    pairs = zip(_shapes_in(one), _shapes_in(other))
    return all(same_shape(a, b) for a, b in pairs)


def _shapes_in(bsym: BoundSymbol) -> list[Any]:
    return [p.shape for p in proxies_in(bsym.output) if isinstance(p, TensorProxy)]


def cse(trace: Trace) -> Trace:
    """The trace with each call made once."""
    escaping = escaping_values(trace)
    with construct(trace, "Common Subexpression Elimination") as out:
        seen: dict[Any, BoundSymbol] = {}
        replaced: dict[str, Any] = {}
        record = out.bound_symbols.append
        for bsym in trace.bound_symbols:
            if replaced:
                bsym = bsym.substitute(replaced)
            if bsym.has_effect or not bsym.out_names or not escaping.isdisjoint(bsym.out_names):
                if _writes(bsym):
                    seen.clear()
                record(bsym)
                continue
            try:
                first = seen.setdefault(bsym.key, bsym)
            except TypeError:  # an argument that cannot be compared
                first = bsym
            if first is bsym or not _alike(bsym, first):
                record(bsym)
                continue
            for old, new in zip(proxies_in(bsym.output), proxies_in(first.output)):
                replaced[old.name] = new
    return out
