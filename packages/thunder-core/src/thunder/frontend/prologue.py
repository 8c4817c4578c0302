# SPDX-License-Identifier: Apache-2.0
"""The prologue: a program that takes the user's arguments, checks what the trace relies on, and returns its inputs.

Where the program has effects it also returns what they are made to: the user's objects, found anew at each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from thunder.core import prims, pytree
from thunder.core.proxies import AnyProxy, DictProxy, Proxy, TupleProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.frontend import guards
from thunder.frontend.messages import Message, message_of
from thunder.frontend.places import Argument, Place
from thunder.frontend.reads import Check, Recorder
from thunder.frontend.tracer import Lifted

__all__ = ["Arguments", "build_prologue"]


class Arguments:
    """The arguments of a call, taken apart."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str]):
        self.leaves, self.structure = pytree.tree_flatten((args, kwargs))
        self.count = len(args)
        self.flat = not kwargs and len(args) == len(self.leaves) and all(a is b for a, b in zip(args, self.leaves))
        self.names = _leaf_names(args, kwargs, names, len(self.leaves))
        self.places = [Place(Argument(i, name), name) for i, name in enumerate(self.names)]
        self.roots = Place(Argument(-1, "args")), Place(Argument(-2, "kwargs"))

    def read(self, recorder: Recorder) -> None:
        """Every argument is read, though a tensor only where it is used."""
        for leaf, place in zip(self.leaves, self.places):
            if not isinstance(leaf, torch.Tensor):
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
            if inline and self._uses.get(place, 0) <= 1:
                return guards.Step(parent, place.step)
            line, found = guards.fetched(
                parent, place.step, self.trace.add_name(name) if name else self.trace.make_name("v")
            )
            self.trace.record(line)
        self._found[place] = found
        return found

    def check(self, check: Check) -> None:
        """The line that makes one check."""
        kind, place, value = check
        x = self.fetch(place, inline=True)
        operand = self.fetch(value) if kind == "same" else value
        self.guard(guards.condition_of(kind, value), (x, operand), message_of(check))

    def guard(self, condition: str, operands: tuple[Any, ...], message: Message) -> None:
        """The line that refuses the call when a condition holds."""
        self.trace.record(BoundSymbol(guards.guard, (condition, operands, message), {}, None))


def build_prologue(
    arguments: Arguments,
    inputs: Sequence[Lifted],
    recorder: Recorder,
    written: Sequence[int],
    targets: Sequence[Place] | None,
) -> Trace:
    """The prologue of a trace with these arguments and inputs; `targets` is what its effects are made to."""
    trace = Trace("prologue", signature="*args, **kwargs")
    trace.decorated = False
    call = TupleProxy((), name="args"), DictProxy({}, name="kwargs")
    trace.names |= {
        "args",
        "kwargs",
        "GuardFailed",
        "same_value",
        "same_contents",
        "current_device",
        "is_any_autocast_enabled",
    }
    writer = _Writer(trace, recorder.checks)
    for place, value in zip(arguments.roots, call):
        writer.bind(place, value)
    writer.expect([recorder.tensors[id(x.tensor)][0] for x in inputs if id(x.tensor) in recorder.tensors])
    writer.expect(place for place, _ in recorder.tensors_read)
    alike = recorder.alike(targets or ())
    writer.expect((*(targets or ()), *alike))
    with tracectx(trace):
        for condition in guards.state_checks():
            writer.guard(*condition)
        leaves = _bind_leaves(trace, arguments, call)
        real: list[torch.Tensor] = []
        fetched: list[Proxy] = []
        names: list[Place] = []
        found: dict[int, Proxy] = {}
        for leaf, proxy, place in zip(arguments.leaves, leaves, arguments.places):
            writer.bind(place, proxy)
            if isinstance(leaf, torch.Tensor):
                found.setdefault(id(leaf), proxy)
                real.append(leaf)
                fetched.append(proxy)
                names.append(place)
        for check in recorder.checks:
            writer.check(check)
        if alike:
            guards.check_different(tuple(writer.fetch(place) for place in alike))
        _read_tensors(writer, recorder, inputs, (real, fetched, names), found)
        if fetched:
            guards.check_tensors(guards.TensorCheck(real, names), tuple(fetched))
        values = tuple(found[id(x.tensor)] for x in inputs)
        if written and len(values) > 1:
            guards.check_distinct(values, tuple(written))
        trace.output = values if targets is None else (values, tuple(writer.fetch(place) for place in targets))
        prims.python_return(trace.output)
    trace.args = [*call]
    return trace


def _read_tensors(
    writer: _Writer,
    recorder: Recorder,
    inputs: Sequence[Lifted],
    looked_at: tuple[list[Any], list[Any], list[Place]],
    found: dict[int, Any],
) -> None:
    """Fetches the tensors that were read: inputs in their order, then those of which only metadata was asked."""
    real, fetched, names = looked_at
    read = {id(tensor) for _, tensor in recorder.tensors_read}
    for tensor in [x.tensor for x in inputs] + [tensor for _, tensor in recorder.tensors_read]:
        if id(tensor) in found and id(tensor) not in read:
            continue  # an argument, and nothing else
        read.discard(id(tensor))
        place = recorder.tensors[id(tensor)][0]
        proxy = writer.fetch(place, place.label or "t")
        found.setdefault(id(tensor), proxy)
        real.append(tensor)
        fetched.append(proxy)
        names.append(place)


def _bind_leaves(trace: Trace, arguments: Arguments, call: tuple[Proxy, Proxy]) -> list[Proxy]:
    source: Proxy
    if arguments.flat:
        guards.check_positional(*call, arguments.count)
        source = call[0]
    else:
        source = AnyProxy(name=trace.make_name("leaves"))
        trace.record(BoundSymbol(guards.flatten_call, (*call, arguments.structure), {}, source))
    leaves: list[Proxy] = [AnyProxy(name=trace.add_name(name)) for name in arguments.names]
    trace.record(BoundSymbol(guards.unpack, (source,), {}, tuple(leaves)))
    return leaves
