# SPDX-License-Identifier: Apache-2.0
"""The prologue: a program that takes the user's arguments, checks what the trace relies on, and returns its inputs.

Where the program has effects it also returns what they are made to: the user's objects, found anew at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from thunder.capture.base.sources import Argument, Place
from thunder.capture.guards import guards
from thunder.capture.guards.messages import Message, message_of
from thunder.capture.reads import classify
from thunder.capture.reads.read_recorder import Check, ReadRecorder
from thunder.capture.tensors.tracer import Lifted, Tracer
from thunder.core import prims, pytree
from thunder.core.proxies import AnyProxy, DictProxy, NumberProxy, Proxy, TupleProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol
from thunder.core.symint.symbols import Symbols
from thunder.core.trace import Trace

__all__ = ["Arguments", "Guarded", "Prologue"]

# Names that the text of a prologue uses for something else.
_NAMES = {"args", "kwargs", "GuardFailed", "same_value", "same_contents", "current_device", "any_autocast"}


class Arguments:
    """The arguments of a call, taken apart."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str]):
        self.leaves, self.structure = pytree.tree_flatten((args, kwargs))
        self.count = len(args)
        self.flat = not kwargs and len(args) == len(self.leaves) and all(a is b for a, b in zip(args, self.leaves))
        self.names = _leaf_names(args, kwargs, names, len(self.leaves))
        self.places = [Place(Argument(i, name), name) for i, name in enumerate(self.names)]
        self.roots = Place(Argument(-1, "args")), Place(Argument(-2, "kwargs"))

    def place_of(self, tensor: torch.Tensor) -> Place | None:
        """Where a tensor is among the arguments."""
        return next((place for leaf, place in zip(self.leaves, self.places) if leaf is tensor), None)

    def read(self, recorder: ReadRecorder) -> None:
        """Every argument is read, though a tensor only where it is used."""
        for leaf, place in zip(self.leaves, self.places):
            if not classify.is_tensor(leaf):
                recorder.value(place, leaf)


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
    """Writes the lines of a prologue: each place is fetched once, when something first asks for it."""

    def __init__(self, trace: Trace, checks: Sequence[Check]):
        self.trace = trace
        self._found: dict[Place, Any] = {}
        self._uses: dict[Place, int] = {}
        for kind, place, value in checks:
            self._count(place, 1 + (guards.condition_of(kind, value).count("{0}") > 1))
            if kind == "same":
                self._count(value, 2)

    def _count(self, place: Place, n: int = 1) -> None:
        """Notes that a place is looked at: what is looked at once needs no name."""
        seen = place in self._uses
        self._uses[place] = self._uses.get(place, 0) + n
        if not seen and place.parent is not None:
            self._count(place.parent)
            for other in place.others:
                self._count(other, 2)

    def expect(self, places: Iterable[Place]) -> None:
        """Notes that places are fetched besides being checked."""
        for place in places:
            self._count(place, 2)

    def bind(self, place: Place, value: Any) -> None:
        """Says what a place is."""
        self._found[place] = value

    def fetch(self, place: Place, name: str | None = None, *, inline: bool = False) -> Any:
        """The value of the trace, or the object, that stands at a place."""
        found = self._found.get(place)
        if found is not None:
            return found
        if place.parent is None:
            found = place.root
        else:
            parent = self.fetch(place.parent, inline=inline)
            if inline and self._uses.get(place, 0) <= 1 and not place.others:
                return guards.Step(parent, place.step)
            others = [self.fetch(other) for other in place.others]
            line, found = guards.fetched(
                parent, place.step, self.trace.add_name(name) if name else self.trace.make_name("v"), others
            )
            self.trace.record(line)
        self._found[place] = found
        return found

    def check(self, check: Check) -> str:
        """The line that makes one check; the first part of what it says when it fails."""
        kind, place, value = check
        x = self.fetch(place, inline=True)
        operand = self.fetch(value) if kind == "same" else value
        message = message_of(check)
        self.guard(guards.condition_of(kind, value), (x, operand), message)
        return message.text

    def guard(self, condition: str, operands: tuple[Any, ...], message: Message) -> None:
        """The line that refuses the call when a condition holds."""
        self.trace.record(BoundSymbol(guards.guard, (condition, operands, message), {}, None))


