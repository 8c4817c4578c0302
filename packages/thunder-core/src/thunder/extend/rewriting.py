# SPDX-License-Identifier: Apache-2.0
"""Writing operations into a trace, and replacing operations of a trace by others.

A plugin's pass is a function `(trace, context) -> trace`. Most passes look for operations, one at a time, and write
others for them: `rewrite` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from thunder.core.errors import check
from thunder.core.langctx import set_langctx
from thunder.core.proxies import Proxy
from thunder.core.pytree import flat_items
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, map_proxies
from thunder.core.trace import Trace, construct

__all__ = ["recording", "rewrite"]


@contextmanager
def recording(trace: Trace) -> Iterator[list[BoundSymbol]]:
    """Record the operations called within it into a list of their own instead of `trace`, which names their results.

    Operators on proxies mean what torch's mean.
    """
    with tracectx(trace), trace.scope() as operations, set_langctx("torch"):
        yield operations


def rewrite(trace: Trace, name: str, replace: Callable[[BoundSymbol], Any]) -> Trace:
    """Return a trace in which operations are replaced, or `trace` itself where none is.

    `replace(operation)` calls the operations that take its place and returns what stands for its output, in the same
    structure; None in a place of it says that nothing reads that value. To keep the operation it returns None.
    `name` is the pass's, for the trace's provenance.
    """
    changed = False
    elsewhere: dict[str, Any] = {}  # what is read in place of a value that is made under another name
    with construct(trace, name) as out:
        for op in trace.bound_symbols:
            op = op.substitute(elsewhere) if elsewhere else op
            with recording(out) as operations:
                made = replace(op)
            if made is None:
                out.record(op)
                continue
            changed = True
            names = _renamed(op, made, operations, elsewhere)
            for new in operations:
                new = new.substitute(names)
                new.source = new.source or op.source
                out.record(new)
        if elsewhere:
            out.output = map_proxies(out.output, lambda p: elsewhere.get(p.name, p))
    return out if changed else trace


def _renamed(op: BoundSymbol, made: Any, operations: list[BoundSymbol], elsewhere: dict[str, Any]) -> dict[str, Any]:
    """The names under which the new operations make the values of the old one; other values go into `elsewhere`."""
    old, new = flat_items(op.output), flat_items(made)
    check(
        len(old) == len(new),
        lambda: f"what replaces {op.sym.name} gives {len(new)} values instead of {len(old)}:\n{op}",
    )
    own = {name for each in operations for name in each.out_names}
    names: dict[str, Any] = {}
    for was, now in zip(old, new):
        if not isinstance(was, Proxy) or now is None or was.name == getattr(now, "name", None):
            continue
        if isinstance(now, Proxy) and now.name in own and now.name not in names:
            names[now.name] = was
        else:  # an input of the operation, a number, or one value for two outputs
            elsewhere[was.name] = names.get(now.name, now) if isinstance(now, Proxy) else now
    return names
