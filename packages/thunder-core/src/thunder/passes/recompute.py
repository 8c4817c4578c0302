# SPDX-License-Identifier: Apache-2.0
"""Recomputation in a program that calls `backward()` itself: backward operations read fewer values of the forward part.

Such a program is one trace, in which each value lives until its last use. This pass lets the backward operations
compute values again where that saves memory, by the rules for separate backward programs (`passes/remat.py`).

Contract: results, random numbers and writes are unchanged, to the bit. `info["backward"]` contains, for each
`backward()`, the names of values that its operations compute; the pass adds the values that are computed again. Fusion
executors do not fuse these operations with others (`execution/regions.py`), or the values would live as long as before.
No later pass may merge equal operations. Writes to inputs are copies at the end of the trace, behind all readers, so
values are computed again from the same memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from thunder.core.executor import ExecutorLike
from thunder.core.groups import KEPT
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, proxies_in
from thunder.core.trace import Trace, construct
from thunder.passes.dce import live_operations
from thunder.passes.kept_parameters import KeptParameters
from thunder.passes.remat import choose_saved
from thunder.passes.split import leading_to, producers_of

__all__ = ["recompute_in_backward"]


def recompute_in_backward(trace: Trace, executors: Sequence[ExecutorLike], remat: str = "auto") -> Trace:
    """Return the trace with values computed again in its backward parts, or the trace itself if there are none."""
    if remat == "none" or not trace.info.get("backward"):
        return trace
    with construct(trace, "Recompute in Backward") as out:
        out.info = {**trace.info, "backward": list(trace.info["backward"])}
        operations = list(trace.bound_symbols)
        for k, names in enumerate(trace.info["backward"]):
            before = zip(trace.info["backward"][:k], out.info["backward"])
            ends = _ends(operations, before) if KEPT in trace.info else {}
            operations, again = _recomputed(operations, names, ends, out, executors, remat)
            out.info["backward"][k] = names | again
        out.bound_symbols[:] = live_operations(operations)  # without values that are computed again for all uses
    return out


def _recomputed(
    operations: list[BoundSymbol],
    names: frozenset[str],
    ends: Mapping[frozenset[str], int],
    out: Trace,
    executors: Sequence[ExecutorLike],
    remat: str,
) -> tuple[list[BoundSymbol], set[str]]:
    """Return the operations, with values computed again before their first use, and the names of these values.

    `ends` has the positions at which the backward parts before this one end, if parameters are kept.
    """
    first = next((i for i, op in enumerate(operations) if not names.isdisjoint(op.out_names)), len(operations))
    is_backward = [i >= first and not names.isdisjoint(op.out_names) for i, op in enumerate(operations)]
    backward = [op for op, is_it in zip(operations, is_backward) if is_it]
    producers = producers_of(operations[:first])
    read: dict[str, Proxy] = {}
    kept: dict[str, Proxy] = {}  # values that live longer anyway
    for op, is_it in zip(operations[first:], is_backward[first:]):
        found = read if is_it else kept
        arguments = proxies_in(op.args) if op.sym.is_return else op.flat_args
        found.update((p.name, p) for p in arguments if p.name in producers or p.name not in names)
    if not read:
        return operations, set()
    results = [p for p in kept.values() if isinstance(p, TensorProxy)]
    parameters: KeptParameters | None = out.info.get(KEPT)
    keep = None if parameters is None else partial(parameters.choose, part=names, ends=ends)
    saved = choose_saved(list(read.values()), producers, executors, remat, results, backward, keep)
    known = {p.name for p in saved} | {name for name in read if name not in producers}
    known |= {name for op in operations[:first] for name in op.out_names if name not in producers}
    renamed: dict[str, Proxy] = {}
    again: set[str] = set()  # also values inside of operations, which a fusion executor may see one by one
    lines: list[BoundSymbol] = []
    for op, is_it in zip(operations, is_backward):
        if is_it:
            missing = [name for name in op.arg_names if name in producers and name not in known and name not in renamed]
            for earlier in leading_to(missing, known | renamed.keys(), producers):
                lines.append(_renamed(earlier, renamed, out))
                again.update(_made_in(lines[-1]))
            op = op.substitute(renamed) if renamed else op
        lines.append(op)
    return lines, again


def _ends(
    operations: Sequence[BoundSymbol], parts: Iterable[tuple[frozenset[str], frozenset[str]]]
) -> dict[frozenset[str], int]:
    """Return for each part the position of the last operation that computes one of its values.

    The values of a part are given without and with those that are computed again.
    """
    part_of = {name: part for part, with_repeated in parts for name in with_repeated}
    ends = dict.fromkeys(part_of.values(), -1)
    for i, op in enumerate(operations):
        ends.update((part_of[name], i) for name in op.out_names if name in part_of)
    return ends


def _renamed(op: BoundSymbol, renamed: dict[str, Proxy], out: Trace) -> BoundSymbol:
    """Return an operation that computes the same values under new names, also in its decomposition."""
    names: dict[str, Any] = {name: renamed[name] for name in op.arg_names if name in renamed}
    fresh = {name: out.make_name("t") for name in _made_in(op)}
    new = op.substitute(names, fresh)
    renamed.update((name, names[name]) for name in op.out_names)
    return new


def _made_in(op: BoundSymbol) -> Iterator[str]:
    yield from op.out_names
    for part in op.subsymbols:
        yield from _made_in(part)
