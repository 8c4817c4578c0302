# SPDX-License-Identifier: Apache-2.0
"""Group updates of tensors: the same pointwise operations on many tensors, e.g. on all parameters of an optimizer.

An update is a set of pointwise operations on tensors of one shape, whose results are only copied to inputs or returned.
Updates that differ only in shapes and numbers become one operation, which `multi_tensor` compiles to one kernel.

Contract: the trace computes the same results. A group takes the place of its last operation, or that of the first copy
if it reads little memory until then. Operations that may fail are before the copies, so that the group can write to the
tensors that its results are copied to. Nothing between its first operation and this place reads its results or writes
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch

from thunder import prims
from thunder.extend import BoundSymbol, NumberProxy, OpTags, SymbolicNumber, TensorProxy, Trace, bytes_of, construct
from thunder.toolkit.fusion import rounded_results
from thunder_ex_triton.fusion.layout import declared, dense, layouts
from thunder_ex_triton.fusion.op_table import POINTWISE
from thunder_ex_triton.fusion.sizes import Size

_LITTLE = 1 << 20  # bytes that may stay allocated until the copies
_WRITING = frozenset({OpTags.IN_PLACE_OP, OpTags.SIDE_EFFECT, OpTags.OPAQUE_OP})

__all__ = ["Number", "Update", "find_updates", "with_groups", "with_numbers"]


class Number(Size):
    """A number that the host computes before each launch."""

    __slots__ = ()

    def __init__(self, index: int, number: Any):
        self.table, self.made_of = None, None  # type: ignore[assignment]
        self.index, self.number, self.hint = index, number, 0.5


class Update(NamedTuple):
    """An update of tensors of one shape."""

    operations: list[BoundSymbol]  # of the trace
    primitives: list[BoundSymbol]  # with `Number`s instead of numbers of the trace
    inputs: list[TensorProxy]
    numbers: list[Any]
    outputs: list[TensorProxy]
    rounded: frozenset[str]  # the results in half precision that are rounded
    key: Any  # equal for updates that differ only in shapes and in numbers of the trace
    first: int  # the positions of the first and the last operation in the trace
    last: int
    read: int  # the position of the first reader

    def is_whole(self, p: TensorProxy) -> bool:
        """Check whether a tensor of the update has an element for each element of the results, and is no number."""
        return p.ndim == self.outputs[0].ndim

    def strides_of_results(self, given: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
        """Return the strides that the results have in eager mode, for inputs of any strides."""
        found = layouts(
            self.primitives, {p.name: x.stride() for p, x in zip(self.inputs, given)}, declared(self.operations)
        )
        return [dense(p.shape, found[p.name]) for p in self.outputs]


def with_groups(
    trace: Trace, unfit: Callable[[BoundSymbol], str | None], make: Callable[..., list[BoundSymbol]]
) -> Trace:
    """Return the trace with groups of updates as the operations that `make` returns for a list of updates."""
    groups: dict[Any, list[Update]] = {}
    for update in find_updates(trace, unfit):
        groups.setdefault(update.key, []).append(update)
    effects = [i for i, op in enumerate(trace.bound_symbols) if op.has_effect and _writes(op)]
    made = {name for op in trace.bound_symbols if not op.sym.is_structural for name in op.out_names}
    gone: set[int] = set()
    placed: dict[int, list[BoundSymbol]] = {}
    for updates in groups.values():
        there = _in_one_place(updates, effects)
        if len(there) > 1:  # a single one may be part of a larger kernel
            gone |= {id(op) for update in there for op in update.operations}
            placed.setdefault(_place(there, effects, made), []).extend(make(there))
    if not placed:
        return trace
    with construct(trace, "Multi-tensor updates") as out:
        for i, op in enumerate(trace.bound_symbols):
            if id(op) not in gone:
                out.record(op)
            if i in placed:
                out.bound_symbols += placed[i]
    return out


def _writes(op: BoundSymbol) -> bool:
    """Check whether an operation may write memory that exists."""
    return not _WRITING.isdisjoint(op.sym.tags) or any(map(_writes, op.subsymbols))


def _place(updates: Sequence[Update], effects: Sequence[int], made: Collection[str]) -> int:
    """Return the position behind which updates are computed."""
    place = max(update.last for update in updates)
    late = min([i for i in effects if i > place], default=place + 1) - 1
    read = {p.name: p for update in updates for p in update.inputs if p.name in made}
    if sum(map(bytes_of, read.values())) > _LITTLE or any(update.read <= late for update in updates):
        return place
    return late


def _in_one_place(updates: list[Update], effects: Sequence[int]) -> list[Update]:
    """Return the updates that may move to the place of the last one."""
    while updates:
        place = max(update.last for update in updates)
        before = max((i for i in effects if i < place), default=-1)
        fitting = [update for update in updates if update.read > place and update.first > before]
        if len(fitting) == len(updates):
            break
        updates = fitting
    return updates


def find_updates(trace: Trace, unfit: Callable[[BoundSymbol], str | None]) -> list[Update]:
    """Return the updates of a trace, of which each copies at least one result to memory that exists."""
    readers: dict[str, list[int]] = {}
    for i, op in enumerate(trace.bound_symbols):
        for name in op.arg_names:
            readers.setdefault(name, []).append(i)
    copies = {i for i, op in enumerate(trace.bound_symbols) if _is_copy(op)}
    ends = copies | {i for i, op in enumerate(trace.bound_symbols) if op.sym.is_return}
    updates: list[Update | None] = []
    for single in (False, True):  # separately: a number that all parameters read does not connect their updates
        parts: dict[int, list[BoundSymbol]] = {}
        for i in range(len(trace.bound_symbols) - 1, -1, -1):
            op = trace.bound_symbols[i]
            found = [j for name in op.out_names for j in readers.get(name, ())]
            if found and i not in ends and all(j in parts or j in ends for j in found):
                primitives = _pointwise(op, unfit, single)
                if primitives is not None:
                    parts[i] = primitives
        updates += [_update(trace, members, parts, readers) for members in _connected(trace, parts)]
    return [u for u in updates if u is not None and any(j in copies for p in u.outputs for j in readers[p.name])]


def _is_copy(op: BoundSymbol) -> bool:
    return op.sym is prims.copy_ or (len(op.subsymbols) == 1 and op.subsymbols[0].sym is prims.copy_)


def _pointwise(op: BoundSymbol, unfit: Callable[[BoundSymbol], str | None], single: bool) -> list[BoundSymbol] | None:
    """Return the primitives of an operation, or None if one of them is not pointwise on tensors of one shape.

    The shape has no dimensions if the tensors are `single` elements.
    """
    if op.sym.executor is not None or op.has_effect or OpTags.VIEW_OP in op.sym.tags:
        return None
    if not op.sym.is_prim:
        parts = [_pointwise(sub, unfit, single) for sub in op.subsymbols]
        return None if not parts or None in parts else [p for part in parts if part for p in part]
    if op.sym.id not in POINTWISE and op.sym not in (prims.full, prims.broadcast_in_dim):
        return None
    if not isinstance(op.output, TensorProxy) or (op.output.ndim == 0) is not single:
        return None
    shape = op.output.shape
    if any(type(n) is not int for n in shape):
        return None
    scalar = op.sym is prims.broadcast_in_dim
    if any(p.shape != (() if scalar else shape) for p in op.flat_args if isinstance(p, TensorProxy)):
        return None
    if any(isinstance(a, (NumberProxy, SymbolicNumber)) and not _is_number(a) for a in op.args):
        return None  # a whole number of the program, which the kernel would round to a float
    return [op] if unfit(with_numbers(op)) is None else None


def with_numbers(op: BoundSymbol) -> BoundSymbol:
    """Return an operation with `Number`s instead of data-dependent floats; the operation itself if it has none."""
    if not any(_is_unknown(p) for p in op.flat_args):
        return op
    args = [Number(0, a) if _is_number(a) else a for a in op.args]
    return op.replace(args=tuple(args))


def _is_unknown(p: Any) -> bool:
    return isinstance(p, NumberProxy) and (p.symbol is None or p.symbol.hint is None)


def _is_number(a: Any) -> bool:
    """Check whether an argument is a float that is not a constant."""
    if isinstance(a, NumberProxy):
        return a.python_type is float
    return isinstance(a, SymbolicNumber) and isinstance(a, float)


def _connected(trace: Trace, parts: dict[int, list[BoundSymbol]]) -> list[list[int]]:
    """Return the positions of operations, grouped by whether they read each other's results."""
    made = {name: i for i in parts for name in trace.bound_symbols[i].out_names}
    group = {i: i for i in parts}

    def root(i: int) -> int:
        while group[i] != i:
            group[i] = i = group[group[i]]
        return i

    for i in parts:
        for name in trace.bound_symbols[i].arg_names:
            if name in made:
                group[root(i)] = root(made[name])
    found: dict[int, list[int]] = {}
    for i in sorted(parts):
        found.setdefault(root(i), []).append(i)
    return list(found.values())


