# SPDX-License-Identifier: Apache-2.0
"""Join the step counters of an optimizer: tensors of one element on the CPU, to which a step adds a number.

The optimizer keeps a counter for each parameter. A call of torch for each of hundreds of counters would take the host
longer than a small model takes the GPU.

Contract: the input is a claimed trace behind the in-place updates. A counter is an input that is only read by one sum
and only written by this sum or by one copy of it. Otherwise the sum is only read as a number. Sums move up to the first
one, and copies down to the last one: nothing else reads or writes the counters in between, and no operation behind the
first write can fail. Values and all other operations are unchanged. The time is linear in the length of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.core.trace import Trace, construct
from thunder.executors.torchex.base import MODULE, ex
from thunder.passes.operation_memory import written_arguments
from thunder.passes.postponing import innermost, is_copy
from thunder.runtime.kernels import counters as kernels

__all__ = ["adds_to_counters", "join_counters", "written_counters"]

_FEWEST = 4  # counters of a call


def _like_the_first(values: list[TensorProxy], other: Any) -> list[TensorProxy]:
    return [TensorProxy(like=p) for p in values]


def _symbol(run: Callable[..., Any], tags: Sequence[OpTags] = ()) -> Symbol:
    name = run.__name__
    return Symbol(name, _like_the_first, id=("torchex", name), module=MODULE, executor=ex, fn=run, tags=tags)


_ADD = _symbol(kernels.add_to_counters)
_ADD_IN_PLACE = _symbol(kernels.add_to_counters_, (OpTags.IN_PLACE_OP,))
_COPY = _symbol(kernels.copy_counters_, (OpTags.IN_PLACE_OP,))
_COUNTERS = {_ADD_IN_PLACE: 0, _COPY: 1}  # the argument that is written


def adds_to_counters(op: BoundSymbol) -> bool:
    """Check whether an operation adds to counters. Its results share one memory."""
    return op.sym is _ADD


def written_counters(op: BoundSymbol) -> list[str]:
    """Return the counters that an operation writes to."""
    place = _COUNTERS.get(op.sym)
    return [] if place is None else [p.name for p in op.args[place]]


def join_counters(trace: Trace) -> Trace:
    """Return the trace with sums of counters, and copies to them, joined, or the trace itself if there are few."""
    operations = trace.bound_symbols
    if sum(map(_is_sum, operations)) < _FEWEST:
        return trace
    groups: dict[Any, list[tuple[int, int]]] = {}  # positions of a sum and of its copy
    for key, places in _updates(operations):
        groups.setdefault(key, []).append(places)
    placed: dict[int, BoundSymbol] = {}
    gone: set[int] = set()
    for updates in groups.values():
        if len(updates) < _FEWEST:
            continue
        sums, copies = ([operations[i] for i in places] for places in zip(*updates))
        counters = [op.args[0] for op in sums]
        values = [op.output for op in sums]
        in_place = sums[0] is copies[0]
        placed[updates[0][0]] = _joined(_ADD_IN_PLACE if in_place else _ADD, (counters, sums[0].args[1]), sums)
        if not in_place:
            placed[max(i for _, i in updates)] = _joined(_COPY, (values, counters), copies)
        gone.update(i for places in updates for i in places)
    if not placed:
        return trace
    with construct(trace, "Join Counters") as out:
        kept = [i for i in range(len(operations)) if i in placed or i not in gone]
        out.bound_symbols[:] = [placed.get(i, operations[i]) for i in kept]
    return out


def _joined(sym: Symbol, args: tuple[Any, ...], operations: list[BoundSymbol]) -> BoundSymbol:
    parts = [part for op in operations for part in op.subsymbols]
    return BoundSymbol(sym, args, {}, [op.output for op in operations], parts)


def _updates(operations: list[BoundSymbol]) -> Iterator[tuple[Any, tuple[int, int]]]:
    """Yield the positions of the sum and the copy of each counter, with what a joined call has in common."""
    users: dict[str, list[int]] = {}
    made: set[str] = set()
    for i, op in enumerate(operations):
        if op.sym is prims.unpack_trivial:
            continue
        if written_arguments(op) is None:
            return
        made.update(op.out_names)
        for name in {*op.arg_names}:
            users.setdefault(name, []).append(i)
    for i, op in enumerate(operations):
        if not _is_sum(op) or op.args[0].name in made:
            continue
        counter, value = op.args[0].name, op.output.name
        written = [j for j in users.get(value, ()) if not _reads_number(operations[j])]
        key = op.output.dtype, type(op.args[1]), repr(op.args[1]), bool(op.kwargs)
        if op.kwargs and not written and users[counter] == [i]:
            yield key, (i, i)
        elif not op.kwargs and len(written) == 1 and users[counter] == [i, *written]:
            copy = operations[written[0]]
            if is_copy(copy) and copy.arg_names == (value, counter) and users.keys().isdisjoint(copy.out_names):
                yield key, (i, written[0])


def _reads_number(op: BoundSymbol) -> bool:
    return [part.sym for part in innermost(op)] == [prims.item]


def _is_sum(op: BoundSymbol) -> bool:
    """Check whether an operation adds a number to a tensor of one element on the CPU, maybe in place."""
    if op.sym.executor is not ex or [part.sym for part in innermost(op)] != [prims.add]:
        return False
    if op.kwargs and (op.kwargs.keys() != {"out"} or op.kwargs["out"].name != op.arg_names[0]):
        return False
    counter, number = op.args
    if not isinstance(counter, TensorProxy) or type(number) not in (int, float):
        return False
    return counter.ndim == 0 and counter.device.type == "cpu" and counter.dtype is op.output.dtype