class Prologue:
    """The prologue of a trace with these arguments and inputs; `targets` is what its effects are made to.

    The constraints on symbolic numbers are added when the program has been compiled, which may make more of them.
    A `trusted` call is not asked whether its inputs are what they were.
    """

    def __init__(
        self,
        arguments: Arguments,
        tracer: Tracer,
        recorder: ReadRecorder,
        written: Sequence[int],
        targets: Sequence[Place] | None,
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
        self._told = tracer.told
        # What symbolic numbers are, by the names of their leaves: where they stand, and how a message says it.
        self._leaves: dict[str, tuple[Any, str]] = {}
        checks = [] if trusted else recorder.checks
        alike = [] if trusted else recorder.alike(targets or ())
        writer = _Writer(trace, checks)
        for place, value in zip(arguments.roots, self.call):
            writer.bind(place, value)
        inputs = tracer.inputs
        writer.expect([recorder.tensors[id(x.tensor)][0] for x in inputs if id(x.tensor) in recorder.tensors])
        writer.expect(place for place, _ in recorder.tensors_read)
        writer.expect((*(targets or ()), *alike, *[number.place for number in self._numbers]))
        with tracectx(trace):
            looked_at = self._bind(writer, arguments)
            for check in checks:
                self.guarded.checks.setdefault(writer.check(check), check)
            if alike:
                guards.check_different(tuple(writer.fetch(place) for place in alike))
            _read_tensors(writer, recorder, inputs, looked_at, trusted)
            if looked_at.proxies and not trusted:
                self.guarded.tensors = looked_at.check(tracer)
                tensors = TupleProxy((), name=trace.add_name("tensors"))
                operands = self.guarded.tensors, tuple(looked_at.proxies)
                trace.record(BoundSymbol(guards.check_tensors, operands, {}, tensors))
            if len(written) > 0 and len(inputs) > 1 and not trusted:
                guards.check_distinct(tuple(looked_at.found[id(x.tensor)] for x in inputs), tuple(written))
            values = self._inputs(writer, inputs, looked_at)
            prims.python_return(
                values if targets is None else (values, tuple(writer.fetch(place) for place in targets))
            )
        trace.args = [*self.call]

    def _bind(self, writer: _Writer, arguments: Arguments) -> _LookedAt:
        """Asks for torch's modes and takes the arguments apart."""
        for condition in guards.state_checks():
            writer.guard(*condition)
        looked_at = _LookedAt()
        leaves = _bind_leaves(self.trace, arguments, self.call)
        for leaf, proxy, place in zip(arguments.leaves, leaves, arguments.places):
            writer.bind(place, proxy)
            if classify.is_tensor(leaf):
                looked_at.add(leaf, proxy, place)
        return looked_at

    def _inputs(self, writer: _Writer, inputs: Sequence[Lifted], looked_at: _LookedAt) -> tuple[Proxy, ...]:
        """The program's inputs: tensors, then numbers."""
        values: list[Proxy] = [looked_at.found[id(x.tensor)] for x in inputs]
        position = {x.proxy.name: i for i, x in enumerate(inputs)}
        self._inputs_by_name = {name: values[i] for name, i in position.items()}
        for size in self._sizes:
            i = position[size.tensor]
            step = guards.Step(values[i], f"{{}}.shape[{size.dim}]")
            self._leaves[size.leaf.name] = step, f"{looked_at.place_of(inputs[i].tensor)}.shape[{size.dim}]"
        for number in self._numbers:
            values.append(writer.fetch(number.place))
            self._leaves[number.leaf.name] = values[-1], str(number.place)
            self._inputs_by_name[number.leaf.name] = values[-1]
        return tuple(values)

    def constrain(self, symbols: Symbols) -> None:
        """Adds the lines that refuse a call whose numbers are not as the program took them to be."""
        if self._trusted:
            return
        told = self._tell(symbols)
        relations = [(c.leaves, c.text) for c in symbols.constraints]
        names = {p.name for leaves, _ in relations for p in leaves} | {size.leaf.name for size in self._sizes}
        trace = self.trace
        last = trace.bound_symbols.pop()
        bound: dict[str, Any] = {}
        if told is not None:
            trace.record(told)
            for p in told.output:
                bound[p.name] = p
                self._leaves[p.name] = p, f"{p.name} (told by {', '.join(x.name for x in told.args[1])})"
        for name in [name for name in self._leaves if name in names and name not in bound]:
            value, _ = self._leaves[name]
            if isinstance(value, guards.Step):
                line, value = guards.fetched(value.parent, value.step, trace.add_name(name))
                trace.record(line)
            bound[name] = value
        for size in self._sizes:
            said = self._leaves[size.leaf.name][1]
            self._refuse("{0} < 2", (bound[size.leaf.name],), Message(f"{said} was more than 1 and is", "{0}"))
        for leaves, text in relations:
            if any(p.name not in bound for p in leaves):
                continue  # about numbers that only running the program tells
            position = {p.name: i for i, p in enumerate(leaves)}
            condition = text(lambda p: f"{{{position[p.name]}}}")
            said = text(lambda p: self._leaves[p.name][1])
            operands = tuple(bound[p.name] for p in leaves)
            self._refuse(f"not ({condition})", operands, Message(f"the program is for {said}"))
        trace.record(last)

    def _tell(self, symbols: Symbols) -> BoundSymbol | None:
        """The line that computes those numbers that inputs tell and of which something is assumed."""
        told: dict[str, NumberProxy] = {}
        program = None
        while self._told is not None:  # what leads to them is compiled, which may assume more
            found = {p.name: p for c in symbols.constraints for p in c.leaves if p.name in self._told}
            if found.keys() == told.keys():
                break
            told = found
            program = self._told.program([*told.values()])
        if program is None:
            return None
        args = tuple([self._inputs_by_name[name] for name in program.args])
        return BoundSymbol(guards.tell, (program.run, args), {}, tuple(AnyProxy(name=name) for name in told))

    def _refuse(self, condition: str, operands: tuple[Any, ...], message: Message) -> None:
        self.trace.record(BoundSymbol(guards.guard, (condition, operands, message), {}, None))


class Guarded:
    """What a prologue looks at, to find out what has changed when it has refused a call."""

    def __init__(self) -> None:
        self.checks: dict[str, Check] = {}  # by the first part of what they say when they fail
        self.tensors: guards.TensorCheck | None = None

    def found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Place], Any]:
        """The function that says what stands at a place in a call; it raises where there is nothing."""
        leaves = pytree.tree_leaves((args, kwargs))

        def argument(root: Argument) -> Any:
            return leaves[root.index] if root.index >= 0 else (args, kwargs)[-1 - root.index]

        return lambda place: place.find(argument)


