# SPDX-License-Identifier: Apache-2.0
"""Common subexpressions: of two equal calls the second takes the first one's result.

Contract: the result computes the same outputs. Operations that draw random numbers, write memory or have other effects
are never merged, and nothing is merged across a write to memory.
"""

from __future__ import annotations

from typing import Any

from thunder.core import prims
from thunder.core.numbers import SymbolicNumber
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol, OpTags, proxies_in
from thunder.core.trace import Trace, construct

__all__ = ["argument_key", "cse", "escaping_values"]


def argument_key(x: Any) -> Any:
    """A hashable stand-in that is equal exactly for equal arguments. Values go by their names, strings do not."""
    if isinstance(x, Proxy):
        return x.name
    if isinstance(x, (tuple, list)):
        return (type(x), *[argument_key(i) for i in x])
    if isinstance(x, dict):
        return (dict, *[(k, argument_key(v)) for k, v in x.items()])
    if isinstance(x, slice):
        return (slice, argument_key(x.start), argument_key(x.stop), argument_key(x.step))
    if isinstance(x, SymbolicNumber):
        return (type(x), x.text())
    if isinstance(x, (float, complex)):
        return (type(x), repr(x))  # 0.0 and -0.0 differ, nan equals itself
    return (type(x), x)


def _writes(bsym: BoundSymbol) -> bool:
    return OpTags.IN_PLACE_OP in bsym.sym.tags or any(_writes(sub) for sub in bsym.subsymbols)


def escaping_values(trace: Trace) -> set[str]:
    """The values that the caller gets hold of, directly or as the memory behind a view: each stays its own tensor."""
    escaping: set[str] = set()
    for bsym in reversed(trace.bound_symbols):
        if bsym.sym is prims.python_return or (
            OpTags.VIEW_OP in bsym.sym.tags and any(name in escaping for name in bsym.out_names)
        ):
            escaping.update(bsym.arg_names)
    return escaping


def cse(trace: Trace) -> Trace:
    """The trace with each call made once."""
    escaping = escaping_values(trace)
    with construct(trace, "Common Subexpression Elimination") as out:
        seen: dict[Any, BoundSymbol] = {}
        replaced: dict[str, Any] = {}
        for bsym in trace.bound_symbols:
            if replaced:
                bsym = bsym.substitute(replaced)
            if bsym.has_effect or not bsym.out_names or not escaping.isdisjoint(bsym.out_names):
                if _writes(bsym):
                    seen.clear()
                out.record(bsym)
                continue
            try:
                key = (bsym.sym.id, argument_key(bsym.args), argument_key(bsym.kwargs))
                first = seen.setdefault(key, bsym)
            except TypeError:  # an argument that cannot be compared
                first = bsym
            if first is bsym:
                out.record(bsym)
                continue
            for old, new in zip(proxies_in(bsym.output), proxies_in(first.output)):
                replaced[old.name] = new
    return out
