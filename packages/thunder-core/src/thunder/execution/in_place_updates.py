# SPDX-License-Identifier: Apache-2.0
"""In-place updates: write new values of inputs directly to the inputs' memory, as early as possible.

A traced program computes new values, e.g. of parameters and of an optimizer's state, and copies them to the inputs at
its end. This pass moves each copy up to right behind the last reader of the old value. If the operation that computes
the new value can write to the old value's memory then, the copy is dropped. Intermediate values of an update move to
this memory, too (`p.mul_(…)`, `p.addcdiv_(…)`), and other intermediate values reuse the memory of an operand that
nothing reads afterwards.

An update of a part of a tensor (`x[2:] = y`) is done in place, too, if nothing reads the old tensor afterwards, even in
a program that writes no input.

Contract: the input is a claimed trace, without `del`, whose inputs do not overlap in memory if they are written
(`runtime.guards.check_distinct`). Results and written memory are the same to the bit, and no operation is added to a
program that writes no input. In detail:

- Memory. The memory of a value is read by an operation if an argument may share it. Whether it may is what the executor
  says (`Executor.memory`); without an answer, results share the memory of all arguments, and arguments may be kept. An
  operation writes to memory only if no later operation reads what was there. Values that are returned, or that an
  operation may keep, do not move to other memory.
- Layout. A value moves to memory of its own shape, dtype, device and strides only. The strides of inputs are known
  where the prologue checks them (`info["strides"]`), and those of results if the executor says them.
- Failures. No write moves to or above an operation that may end the run: a decision, a check, a random draw, an opaque
  operation, an operation that may fail because of values (`passes/postponing.py`), or arithmetic on numbers. Numbers
  that only need small tensors, e.g. bias corrections of an optimizer's step count, are therefore computed before
  the first write. A call that leaves its path or raises such an error has then written nothing, and runs again on
  another path or eagerly. Only errors that depend on no value (memory that is exhausted, an interrupt, a lost device)
  can occur between the writes. They leave a prefix of the updates, like eager mode, but in the order of the program
  here, and nothing runs a second time (`frontend/failures.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from thunder.core import prims
from thunder.core.errors import check
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.state import tracectx
from thunder.core.strides import dense_strides
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.symint.numbers import SymbolicNumber
from thunder.core.trace import Trace, construct
from thunder.extend.memory import ResultMemory
from thunder.passes.postponing import innermost, is_copy, may_fail

__all__ = ["in_place_updates"]

_PARTS = frozenset({prims.slice_scatter, prims.index_put, prims.index_add, prims.scatter, prims.scatter_add})
_NUMBERS = frozenset({prims.item, prims.items})
# A chain of operations of unknown memory would otherwise have the memory of all its values in each of them. Beyond this
# number, the memory counts as one.
_MOST_SHARED = 100
_ONE_MEMORY = "*"


def in_place_updates(trace: Trace) -> Trace:
    """Return the trace with updates of inputs in place, or the trace itself if there is nothing to do."""
    operations = trace.bound_symbols
    copies = any(map(is_copy, operations))
    if (not copies and not any(map(_updates_part, operations))) or "stages" in trace.info:
        return trace
    if any(_writes(op) for op in operations if not is_copy(op)):
        return trace
    with construct(trace, "In-place Updates") as out:
        # Without writes to inputs, only intermediate values change, which a failed run discards.
        operations, first, places = _numbers_first(trace, out) if copies else (operations, 0, {})
        out.bound_symbols[:] = _Updates(trace, operations, first, places, parts_only=not copies).run()
    return out


def _updates_part(op: BoundSymbol) -> bool:
    """Check whether an operation computes a tensor that differs from its operand in a part."""
    return any(part.sym in _PARTS for part in innermost(op))


def _writes(op: BoundSymbol) -> bool:
    return op.has_effect and any(OpTags.IN_PLACE_OP in part.sym.tags for part in (op, *innermost(op)))


def _computes_numbers(op: BoundSymbol) -> bool:
    """Check whether arguments of an operation are computed when it runs."""
    return next(_expressions((op.args, op.kwargs)), None) is not None


def _expressions(x: Any) -> Iterator[SymbolicNumber]:
    """Yield the numbers in arguments that are computed when the operation runs."""
    if isinstance(x, SymbolicNumber):
        if [p.name for p in x.leaves] != [x.text()]:
            yield x
    elif isinstance(x, (tuple, list)):
        for item in x:
            yield from _expressions(item)
    elif isinstance(x, dict):
        yield from _expressions((*x.values(),))
    elif isinstance(x, slice):
        yield from _expressions((x.start, x.stop, x.step))


def _replaced(x: Any, numbers: Mapping[str, NumberProxy]) -> Any:
    """Return arguments in which values of the program replace the expressions that they are the values of."""
    if isinstance(x, SymbolicNumber):
        return numbers.get(x.text(), x)
    if isinstance(x, (tuple, list)):
        items = [_replaced(item, numbers) for item in x]
        return items if isinstance(x, list) else tuple(items)
    if isinstance(x, dict):
        return {key: _replaced(item, numbers) for key, item in x.items()}
    if isinstance(x, slice):
        return slice(*[_replaced(item, numbers) for item in (x.start, x.stop, x.step)])
    return x


def _numbers_first(trace: Trace, out: Trace) -> tuple[list[BoundSymbol], int, dict[str, int]]:
    """Return the operations, the position from which on none may fail, and places of values.

    Arithmetic on numbers that depend on small tensors only moves before this position. The places of values that move
    are the positions of the operations that followed.
    """
    operations = trace.bound_symbols
    last = max((i for i, op in enumerate(operations) if may_fail(op)), default=-1)
    made = {name: i for i, op in enumerate(operations) for name in op.out_names}
    early: set[int] = set()
    for i in range(last + 1, len(operations)):
        op = operations[i]
        number = op.sym is prims.number
        if not number and not _computes_numbers(op):
            continue
        leaves = [p.name for x in _expressions((op.args, op.kwargs)) for p in x.leaves]
        needed = _needed(operations, made, op.arg_names if number else leaves, last)
        if needed is None:
            last, early = i, set()
        else:
            early |= needed | ({i} if number else set())
    numbers: dict[str, NumberProxy] = {}
    places: dict[str, int] = {}
    before, after = operations[: last + 1], list[BoundSymbol]()
    with tracectx(out):
        for i in range(last + 1, len(operations)):
            op = operations[i]
            if i not in early:
                with out.scope() as recorded:
                    for x in _expressions((op.args, op.kwargs)):
                        if x.text() not in numbers:
                            numbers[x.text()] = prims.number(x)
                before += recorded
                if _computes_numbers(op):
                    op = op.replace(args=_replaced(op.args, numbers), kwargs=_replaced(op.kwargs, numbers))
            if i in early:
                before.append(op)
                places.update(dict.fromkeys(op.out_names, len(after)))
            else:
                after.append(op)
    return [*before, *after], len(before), {name: len(before) + place for name, place in places.items()}


def _needed(operations: list[BoundSymbol], made: Mapping[str, int], names: Any, last: int) -> set[int] | None:
    """Return the operations after `last` that values need; None if one of them writes or has large tensors."""
    needed: set[int] = set()
    stack = [made[name] for name in names if made.get(name, -1) > last]
    while stack:
        i = stack.pop()
        if i in needed:
            continue
        op = operations[i]
        if is_copy(op) or not all(map(_is_small, (*op.flat_args, *op.flat_outs))):
            return None
        needed.add(i)
        stack += [made[name] for name in op.arg_names if made.get(name, -1) > last]
    return needed


def _is_small(p: Any) -> bool:
    return not isinstance(p, TensorProxy) or all(type(n) is int and n == 1 for n in p.shape)


# -- memory -----------------------------------------------------------------------------------------------------------
class _Access(NamedTuple):
    """What an operation reads and may write. It is computed once: an optimizer's step may have thousands of tensors."""

    names: frozenset[str]  # of its arguments
    viewed: frozenset[str]  # memory that is read through arguments of other names
    dying: Mapping[Any, Sequence[str]]  # the arguments that nothing reads afterwards, by strides, dtype and device
    may_write: Callable[[str, TensorProxy, frozenset[str]], bool]


