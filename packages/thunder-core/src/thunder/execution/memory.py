# SPDX-License-Identifier: Apache-2.0
"""Memory: values are deleted right after their last use, and results that nobody reads get no name."""

from __future__ import annotations

from thunder.core import prims
from thunder.core.proxies import NumberProxy, Proxy
from thunder.core.symbol import BoundSymbol, map_proxies
from thunder.core.trace import Trace, construct
from thunder.execution.claim import is_structural

__all__ = ["delete_last_used"]


def delete_last_used(trace: Trace) -> Trace:
    """The trace with `del` after the last use of each value that is not returned."""
    with construct(trace, "Delete Last Used") as out:
        kept: set[str] = set()
        lines: list[BoundSymbol] = []
        for bsym in reversed(trace.bound_symbols):
            if bsym.sym in (prims.size, prims.number, prims.item):
                if bsym.output.name not in kept:
                    continue  # nobody reads the number
            elif is_structural(bsym):
                kept.update(bsym.arg_names if bsym.sym is prims.python_return else ())
                lines.append(bsym)
                continue
            if not kept.issuperset(bsym.out_names):
                bsym = _without_unread(bsym, kept)
            if not kept.issuperset(bsym.arg_names) or not kept.issuperset(bsym.out_names):
                used = [p for p in (*bsym.flat_args, *bsym.flat_outs) if p.name not in kept]
                dead = {p.name: p for p in used if not isinstance(p, NumberProxy)}
                kept.update([p.name for p in used])
                if dead:
                    lines.append(_del(tuple(dead.values())))
            lines.append(bsym)
        out.bound_symbols[:] = reversed(lines)
    return out


def _del(dead: tuple[Proxy, ...]) -> BoundSymbol:
    line = BoundSymbol(prims.python_del, dead, {}, None)
    line._arg_names = tuple([p.name for p in dead])
    return line


def _without_unread(bsym: BoundSymbol, read: set[str]) -> BoundSymbol:
    """The operation with `_` for those of its results that nobody reads, unless it has no others.

    `_` is bound anew by the next such operation, so at most one of them is held at a time.
    """
    unread = {p.name for p in bsym.flat_outs if p.name not in read}
    if not unread or len(unread) == len(bsym.flat_outs):
        return bsym
    return bsym.replace(output=map_proxies(bsym.output, lambda p: None if p.name in unread else p))