def _update(
    trace: Trace, members: list[int], parts: dict[int, list[BoundSymbol]], readers: dict[str, list[int]]
) -> Update | None:
    operations = [trace.bound_symbols[i] for i in members]
    places: dict[str, int] = {}  # numbers of the tensors in the key
    tensors: dict[str, TensorProxy] = {}
    numbers: list[Any] = []
    primitives, key = [], []
    shape = next(tuple(p.shape) for p in operations[0].flat_outs if isinstance(p, TensorProxy))
    shapes = {shape}
    made: set[str] = set()

    def token(a: Any) -> Any:
        if isinstance(a, TensorProxy):
            if a.ndim:
                shapes.add(tuple(a.shape))
            tensors.setdefault(a.name, a)
            return "t", places.setdefault(a.name, len(places)), a.dtype, a.ndim == len(shape)
        if isinstance(a, Number):
            return "n", a.index
        return type(a), repr(a)

    def numbered(a: Any) -> Any:
        if not _is_number(a):
            return a
        text = str(a)
        found = next((i for i, n in enumerate(numbers) if str(n) == text), len(numbers))
        if found == len(numbers):
            numbers.append(a)
        return Number(found, a)

    for i in members:
        for op in parts[i]:
            args = tuple(map(numbered, op.args))
            primitives.append(op.replace(args=args))
            key.append((op.sym.id, *map(token, args), token(op.output)))
            made.update(op.out_names)
    # A primitive of zeros_like(x) does not read x, whose strides are those of the result.
    for p in (p for op in operations for p in op.tensors() if p.name not in made):
        token(p)
    if len(shapes) != 1:
        return None
    inside = set(members)
    outputs = [tensors[n] for n in places if n in made and not inside.issuperset(readers.get(n, inside))]
    inputs = [p for n, p in tensors.items() if n not in made]
    if not outputs or not inputs:
        return None
    kinds = [places[p.name] for p in (*inputs, *outputs)]
    rounded = rounded_results(operations, primitives)  # `p.add(g, alpha=2)` and `p + g * 2` have the same primitives
    whole = outputs[0].device, tuple(key), tuple(kinds), tuple(sorted(places[name] for name in rounded))
    first_reader = min(j for p in outputs for j in readers[p.name] if j not in inside)
    span = members[0], members[-1]
    return Update(operations, primitives, inputs, numbers, outputs, rounded, whole, *span, first_reader)