class _Updates:
    """The state of the pass. A position is twice an operation's index; a copy that moves behind it is at the next."""

    def __init__(
        self, trace: Trace, operations: list[BoundSymbol], first: int, places: Mapping[str, int], *, parts_only: bool
    ):
        self.operations = operations
        self.parts_only = parts_only
        self.places = places
        self.first = first  # the first operation that may write
        self.made: dict[str, int] = {}
        self.values: dict[str, TensorProxy] = {p.name: p for p in trace.args if isinstance(p, TensorProxy)}
        # The names of all memory that a value may be in. An input is in memory of its own.
        self.memory: dict[str, frozenset[str]] = {name: frozenset({name}) for name in self.values}
        known: Mapping[str, Sequence[int]] = trace.info.get("strides", {})
        given = {n: (p.shape, known.get(n, ())) for n, p in self.values.items()}
        self.strides = {n: dense_strides(*how) for n, how in given.items() if len(how[0]) == len(how[1])}
        self.last_read: dict[str, int] = {}  # by memory
        self.kept: set[str] = set()  # memory that may be read after the program, or outside of it
        self.targets: dict[int, dict[str, tuple[TensorProxy, frozenset[str]]]] = {}  # results in other memory
        self.access: dict[int, _Access] = {}
        self.moved: set[str] = set()  # values that are in the memory of an input
        self.merged: set[str] = set()  # memory that counts as one
        for i, op in enumerate(operations):
            self._add(i, op)
        if self.merged:
            one = frozenset({_ONE_MEMORY})
            for name, memory in self.memory.items():
                if not self.merged.isdisjoint(memory):
                    self.memory[name] = memory - self.merged | one

    def _add(self, i: int, op: BoundSymbol) -> None:
        executor = op.sym.executor
        shared: Any = None
        if is_copy(op):
            shared = op.arg_names[1:2]
        elif op.sym.is_structural:
            shared = ()
        elif executor is not None:
            shared = executor.memory.may_share(op)
            self.strides.update(executor.memory.strides(op, self.strides))
        tensors = [p.name for p in op.flat_args if isinstance(p, TensorProxy)]
        for name in tensors:
            self.last_read.update(dict.fromkeys(self.memory[name], i))
            if shared is None or op.sym.is_return:
                self.kept |= self.memory[name]
        new = op.out_names
        self.made.update(dict.fromkeys(new, i))
        memory: frozenset[str] = frozenset()
        for name in tensors if shared is None else shared:
            memory |= self.memory[name]
        if shared is None:  # results may share memory, which may be kept
            memory |= {*new[:1]}
            self.kept |= memory
        if len(memory) > _MOST_SHARED:
            self.merged |= memory
            memory = frozenset({_ONE_MEMORY})
        for p in op.flat_outs:
            if isinstance(p, TensorProxy) and p.name in new:
                self.values[p.name] = p
                self.memory[p.name] = memory or frozenset({p.name})

    def run(self) -> list[BoundSymbol]:
        """Return the operations with updates in place."""
        copies = [i for i, op in enumerate(self.operations) if is_copy(op)]
        targets = Counter(self.operations[i].arg_names[1] for i in copies)
        read: dict[str, int] = {}  # the position of the last operation so far that reads memory
        written: dict[str, int] = {}
        behind: dict[int, list[BoundSymbol]] = {}  # the copies that move behind an operation
        dropped: dict[str, Any] = {}  # the results of copies that are dropped
        gone: set[int] = set()
        for i, op in enumerate(self.operations):
            if not is_copy(op):
                for name in op.arg_names:
                    read.update(dict.fromkeys(self.memory.get(name, ()), 2 * i))
                continue
            x, target = op.args[0], op.args[1]
            if targets[target.name] == 1 and self.memory[target.name] == {target.name}:
                free = max(read.get(target.name, -1), 2 * self.first - 1)
                if self._moves(x, target, free):
                    gone.add(i)
                    dropped[op.output.name] = target
                    written[target.name] = 2 * self.made[x.name]
                    continue
            sources = self.memory[x.name]
            at = [read.get(m, -1) for m in self.memory[target.name]]
            at += [written.get(m, -1) for m in (*sources, *self.memory[target.name])]
            made = 2 * self.made.get(x.name, -1)
            earliest = max(2 * self.first - 1, made, 2 * self.places.get(x.name, 0) - 1, *at)
            if earliest < 2 * i - 1:
                gone.add(i)
                behind.setdefault(earliest // 2, []).append(op)
                position = earliest // 2 * 2 + 1
            else:
                position = 2 * i
            for m in sources:
                read[m] = max(read.get(m, -1), position)
            written.update(dict.fromkeys(self.memory[target.name], position))
        self._reuse_operands()
        lines = []
        for i, op in enumerate(self.operations):
            if i not in gone:
                op = self._changed(i, op)
                lines.append(op.substitute(dropped) if dropped else op)
            lines += behind.get(i, ())
        return lines

    def _changed(self, i: int, op: BoundSymbol) -> BoundSymbol:
        """Return an operation, changed to write its results to their targets."""
        if not self.targets.get(i):
            return op
        executor: Any = op.sym.executor
        new = executor.memory.written_to(op, self.targets[i])
        check(new is not None, lambda: f"{executor} does not write results of {op.sym.name}, but each of them alone")
        return new

    def _moves(self, x: TensorProxy, target: TensorProxy, free: int) -> bool:
        """Move a value to the memory of an input whose old value is last read at position `free`, if possible.

        Values from which it is computed move there, too: those that must, so that the value can, and then those that
        can, one operand of each operation.
        """
        if not self._may_move(x.name, target, free):
            return False
        name, i = x.name, self.made[x.name]
        needed: list[tuple[int, str, Any]] = []
        while not self._write(i, name, target, self._whole(i, target)):  # e.g. an update of a part of its operand
            before = self._target(i, name)
            operand = next((a for a in self._movable(i, target, free) if self._write_over(i, name, target, a)), None)
            if operand is None:
                for i, name, before in needed:
                    self._restore(i, name, before)
                return False
            needed.append((i, name, before))
            name, i = operand, self.made[operand]
        self.moved.update([name, *[other for _, other, _ in needed]])
        found = True
        while found:
            found = False
            for operand in self._movable(i, target, free):
                before, j = self._target(i, name), self.made[operand]
                if not self._write_over(i, name, target, operand):
                    continue
                if self._write(j, operand, target, self._whole(j, target)):
                    self.moved.add(operand)
                    name, i, found = operand, j, True
                    break
                self._restore(i, name, before)
        return True

    def _movable(self, i: int, target: TensorProxy, free: int) -> list[str]:
        """Return the operands of an operation that can be in the memory of `target`, as far as others are concerned."""
        dying = self._access(i).dying.get(self._layout(target.name), ())
        return [name for name in dying if self._may_move(name, target, free)]

    def _write_over(self, i: int, name: str, target: TensorProxy, operand: str) -> bool:
        """Let an operation write a result to the memory of `target`, in which one of its operands is."""
        return self._write(i, name, target, self._whole(i, target) | {operand})

    def _target(self, i: int, name: str) -> Any:
        return self.targets.get(i, {}).get(name)

    def _restore(self, i: int, name: str, target: Any) -> None:
        """Let a result be where it was."""
        if target is None:
            self.targets[i].pop(name)
        else:
            self.targets[i][name] = target

    def _whole(self, i: int, target: TensorProxy) -> frozenset[str]:
        """Return the arguments of an operation that are the target itself."""
        return self._access(i).names & {target.name}

    def _access(self, i: int) -> _Access:
        found = self.access.get(i)
        if found is None:
            op = self.operations[i]
            names = dict.fromkeys(op.arg_names)
            viewed = {m for name in names for m in self.memory.get(name, ()) if m != name}
            dying: dict[Any, list[str]] = {}
            for name in names:
                if name not in viewed and self._dies_at(name, i):
                    dying.setdefault(self._layout(name), []).append(name)
            may_write = (op.sym.executor.memory if op.sym.executor is not None else ResultMemory()).may_write(op)
            found = self.access[i] = _Access(frozenset(names), frozenset(viewed), dying, may_write)
        return found

    def _layout(self, name: str) -> tuple[Any, ...]:
        """Return what values have in common that can be in the same memory, besides their shapes."""
        p = self.values[name]
        return self.strides.get(name), p.dtype, p.device

    def _may_move(self, name: str, target: TensorProxy, free: int) -> bool:
        """Check whether a value can be in the memory of `target` from its computation on."""
        i = self.made.get(name, -1)
        if i < self.first or 2 * i < free or name in self.moved or name in self.kept:
            return False
        if self.memory[name] != {name} or not self._same_layout(name, target):
            return False
        if 2 * i == free:  # the operation itself reads the old value: only as a whole, not through views
            return target.name not in self._access(i).viewed
        return True

    def _same_layout(self, name: str, other: TensorProxy) -> bool:
        p, strides = self.values[name], self.strides.get(name)
        return (
            strides is not None
            and strides == self.strides.get(other.name)
            and tuple(p.shape) == tuple(other.shape)
            and p.dtype is other.dtype
            and p.device is other.device
        )

    def _dies_at(self, name: str, i: int) -> bool:
        """Check whether an operation is the last one that reads a value, which is in memory of its own."""
        return self.memory.get(name) == {name} and self.last_read[name] == i

    def _write(self, i: int, name: str, target: TensorProxy, whole: frozenset[str]) -> bool:
        """Let an operation write a result to the memory of `target`, if its executor can."""
        if not self._access(i).may_write(name, target, whole):
            return False
        self.targets.setdefault(i, {})[name] = target, whole
        return True

    def _reuse_operands(self) -> None:
        """Write results to the memory of operands that nothing reads afterwards."""
        for i in range(self.first, len(self.operations)):
            op = self.operations[i]
            if self.targets.get(i) or is_copy(op) or (self.parts_only and not _updates_part(op)):
                continue
            taken: set[str] = set()
            for p in op.flat_outs:
                if p.name not in self.strides or self.memory.get(p.name) != {p.name}:
                    continue
                for name in self._access(i).dying.get(self._layout(p.name), ()):
                    old = self.values[name]
                    if name in taken or not self._is_temporary(name) or not self._same_layout(p.name, old):
                        continue
                    if self._write(i, p.name, old, frozenset({name})):
                        taken.add(name)
                        break

    def _is_temporary(self, name: str) -> bool:
        return name in self.made and name not in self.kept and name not in self.moved
