# SPDX-License-Identifier: Apache-2.0
"""Join calls for lists of tensors (`foreach.py`): a run of calls of one operation is one call for longer lists.

The capture records a call for each tensor, so that passes drop, differentiate and update each tensor on its own. Behind
these passes, this one joins the calls again, so that all tensors are one kernel, as in eager mode.

Contract: the input is a claimed trace. A run has one operation, equal arguments except lists, and tensors of one dtype
and device. No call of a run reads a result of another one, or memory that another one writes to, and no two calls write
to the same memory (`passes/operation_memory.py`). The order within a run has therefore no effect. Values, written
memory and the order of all other operations are unchanged. The time is linear in the length of the trace.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from thunder.core.proxies import TensorProxy
from thunder.core.structures import argument_key
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace, construct
from thunder.executors.torchex.foreach import is_foreach, updates_foreach
from thunder.passes.operation_memory import SharedMemory

__all__ = ["join_foreach"]


def join_foreach(trace: Trace) -> Trace:
    """Return the trace with runs of calls for lists joined, or the trace itself if there are none."""
    operations = trace.bound_symbols
    listed = [is_foreach(op) or updates_foreach(op) for op in operations]
    if not any(one and other for one, other in pairwise(listed)):
        return trace
    memory = SharedMemory(operations)
    runs: list[_Run] = []
    for op, is_it in zip(operations, listed):
        if not (is_it and runs and runs[-1].take(op)):
            runs.append(_Run(op, memory, joinable=is_it))
    if len(runs) == len(operations):
        return trace
    with construct(trace, "Join Operations on Lists") as out:
        out.bound_symbols[:] = [run.joined() for run in runs]
    return out


class _Run:
    """Operations that one call can compute. `read` and `written` are groups of memory."""

    def __init__(self, op: BoundSymbol, memory: SharedMemory, *, joinable: bool):
        self.operations = [op]
        self.memory = memory
        self.results = {*op.out_names}
        self.key: Any = None
        if joinable:
            self.key = _key(op)
            self.read, self.written = self._groups(op)

    def _groups(self, op: BoundSymbol) -> tuple[set[str], set[str]]:
        written = [x.name for x in op.args[0]] if updates_foreach(op) else ()
        return {self.memory.group(name) for name in op.arg_names}, {self.memory.group(name) for name in written}

    def take(self, op: BoundSymbol) -> bool:
        """Add an operation to the run, if the call for all of them computes the same."""
        if self.key is None or self.key != _key(op) or not self.results.isdisjoint(op.arg_names):
            return False
        read, written = self._groups(op)
        if not self.written.isdisjoint(read) or not self.read.isdisjoint(written):  # what is written is read, too
            return False
        self.read |= read
        self.written |= written
        self.results.update(op.out_names)
        self.operations.append(op)
        return True

    def joined(self) -> BoundSymbol:
        """Return the call for all operations of the run."""
        first = self.operations[0]
        if len(self.operations) == 1:
            return first
        args = [_concatenated(values) for values in zip(*[op.args for op in self.operations])]
        return first.replace(
            args=tuple(args),
            kwargs={k: _concatenated([op.kwargs[k] for op in self.operations]) for k in first.kwargs},
            output=[x for op in self.operations for x in op.output],
            subsymbols=[part for op in self.operations for part in op.subsymbols],
        )


def _key(op: BoundSymbol) -> Any:
    """Return what the operations of a run have in common."""
    tensor = next(x for xs in op.args if isinstance(xs, list) for x in xs if isinstance(x, TensorProxy))
    given = [_kind(x) for x in op.args], {k: _kind(x) for k, x in op.kwargs.items()}
    return op.sym, tensor.dtype, tensor.device, given


def _kind(x: Any) -> Any:
    return ("list", isinstance(x[0], TensorProxy)) if isinstance(x, list) else argument_key(x)


def _concatenated(values: Any) -> Any:
    return [x for xs in values for x in xs] if isinstance(values[0], list) else values[0]
