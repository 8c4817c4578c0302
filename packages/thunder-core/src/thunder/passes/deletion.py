# SPDX-License-Identifier: Apache-2.0
"""Memory: delete values right after their last use, and yield staged results as soon as they are computed.

Contract: the input is a claimed trace. This pass is the last, because no value may be read after its `del`. Results are
unchanged. Unused results get no name.
"""

from __future__ import annotations

from thunder.core import prims
from thunder.core.proxies import NumberProxy, Proxy
from thunder.core.symbol import BoundSymbol, OpTags, map_proxies
from thunder.core.trace import Trace, construct

__all__ = ["delete_last_used", "hand_over_early"]


_NUMBERS = frozenset({prims.size, prims.number, prims.item, prims.items})


def delete_last_used(trace: Trace) -> Trace:
    """Return the trace with a `del` after the last use of each value that is not returned."""
    with construct(trace, "Delete Last Used") as out:
        kept: set[str] = set()
        lines: list[BoundSymbol] = []
        for bsym in reversed(trace.bound_symbols):
            if bsym.sym in _NUMBERS:
                if kept.isdisjoint(bsym.out_names):
                    continue  # the number is unused
            elif bsym.sym.is_structural:
                kept.update(bsym.arg_names if bsym.sym in (prims.python_return, prims.check_number) else ())
                lines.append(bsym)
                continue
            read = kept.issuperset(bsym.out_names)
            if not read:
                bsym = _without_unread(bsym, kept)
            if not read or not kept.issuperset(bsym.arg_names):
                used = bsym.flat_args if read else [*bsym.flat_args, *bsym.flat_outs]
                dead = {p.name: p for p in used if p.name not in kept}
                kept.update(dead)
                values = tuple([p for p in dead.values() if not isinstance(p, NumberProxy)])
                if values:
                    lines.append(_del(values))
            lines.append(bsym)
        lines.reverse()
        out.bound_symbols[:] = _at_first_use(lines) if trace.info.get("inputs_at_first_use") else lines
    return out


def _at_first_use(lines: list[BoundSymbol]) -> list[BoundSymbol]:
    """Return the lines, with the comment line of each input above its first use. Unused inputs come first."""
    waiting = {p.name: line for line in lines if line.sym is prims.unpack_trivial for p in line.flat_outs}
    used = {name for line in lines if line.sym is not prims.unpack_trivial for name in line.arg_names}
    moved: list[BoundSymbol] = [line for name, line in waiting.items() if name not in used]
    for line in lines:
        if line.sym is not prims.unpack_trivial:
            moved += [waiting.pop(name) for name in dict.fromkeys(line.arg_names) if name in waiting]
            moved.append(line)
    return moved


def _del(dead: tuple[Proxy, ...]) -> BoundSymbol:
    line = BoundSymbol(prims.python_del, dead, {}, None)
    line.arg_names = tuple([p.name for p in dead])
    return line


def _without_unread(bsym: BoundSymbol, read: set[str]) -> BoundSymbol:
    """Return the operation with `_` for unused results. If all its results are unused, return it unchanged.

    The next such operation rebinds `_`, so at most one unused value is alive at a time.
    """
    unread = {p.name for p in bsym.flat_outs if p.name not in read}
    if not unread or len(unread) == len(bsym.flat_outs):
        return bsym
    return bsym.replace(output=map_proxies(bsym.output, lambda p: None if p.name in unread else p))


def stage_ends(trace: Trace) -> list[int]:
    """Return for each stage of `info["stages"]` but the last one the index of the last operation that computes it."""
    *early, _ = trace.info["stages"]
    *operations, end = trace.bound_symbols
    made = {p.name: -1 for p in trace.args}
    for i, op in enumerate(operations):
        written = op.arg_names if OpTags.IN_PLACE_OP in op.sym.tags else ()
        made.update(dict.fromkeys((*op.out_names, *written), i))
    ends, at = [], -1
    for stage in early:
        at = max([at, *[made[p.name] for p in (end.args[0][i] for i in stage) if isinstance(p, Proxy)]])
        ends.append(at)
    return ends


def hand_over_early(trace: Trace) -> Trace:
    """Return the trace as a generator.

    It yields its results in the stages of `info["stages"]`, and returns the last stage.

    A stage is a list of positions in the trace's output. It is yielded when the last of its results is computed.
    """
    *early, last = trace.info["stages"]
    *operations, end = trace.bound_symbols
    results = end.args[0]
    used: dict[str, int] = {}
    for i, op in enumerate(operations):
        used.update(dict.fromkeys(op.arg_names, i))
    start = next((i for i, op in enumerate(operations) if OpTags.UNPACK_OP not in op.sym.tags), len(operations))
    with construct(trace, "Hand Over Early") as out:
        output = [results[i] for i in last]
        name, at, stops = out.add_name("ready"), start - 1, {}
        for stage, made in zip(early, stage_ends(trace)):
            values = [results[i] for i in stage]
            at = max(at, made)
            while at + 1 < len(operations) and operations[at + 1].sym is prims.python_del:
                at += 1  # so that dead values do not stay alive while the generator is suspended
            stops.setdefault(at, []).append(values)
        kept = {p.name for p in output if isinstance(p, Proxy)}
        lines: list[BoundSymbol] = [BoundSymbol(prims.python_return, (output,), {}, None)]
        for i in range(len(operations) - 1, start - 2, -1):
            for values in reversed(stops.get(i, ())):
                names = {p.name for p in values if isinstance(p, Proxy)}
                dead = tuple(sorted(n for n in names if n not in kept and used.get(n, -1) <= i))
                kept |= names
                lines.append(BoundSymbol(prims.hand_over, (values, dead, name), {}, None))
            if i >= start:
                lines.append(operations[i])
        out.bound_symbols[:] = [*operations[:start], *reversed(lines)]
    return out