class _LookedAt:
    """The tensors whose metadata a prologue checks, and where it found them."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.proxies: list[Proxy] = []
        self.places: list[Place] = []
        self.found: dict[int, Proxy] = {}

    def add(self, tensor: torch.Tensor, proxy: Proxy, place: Place) -> None:
        """Notes a tensor."""
        self.found.setdefault(id(tensor), proxy)
        self.tensors.append(tensor)
        self.proxies.append(proxy)
        self.places.append(place)

    def place_of(self, tensor: torch.Tensor) -> Place:
        """Where a tensor was first found."""
        return next(place for t, place in zip(self.tensors, self.places) if t is tensor)

    def check(self, tracer: Tracer) -> guards.TensorCheck:
        """The check of their metadata."""
        dims = [frozenset() if tracer.symbolic is None else tracer.symbolic.dims_of(t) for t in self.tensors]
        return guards.TensorCheck(self.tensors, self.places, dims)


def _read_tensors(
    writer: _Writer, recorder: ReadRecorder, inputs: Sequence[Lifted], looked_at: _LookedAt, only_inputs: bool
) -> None:
    """Fetches the tensors that were read: inputs in their order, then those of which only metadata was asked."""
    read = {id(tensor) for _, tensor in recorder.tensors_read}
    others = [] if only_inputs else [tensor for _, tensor in recorder.tensors_read]
    for tensor in [x.tensor for x in inputs] + others:
        if id(tensor) in looked_at.found and id(tensor) not in read:
            continue  # an argument, and nothing else
        read.discard(id(tensor))
        place = recorder.tensors[id(tensor)][0]
        looked_at.add(tensor, writer.fetch(place, place.label or "t"), place)


def _bind_leaves(trace: Trace, arguments: Arguments, call: tuple[Proxy, Proxy]) -> list[Proxy]:
    source: Proxy
    if arguments.flat:
        count = arguments.count
        said = f"{count} arguments were given by position, and", "len({0})", "are, with", "len({1})", "by name"
        trace.record(BoundSymbol(guards.guard, (f"{{1}} or len({{0}}) != {count}", call, Message(*said)), {}, None))
        source = call[0]
    else:
        source = AnyProxy(name=trace.make_name("leaves"))
        trace.record(BoundSymbol(guards.flatten_call, (*call, arguments.structure), {}, source))
    leaves: list[Proxy] = [AnyProxy(name=trace.add_name(name)) for name in arguments.names]
    trace.record(BoundSymbol(guards.unpack, (source,), {}, tuple(leaves)))
    return leaves
