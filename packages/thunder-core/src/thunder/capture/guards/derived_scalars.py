# SPDX-License-Identifier: Apache-2.0
"""Derived scalars: numbers that a program computes only from integer and boolean inputs.

E.g. a mask input determines whether any row is masked, and a table of picture sizes determines the number of patches.
If a program needs such a number while it is traced (for a branch or the length of a loop), the program is traced a
second time. In the second trace, each needed number is computed from this call's inputs, and then treated as a symbolic
number with a hint, like the size of an input (`core/symint/symbols.py`). Assumptions about the number (e.g. that it is
not 0) become guards. The prologue computes the number from the new inputs and checks these guards before the program
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from thunder.core import prims
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.proxies import NumberProxy, Proxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.execution.claim import transform_for_execution
from thunder.extend import get_always_executors
from thunder.runtime.guards import GuardFailed

if TYPE_CHECKING:
    from thunder.capture.tensors.tracer import Tracer

__all__ = ["DerivedScalars", "Program"]


class Program(NamedTuple):
    """The function that computes some scalars, and its arguments by their names in the program's trace."""

    args: tuple[str, ...]
    run: Callable[..., Any]


def _is_pure(op: BoundSymbol) -> bool:
    return op.sym in (prims.item, prims.items, prims.size) or not op.has_effect


class DerivedScalars:
    """The derived scalars of one trace."""

    def __init__(self, tracer: Tracer):
        self._tracer = tracer
        self._found: dict[str, Any] = {}  # computed values by name
        self._ways: dict[str, list[BoundSymbol]] = {}  # the operations that compute each number, by its name

    def __contains__(self, name: str) -> bool:
        return name in self._ways

    def derives(self, name: str) -> bool:
        """Check whether a value of the program is computed only from integer and boolean inputs."""
        return not self._tracer.parts and self._leading_to(name) is not None

    def resolve(self, number: Any) -> None:
        """Compute an unbacked number's value for this call if it derives from inputs."""
        leaf: NumberProxy = number.proxy
        if number.hint is not None or leaf.python_type is complex or self._tracer.parts:
            return
        way = self._leading_to(leaf.name)
        if way is None:
            return
        rest = [op for op in way if any(name not in self._found for name in op.out_names)]
        if rest:
            made = [p for op in rest for p in op.flat_outs]
            with self._tracer.recording():
                program = self._program(rest, made)
                given = {x.proxy.name: x.tensor for x in self._tracer.inputs} | self._numbers() | self._found
                found = program.run(*[given[name] for name in program.args])
            self._found.update((p.name, value) for p, value in zip(made, found))
        self._ways[leaf.name] = way
        number.hint = leaf.value = leaf.python_type(self._found[leaf.name])
        for atom in number.symbols.atoms:
            if atom.proxy is leaf:
                atom.hint = number.hint

    def program(self, leaves: Sequence[NumberProxy]) -> Program:
        """Return the program that computes resolved numbers from the inputs."""
        operations: dict[int, BoundSymbol] = {}
        made: set[str] = set()
        for leaf in leaves:
            for op in self._ways[leaf.name]:
                if not made.issuperset(op.out_names):
                    operations[id(op)] = op
                    made.update(op.out_names)
        args, run = self._program([*operations.values()], leaves)

        def derived(*inputs: torch.Tensor) -> Any:
            try:
                return run(*inputs)
            except Exception as error:  # new values can make it fail; that is a cache miss, not an error
                raise GuardFailed(f"a scalar derived from inputs cannot be computed in this call ({error})") from error

        return Program(args, derived)

    def _numbers(self) -> dict[str, Any]:
        """Return the values that numeric inputs have in this call, by name."""
        symbolic = self._tracer.symbolic
        return {} if symbolic is None else {number.leaf.name: number.value for number in symbolic.numbers}

    def _leading_to(self, wanted: str) -> list[BoundSymbol] | None:
        """Return the operations that compute `wanted`, or None if they need more than integer and boolean inputs."""
        tracer = self._tracer
        inputs, numbers = {x.proxy.name: x.proxy for x in tracer.inputs}, self._numbers()
        sizes = {} if tracer.symbolic is None else {size.leaf.name: size for size in tracer.symbolic.sizes}
        every = [op for scope in tracer.trace.scopes for op in scope]
        producers = {name: i for i, op in enumerate(every) for name in op.out_names}
        found: set[int] = set()
        first: dict[str, BoundSymbol] = {}
        stack = [wanted]
        while stack:
            name = stack.pop()
            if name in inputs:
                if is_inexact_dtype(inputs[name].dtype):
                    return None
            elif name in numbers:
                continue
            elif name in sizes:
                size = sizes[name]
                first[name] = BoundSymbol(prims.size, (inputs[size.tensor], size.dim), {}, size.leaf)
            elif name not in producers or not _is_pure(every[producers[name]]):
                return None
            elif producers[name] not in found:
                found.add(producers[name])
                stack += every[producers[name]].arg_names
        return [*first.values(), *[every[i] for i in sorted(found)]]

    def _program(self, operations: Sequence[BoundSymbol], wanted: Sequence[Proxy]) -> Program:
        made = {name for op in operations for name in op.out_names}
        args = {p.name: p for op in operations for p in op.flat_args if p.name not in made}
        trace = Trace("derived")
        trace.names, trace._counters = set(self._tracer.trace.names), dict(self._tracer.trace._counters)
        trace.info["symbols"] = self._tracer.trace.info["symbols"]
        with tracectx(trace):
            trace.args = [*args.values()]
            for p in trace.args:
                prims.unpack_trivial(p)
            trace.bound_symbols += operations
            prims.python_return(tuple(wanted))
        run = transform_for_execution(trace, get_always_executors())[-1].python_callable(decorators=False)
        return Program(tuple(args), torch.no_grad()(run))
