# SPDX-License-Identifier: Apache-2.0
"""The prologue: a program that accepts the user's arguments, checks the guards, and returns the computation's inputs.

If the program has side effects, the prologue also returns their targets: the user's objects, found again at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from thunder.capture.base.fallback import ModuleFallback
from thunder.capture.base.messages import Message
from thunder.capture.base.predicates import is_tensor
from thunder.capture.base.sources import Argument, Size, Source
from thunder.capture.guards import guards
from thunder.capture.guards.guarded import Guarded
from thunder.capture.reads.guard_kinds import Guard
from thunder.capture.reads.read_recorder import ReadRecorder
from thunder.capture.tensors.tracer import Lifted, Tracer
from thunder.core import prims, pytree
from thunder.core.proxies import AnyProxy, DictProxy, NumberProxy, Proxy, TupleProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol
from thunder.core.symint.symbols import Symbols
from thunder.core.trace import Trace
from thunder.runtime.tensor_check import TensorCheck

__all__ = ["Arguments", "Prologue"]

# Names that the text of a prologue already uses.
_NAMES = {"args", "kwargs", "GuardFailed", "same_value", "same_contents", "current_device", "any_autocast"}


class Arguments:
    """The arguments of a call, flattened to leaves."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str]):
        try:
            self.leaves, self.structure = pytree.tree_flatten((args, kwargs))
        except RecursionError:
            raise ModuleFallback("an argument contains itself") from None
        self.count = len(args)
        self.flat = not kwargs and len(args) == len(self.leaves) and all(a is b for a, b in zip(args, self.leaves))
        self.names = _leaf_names(args, kwargs, names, len(self.leaves))
        self.sources = [Argument(i, name) for i, name in enumerate(self.names)]
        self.roots = Argument(-1, "args"), Argument(-2, "kwargs")

    def source_of(self, tensor: torch.Tensor) -> Source | None:
        """Return the source of a tensor among the arguments, or None."""
        return next((source for leaf, source in zip(self.leaves, self.sources) if leaf is tensor), None)

    def read(self, recorder: ReadRecorder) -> None:
        """Record every argument except tensors, which are recorded where the program uses them."""
        for leaf, source in zip(self.leaves, self.sources):
            if not is_tensor(leaf):
                recorder.value(source, leaf)


def _leaf_names(args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str], count: int) -> list[str]:
    out: list[str] = []

    def walk(x: Any, name: str) -> None:
        leaves = pytree.tree_leaves(x)
        if len(leaves) == 1 and leaves[0] is x:
            out.append(name)
        elif isinstance(x, dict):
            for k, v in x.items():
                walk(v, f"{name}_{k}" if str(k).isidentifier() else f"{name}_{len(out)}")
        elif isinstance(x, (tuple, list)):
            for i, v in enumerate(x):
                walk(v, f"{name}_{i}")
        else:
            out.extend(f"{name}_{i}" for i in range(len(leaves)))

    for i, a in enumerate(args):
        walk(a, names[i] if i < len(names) else f"args_{i}")
    for k, v in kwargs.items():
        walk(v, k)
    return out if len(out) == count else [f"a{i}" for i in range(count)]


