# SPDX-License-Identifier: Apache-2.0
"""The history of a program: the changes of each pass, and the origin of each line.

`diff_traces(a, b)` returns a unified diff of two traces, in which values that are computed in the same way have the
same name. `provenance(traces)` describes each line of the last trace: the pass that wrote the line, the operation of
the first trace from which it comes, and the line of user code.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from thunder.core.printer import bound_symbol_lines
from thunder.core.proxies import Proxy
from thunder.core.state import SourceLine
from thunder.core.symbol import BoundSymbol
from thunder.core.symint.numbers import SymbolicNumber
from thunder.core.trace import Trace

__all__ = ["LineProvenance", "diff_traces", "provenance"]


# -- the changes of a pass --------------------------------------------------------------------------------------------
def diff_traces(a: Trace, b: Trace, *, context: int = 3, depth: int = 0) -> str:
    """Return the unified diff of two traces; the diff is empty if the traces are the same up to names.

    `context` is the number of unchanged lines around a change. `depth` is the number of levels of decomposition to
    compare.
    """
    for x in (a, b):
        if not isinstance(x, Trace):
            raise TypeError(f"diff_traces expects two traces, such as thunder.last_traces(f)[0], not {x!r:.80}")
    names = (f"{a.name}, as captured" if a.provenance is None else f"{a.name}, after {a.provenance.name}",
             f"{b.name}, as captured" if b.provenance is None else f"{b.name}, after {b.provenance.name}")  # fmt: skip
    lines = _text(a, {}, depth), _text(b, _same_names(a, b), depth)
    return "\n".join(difflib.unified_diff(*lines, *names, n=context, lineterm=""))


def _text(trace: Trace, names: dict[str, Any], depth: int) -> list[str]:
    program = [bsym.substitute(names) if names else bsym for bsym in trace.bound_symbols]
    arguments = ", ".join(names.get(p.name, p).name for p in trace.args)
    lines = [f"def {trace.name}({trace.signature if trace.signature is not None else arguments}):"]
    return lines + [f"  {line}" for bsym in program for line in bound_symbol_lines(bsym, depth=depth)]


def _same_names(a: Trace, b: Trace) -> dict[str, Proxy]:
    """Map values of `b` to values of `a` that are computed in the same way."""
    known: dict[int, list[Proxy]] = {}
    for p, key in _keys(a):
        known.setdefault(key, []).append(p)
    taken = {p.name for same in known.values() for p in same}
    names: dict[str, Proxy] = {}
    used: set[str] = set()
    for p, key in _keys(b):
        same = next((q for q in known.get(key, ()) if q.name not in used), None)
        if same is not None:
            used.add(same.name)
            if same.name != p.name:
                names[p.name] = p.replace_name(same.name)
        elif p.name in used:
            names[p.name] = p.replace_name(_fresh(p.name, taken | used))
            used.add(names[p.name].name)
        else:
            used.add(p.name)
    return names


def _fresh(name: str, taken: set[str]) -> str:
    n = 1
    while f"{name}_{n}" in taken:
        n += 1
    return f"{name}_{n}"


def _keys(trace: Trace) -> Iterator[tuple[Proxy, int]]:
    """Yield the values of a trace, each with a hash of how it is computed."""
    keys: dict[str, int] = {}
    for i, p in enumerate(trace.args):
        keys[p.name] = hash(("input", i))
        yield p, keys[p.name]
    for bsym in trace.bound_symbols:
        call = _shape_of((bsym.args, bsym.kwargs), keys)
        for i, p in enumerate(q for q in bsym.flat_outs if q.name not in keys):
            keys[p.name] = hash((bsym.sym.name, call, i, p.type_string()))
            yield p, keys[p.name]


def _shape_of(x: Any, keys: dict[str, int]) -> str:
    """Return a call's arguments as text in which values are replaced by their hashes."""
    if isinstance(x, Proxy):
        return f"#{keys.get(x.name, 0)}"
    if isinstance(x, SymbolicNumber):
        return x.text(lambda p: f"#{keys.get(p.name, 0)}")
    if isinstance(x, (tuple, list)):
        return f"{type(x).__name__}({', '.join(_shape_of(i, keys) for i in x)})"
    if isinstance(x, dict):
        return f"{{{', '.join(f'{key!r}: {_shape_of(i, keys)}' for key, i in x.items())}}}"
    if isinstance(x, slice):
        return f"slice{_shape_of((x.start, x.stop, x.step), keys)}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(x))


# -- the origin of lines ----------------------------------------------------------------------------------------------
class LineProvenance:
    """The provenance of one line: the pass that wrote it, its original operation, and the line of user code."""

    __slots__ = ("line", "operation", "origin", "source", "written_by")

    def __init__(self, operation: BoundSymbol, written_by: str, origin: BoundSymbol | None, source: SourceLine | None):
        self.operation = operation
        self.line = bound_symbol_lines(operation, depth=0)[0]
        self.written_by = written_by  # the first pass whose trace has the operation in this form
        self.origin = origin  # the operation of the first trace that computes this line's result
        self.source = source

    def __str__(self) -> str:
        call = self.line.partition("  # ")[0]
        parts = [f"by {self.written_by}"]
        if self.origin is not None and self.origin.sym is not self.operation.sym:
            parts.append(f"for {bound_symbol_lines(self.origin, depth=0)[0].partition('  # ')[0]}")
        if self.source is not None:
            parts.append(f"at {self.source}")
        return f"{call}\n    {', '.join(parts)}"

    __repr__ = __str__


class Provenance(list[LineProvenance]):
    """A list with the provenance of each line of a program."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__


def provenance(traces: Sequence[Trace]) -> Provenance:
    """Return the provenance of each line of `traces[-1]`; `traces` are the traces of one program in order."""
    if not traces or not all(isinstance(trace, Trace) for trace in traces):
        raise TypeError(
            "provenance expects the traces of one program, such as thunder.last_traces(f) or "
            "thunder.last_backward_traces(f)"
        )
    origins: dict[str, BoundSymbol] = {}
    for bsym in traces[0].bound_symbols:
        for name in bsym.out_names:
            origins.setdefault(name, bsym)
    for bsym in traces[0].bound_symbols:  # including their decompositions
        parts = [*bsym.subsymbols]
        while parts:
            part = parts.pop()
            parts += part.subsymbols
            for name in part.out_names:
                origins.setdefault(name, bsym)
    writers: dict[Any, str] = {}
    for trace in traces:
        writer = "capture" if trace.provenance is None else trace.provenance.name
        for bsym in trace.bound_symbols:
            writers.setdefault(_identity(bsym), writer)
    found = Provenance()
    for bsym in traces[-1].bound_symbols:
        if bsym.out_names or bsym.sym.must_stay:
            origin = next((origins[name] for name in bsym.out_names if name in origins), None)
            source = bsym.source or (origin.source if origin is not None else None)
            found.append(LineProvenance(bsym, writers[_identity(bsym)], origin, source))
    return found


def _identity(bsym: BoundSymbol) -> Any:
    return bsym.sym.id, bsym.arg_names, bsym.out_names
