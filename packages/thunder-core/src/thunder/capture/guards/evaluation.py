# SPDX-License-Identifier: Apache-2.0
"""Evaluation: the values that a program computes in the call that is being traced.

Operations that lead to a value run on the call's real inputs, each at most once. Random operations run in the order of
the trace. The generators' states are put back after the trace, so that the compiled program draws the same numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from thunder.core import prims
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.symint.numbers import SymbolicNumber
from thunder.core.trace import Trace
from thunder.execution.claim import transform_for_execution
from thunder.extend import get_always_executors
from thunder.passes.checkpoint import Source, random_sources
from thunder.passes.postponing import innermost

if TYPE_CHECKING:
    from thunder.capture.base.substitutions import Substitutions
    from thunder.capture.tensors.tracer import Tracer

__all__ = ["Evaluation", "Program", "draws", "is_pure", "may_run_twice"]

_CHECKS = (prims.decide, prims.check_number)  # they raise errors, and have no other effect


class Program(NamedTuple):
    """A function that computes values of the trace, and the names of its arguments in the trace."""

    args: tuple[str, ...]
    run: Callable[..., Any]


def is_pure(op: BoundSymbol) -> bool:
    """Check whether an operation only computes its results."""
    return op.sym in (prims.item, prims.items, prims.size, prims.number) or not op.has_effect


def draws(op: BoundSymbol) -> bool:
    """Check whether an operation draws random numbers, and has no other effect."""
    if not op.has_effect:
        return False
    parts = [part for part in innermost(op) if not is_pure(part)]
    return any(OpTags.RANDOM_OP in part.sym.tags for part in parts) and all(
        OpTags.RANDOM_OP in part.sym.tags or part.sym in _CHECKS for part in parts
    )


def may_run_twice(op: BoundSymbol) -> bool:
    """Check whether an operation can run while tracing, too, and again if the call starts again."""
    if is_pure(op) or draws(op) or op.sym in _CHECKS:
        return True
    return bool(op.subsymbols) and all(map(may_run_twice, op.subsymbols))  # e.g. a part that makes decisions


class Evaluation:
    """The evaluated values of one trace."""

    def __init__(self, tracer: Tracer, substitutions: Substitutions):
        self._tracer = tracer
        self._substitutions = substitutions
        self._found: dict[str, Any] = {}  # by the names of the trace's values
        self._drawn: set[int] = set()  # the ids of the random operations that have run
        self._kept: dict[Source, torch.Tensor] = {}  # the states of generators from before the trace

    # -- the operations that compute a value --------------------------------------------------------------------------
    @property
    def operations(self) -> list[BoundSymbol]:
        """All recorded operations, in order."""
        return [op for scope in self._tracer.trace.scopes for op in scope]

    def leading_to(
        self,
        wanted: Sequence[str],
        accepts: Callable[[BoundSymbol], bool],
        accepts_input: Callable[[TensorProxy], bool],
    ) -> list[BoundSymbol] | None:
        """Return the operations that compute the values `wanted`; None if an operation or an input is not accepted."""
        tracer = self._tracer
        inputs, numbers = {x.proxy.name: x.proxy for x in tracer.inputs}, self._numbers()
        sizes = {} if tracer.symbolic is None else {size.leaf.name: size for size in tracer.symbolic.sizes}
        every = self.operations
        producers = {name: i for i, op in enumerate(every) for name in op.out_names}
        found: set[int] = set()
        first: dict[str, BoundSymbol] = {}
        stands: dict[str, tuple[float, BoundSymbol]] = {}  # the stand-ins of a transformed part, with their positions
        stack = [*wanted]
        while stack:
            name = stack.pop()
            if name in tracer.stand_ins:
                outer, batch_dim = tracer.stand_ins[name]
                if batch_dim is not None:
                    return None
                same = BoundSymbol(prims.alias, (outer,), {}, TensorProxy(like=outer, name=name))
                stands[name] = producers.get(outer.name, -1) + 0.5, same
                stack.append(outer.name)
            elif name in inputs:
                if not accepts_input(inputs[name]):
                    return None
            elif name in numbers:
                continue
            elif name in sizes:
                size = sizes[name]
                first[name] = BoundSymbol(prims.size, (inputs[size.tensor], size.dim), {}, size.leaf)
            elif name not in producers or not accepts(every[producers[name]]):
                return None
            elif producers[name] not in found:
                found.add(producers[name])
                stack += every[producers[name]].arg_names
        ordered = sorted([*stands.values(), *[(i, every[i]) for i in found]], key=operator.itemgetter(0))
        return [*first.values(), *[op for _, op in ordered]]

    def program(self, operations: Sequence[BoundSymbol], wanted: Sequence[Proxy]) -> Program:
        """Return the function that runs `operations` and returns the values `wanted`."""
        made = {name for op in operations for name in op.out_names}
        args = {p.name: p for op in operations for p in op.flat_args if p.name not in made}
        trace = Trace("evaluation")
        trace.names, trace._counters = set(self._tracer.trace.names), dict(self._tracer.trace._counters)
        trace.info["symbols"] = self._tracer.trace.info.get("symbols")
        with tracectx(trace):
            trace.args = [*args.values()]
            for p in trace.args:
                prims.unpack_trivial(p)
            trace.bound_symbols += operations
            prims.python_return(tuple(wanted))
        run = transform_for_execution(trace, get_always_executors())[-1].python_callable(decorators=True)
        return Program(tuple(args), run)

    def release(self) -> None:
        """Release the values, which may be large tensors."""
        self._found.clear()

    # -- running them -------------------------------------------------------------------------------------------------
    def run(self, operations: Sequence[BoundSymbol]) -> None:
        """Run those of `operations` that have not run yet, and keep their results."""
        rest = [op for op in operations if any(name not in self._found for name in op.out_names)]
        if not rest:
            return
        made = [p for op in rest for p in op.flat_outs]
        with self._tracer.recording():
            program = self.program(rest, made)
            given = {x.proxy.name: x.tensor for x in self._tracer.inputs} | self._numbers() | self._found
            found = program.run(*[given[name] for name in program.args])
        self._found.update((p.name, value) for p, value in zip(made, found))

    def value(self, name: str) -> Any:
        """Return an evaluated value."""
        return self._found[name]

    def leaf(self, leaf: NumberProxy) -> Any:
        """Return the value of a number. Raise `LookupError` if evaluating it would repeat an effect."""
        if leaf.value is not None:
            return leaf.value
        if leaf.name not in self._found:
            way = self._repeatable([leaf.name])
            drawing = self._drawing_before(way)
            if drawing:
                way = self._repeatable([leaf.name, *[name for op in drawing for name in op.out_names]])
                self._keep_states(drawing)
                self._drawn.update(map(id, drawing))
            self.run(way)
        return leaf.python_type(self._found[leaf.name])

    def number(self, x: Any) -> Any:
        """Return the value of a symbolic number. Raise `LookupError` if evaluating it would repeat an effect."""
        return x.substitute(self.leaf) if isinstance(x, SymbolicNumber) else x

    def is_random(self, leaves: Sequence[NumberProxy]) -> bool:
        """Check whether a number depends on random draws of the program."""
        way = self.leading_to([p.name for p in leaves], lambda op: True, lambda p: True)
        return any(map(draws, way or ()))

    def _repeatable(self, names: Sequence[str]) -> list[BoundSymbol]:
        way = self.leading_to(names, may_run_twice, lambda p: True)
        if way is None:
            raise LookupError(names[0])
        return way

    def _drawing_before(self, way: Sequence[BoundSymbol]) -> list[BoundSymbol]:
        """Return the random operations up to the last one in `way` that have not run yet."""
        wanted, every = {id(op) for op in way}, self.operations
        last = max((i for i, op in enumerate(every) if id(op) in wanted and draws(op)), default=-1)
        return [op for op in every[: last + 1] if draws(op) and id(op) not in self._drawn]

    def _keep_states(self, drawing: Sequence[BoundSymbol]) -> None:
        new = [source for source in random_sources(drawing) if source not in self._kept]
        with self._tracer.recording():
            for device, generator in new:
                state = self._kept[device, generator] = prims.state_of_generator(device, generator)
                self._substitutions.callback(prims.set_generator, state, device, generator)

    def _numbers(self) -> dict[str, Any]:
        """Return the values that numeric inputs have in this call, by name."""
        symbolic = self._tracer.symbolic
        return {} if symbolic is None else {number.leaf.name: number.value for number in symbolic.numbers}