class _Writer:
    """Writes the lines of a prologue. Each source is fetched once, by the first line that needs it."""

    def __init__(self, trace: Trace, recorded: Sequence[Guard]):
        self.trace = trace
        self._found: dict[Source, Any] = {}
        self._uses: dict[Source, int] = {}
        for guard in recorded:
            self._count(guard.source, 1 + (guard.condition().count("{0}") > 1))
            if isinstance(guard.operand, Source):
                self._count(guard.operand, 2)

    def _count(self, source: Source, n: int = 1) -> None:
        """Count the uses of a source: a source that is used only once needs no name."""
        seen = source in self._uses
        self._uses[source] = self._uses.get(source, 0) + n
        if not seen and source.parent is not None:
            self._count(source.parent)
            for operand in source.operands:
                self._count(operand, 2)

    def expect(self, sources: Iterable[Source]) -> None:
        """Count uses of sources that the prologue fetches for more than guards."""
        for source in sources:
            self._count(source, 2)

    def bind(self, source: Source, value: Any) -> None:
        """Set the value of a source."""
        self._found[source] = value

    def fetch(self, source: Source, name: str | None = None, *, inline: bool = False) -> Any:
        """Return the proxy or the object found at a source, and record the line that fetches it if needed."""
        found = self._found.get(source)
        if found is not None:
            return found
        if source.parent is None:
            found = source.find()
        else:
            parent = self.fetch(source.parent, inline=inline)
            if inline and self._uses.get(source, 0) <= 1 and not source.operands:
                return guards.Inline(parent, source)
            operands = [self.fetch(x) for x in source.operands]
            made = self.trace.add_name(name) if name else self.trace.make_name("v")
            line, found = guards.fetched(parent, source, made, operands)
            self.trace.record(line)
        self._found[source] = found
        return found

    def guard(self, guard: Guard) -> str:
        """Write the line of one guard, and return the first text of its failure message."""
        x = self.fetch(guard.source, inline=True)
        operand = self.fetch(guard.operand) if isinstance(guard.operand, Source) else guard.operand
        message = guard.message()
        self.refuse_if(guard.condition(), (x, operand), message, guard.helpers)
        return message.text

    def refuse_if(
        self,
        condition: str,
        operands: tuple[Any, ...],
        message: Message,
        helpers: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        """Write the line that raises `GuardFailed` if `condition` holds."""
        _refuse_if(self.trace, condition, operands, message, helpers)


def _refuse_if(
    trace: Trace,
    condition: str,
    operands: tuple[Any, ...],
    message: Message,
    helpers: Mapping[str, Callable[..., Any]] | None = None,
) -> None:
    trace.record(BoundSymbol(guards.guard, (condition, operands, message, helpers or {}), {}, None))


class Prologue:
    """The prologue of a trace, with these arguments and inputs; `targets` are the objects that its effects change.

    The constraints on symbolic numbers are added after compilation, because passes and executors may add constraints.
    For a `trusted` call the prologue does not check the inputs.
    """

    def __init__(
        self,
        arguments: Arguments,
        tracer: Tracer,
        recorder: ReadRecorder,
        written: Sequence[int],
        targets: Sequence[Source] | None,
        *,
        trusted: bool = False,
    ):
        self.trace = trace = Trace("prologue", signature="*args, **kwargs")
        trace.decorated = False
        self.call = TupleProxy((), name="args"), DictProxy({}, name="kwargs")
        trace.names |= _NAMES
        self.guarded = Guarded()
        self._trusted = trusted
        self._sizes = [] if tracer.symbolic is None else tracer.symbolic.sizes
        self._numbers = [] if tracer.symbolic is None else tracer.symbolic.numbers
        self._derived = tracer.derived_scalars
        # By the name of each symbolic number's leaf: its value in the prologue, and its name in messages.
        self._leaves: dict[str, tuple[Any, str]] = {}
        recorded = [] if trusted else recorder.guards
        different = [] if trusted else recorder.must_differ(targets or ())
        writer = _Writer(trace, recorded)
        for source, value in zip(arguments.roots, self.call):
            writer.bind(source, value)
        inputs = tracer.inputs
        writer.expect([recorder.tensors[id(x.tensor)][0] for x in inputs if id(x.tensor) in recorder.tensors])
        writer.expect(source for source, _ in recorder.tensors_read)
        writer.expect((*(targets or ()), *different, *[number.source for number in self._numbers]))
        with tracectx(trace):
            looked_at = self._bind(writer, arguments)
            for guard in recorded:
                self.guarded.add(writer.guard(guard), guard)
            if different:
                guards.check_different(tuple(writer.fetch(source) for source in different))
            _read_tensors(writer, recorder, inputs, looked_at, trusted)
            if looked_at.proxies and not trusted:
                self.guarded.tensors = looked_at.check(tracer)
                tensors = TupleProxy((), name=trace.add_name("tensors"))
                operands = self.guarded.tensors, tuple(looked_at.proxies)
                trace.record(BoundSymbol(guards.check_tensors, operands, {}, tensors))
            if len(written) > 0 and len(inputs) > 1 and not trusted:
                arrays = (True,) if recorder.arrays else ()
                guards.check_distinct(tuple(looked_at.found[id(x.tensor)] for x in inputs), tuple(written), *arrays)
            values = self._inputs(writer, inputs, looked_at)
            prims.python_return(
                values if targets is None else (values, tuple(writer.fetch(source) for source in targets))
            )
        trace.args = [*self.call]

    def _bind(self, writer: _Writer, arguments: Arguments) -> _LookedAt:
        """Check torch's modes, and flatten the arguments."""
        for check in guards.state_checks():
            writer.refuse_if(check.condition, check.operands, check.message, check.helpers)
        looked_at = _LookedAt()
        leaves = _bind_leaves(self.trace, arguments, self.call)
        for leaf, proxy, source in zip(arguments.leaves, leaves, arguments.sources):
            writer.bind(source, proxy)
            if is_tensor(leaf):
                looked_at.add(leaf, proxy, source)
        return looked_at

    def _inputs(self, writer: _Writer, inputs: Sequence[Lifted], looked_at: _LookedAt) -> tuple[Proxy, ...]:
        """Return the program's inputs: first tensors, then numbers."""
        values: list[Proxy] = [looked_at.found[id(x.tensor)] for x in inputs]
        position = {x.proxy.name: i for i, x in enumerate(inputs)}
        self._inputs_by_name = {name: values[i] for name, i in position.items()}
        for size in self._sizes:
            i = position[size.tensor]
            step = looked_at.source_of(inputs[i].tensor).to(Size, size.dim)
            self._leaves[size.leaf.name] = guards.Inline(values[i], step), str(step)
        for number in self._numbers:
            values.append(writer.fetch(number.source))
            self._leaves[number.leaf.name] = values[-1], str(number.source)
            self._inputs_by_name[number.leaf.name] = values[-1]
        return tuple(values)

    def constrain(self, symbols: Symbols) -> None:
        """Add lines that reject a call whose numbers violate a constraint of the program."""
        if self._trusted:
            return
        derived = self._derive(symbols)
        relations = [(c.leaves, c.text) for c in symbols.constraints]
        names = {p.name for leaves, _ in relations for p in leaves} | {size.leaf.name for size in self._sizes}
        trace = self.trace
        last = trace.bound_symbols.pop()
        bound: dict[str, Any] = {}
        if derived is not None:
            trace.record(derived)
            for p in derived.output:
                bound[p.name] = p
                self._leaves[p.name] = p, f"{p.name} (derived from {', '.join(x.name for x in derived.args[1])})"
        for name in [name for name in self._leaves if name in names and name not in bound]:
            value, _ = self._leaves[name]
            if isinstance(value, guards.Inline):
                line, value = guards.fetched(value.parent, value.source, trace.add_name(name))
                trace.record(line)
            bound[name] = value
        for size in self._sizes:
            description = self._leaves[size.leaf.name][1]
            _refuse_if(
                trace, "{0} < 2", (bound[size.leaf.name],), Message(f"{description} was more than 1 and is", "{0}")
            )
        for leaves, text in relations:
            if any(p.name not in bound for p in leaves):
                continue  # a constraint on data-dependent numbers
            position = {p.name: i for i, p in enumerate(leaves)}
            condition = text(lambda p: f"{{{position[p.name]}}}")
            description = text(lambda p: self._leaves[p.name][1])
            operands = tuple(bound[p.name] for p in leaves)
            _refuse_if(trace, f"not ({condition})", operands, Message(f"the program requires {description}"))
        trace.record(last)

    def _derive(self, symbols: Symbols) -> BoundSymbol | None:
        """Return the line that computes the derived scalars that have constraints, or None."""
        derived: dict[str, NumberProxy] = {}
        program = None
        while self._derived is not None:  # compiling the operations that compute them may add constraints
            found = {p.name: p for c in symbols.constraints for p in c.leaves if p.name in self._derived}
            if found.keys() == derived.keys():
                break
            derived = found
            program = self._derived.program([*derived.values()])
        if program is None:
            return None
        args = tuple([self._inputs_by_name[name] for name in program.args])
        return BoundSymbol(guards.derive, (program.run, args), {}, tuple(AnyProxy(name=name) for name in derived))


class _LookedAt:
    """The tensors whose metadata a prologue checks, with their sources."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.proxies: list[Proxy] = []
        self.sources: list[Source] = []
        self.found: dict[int, Proxy] = {}

    def add(self, tensor: torch.Tensor, proxy: Proxy, source: Source) -> None:
        """Add a tensor to check."""
        self.found.setdefault(id(tensor), proxy)
        self.tensors.append(tensor)
        self.proxies.append(proxy)
        self.sources.append(source)

    def source_of(self, tensor: torch.Tensor) -> Source:
        """Return the first source of a tensor."""
        return next(source for t, source in zip(self.tensors, self.sources) if t is tensor)

    def check(self, tracer: Tracer) -> TensorCheck:
        """Return the check of the tensors' metadata."""
        dims = [frozenset() if tracer.symbolic is None else tracer.symbolic.dims_of(t) for t in self.tensors]
        return TensorCheck(self.tensors, self.sources, dims)


def _read_tensors(
    writer: _Writer, recorder: ReadRecorder, inputs: Sequence[Lifted], looked_at: _LookedAt, only_inputs: bool
) -> None:
    """Fetch the tensors that were read: first inputs in order, then tensors of which only metadata was read."""
    read = {id(tensor) for _, tensor in recorder.tensors_read}
    others = [] if only_inputs else [tensor for _, tensor in recorder.tensors_read]
    for tensor in [x.tensor for x in inputs] + others:
        if id(tensor) in looked_at.found and id(tensor) not in read:
            continue  # only an argument
        read.discard(id(tensor))
        source = recorder.tensors[id(tensor)][0]
        looked_at.add(tensor, writer.fetch(source, source.label or "t"), source)


def _bind_leaves(trace: Trace, arguments: Arguments, call: tuple[Proxy, Proxy]) -> list[Proxy]:
    source: Proxy
    if arguments.flat:
        count = arguments.count
        message = f"{count} arguments were given by position, and", "len({0})", "are, with", "len({1})", "by name"
        _refuse_if(trace, f"{{1}} or len({{0}}) != {count}", call, Message(*message))
        source = call[0]
    else:
        source = AnyProxy(name=trace.make_name("leaves"))
        ordered = pytree.has_ordered_dict(arguments.structure)
        flatten = guards.flatten_call_in_order if ordered else guards.flatten_call
        trace.record(BoundSymbol(flatten, (*call, arguments.structure), {}, source))
    leaves: list[Proxy] = [AnyProxy(name=trace.add_name(name)) for name in arguments.names]
    trace.record(BoundSymbol(guards.unpack, (source,), {}, tuple(leaves)))
    return leaves
