# SPDX-License-Identifier: Apache-2.0
"""Regions that are recomputed in backward instead of being saved (`torch.utils.checkpoint`).

A program contains a region as one composite operation, `checkpoint`. Differentiation replaces this operation in the
forward program by the operations of the region. The backward program recomputes the region from its inputs, and
differentiates the recomputation. A `barrier` keeps the recomputation separate from the first computation. Before the
recomputation, the states of random generators are restored, so that it draws the same random numbers; afterwards they
are set back.

Contract: the program computes the same outputs and gradients and draws the same random numbers. For backward, a region
saves only its inputs and the states of its generators.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from thunder.core import prims
from thunder.core.devices import Device
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.langctx import set_langctx
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.state import ActiveTrace, SourceLine, state, tracectx
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, map_proxies, proxies_in
from thunder.core.symint.numbers import SymbolicNumber
from thunder.core.symint.symbols import symbols_of
from thunder.core.trace import Trace
from thunder.passes.dce import has_effect

if TYPE_CHECKING:
    from thunder.passes.autodiff import JointTrace

__all__ = ["Region", "Source", "copy_operations", "drop_unused_results", "exchanged", "random_sources", "region",
           "region_of", "states_of"]  # fmt: skip

_numbers = itertools.count()
Source = tuple[Device, Any]  # (device, None) for the device's default generator, or (device, generator)


class Region(Symbol):
    """The symbol of a region, which is a composite operation."""

    def __init__(
        self, operations: Sequence[BoundSymbol], inputs: Sequence[Proxy], outputs: Sequence[Proxy], again: bool
    ):
        def meta(*args: Any) -> Any:
            """Return the results of a region that the backward program recomputes."""
            trace = state.trace
            assert trace is not None
            names: dict[str, Any] = {p.name: a for p, a in zip(inputs, args)}
            for op in copy_operations(operations, names, trace):
                trace.record(op)
            return tuple([names[p.name] for p in outputs])

        super().__init__("checkpoint", meta, id=("checkpoint", next(_numbers)))
        self.same_random_numbers = again
        self.joint_rule = _differentiated


def region(
    operations: Sequence[BoundSymbol],
    *,
    same_random_numbers: bool,
    wanted: set[str] | None = None,
    source: SourceLine | None = None,
) -> BoundSymbol:
    """Create the operation of a region. `wanted` selects the results to return; None selects all."""
    made: dict[str, Proxy] = {}
    inputs: dict[str, Proxy] = {}
    for op in operations:
        for p in op.flat_args:
            if p.name not in made:
                inputs.setdefault(p.name, p)
        for p in op.flat_outs:
            if p.name not in inputs:
                made.setdefault(p.name, p)
    outputs = tuple([p for name, p in made.items() if wanted is None or name in wanted])
    sym = Region(operations, tuple(inputs.values()), outputs, same_random_numbers)
    return BoundSymbol(sym, tuple(inputs.values()), {}, outputs, list(operations), source)


def region_of(function: Callable[..., tuple[Any, ...]], *, same_random_numbers: bool) -> Callable[..., tuple[Any, ...]]:
    """Return a function that records the operations of `function` as a region of the trace."""

    def record(*args: Any) -> tuple[Any, ...]:
        trace = state.trace
        assert trace is not None
        with trace.scope() as operations:
            results = function(*args)
        names = {p.name for p in proxies_in(results)}
        trace.record(region(operations, same_random_numbers=same_random_numbers, wanted=names))
        return results

    return record


def drop_unused_results(trace: Trace) -> None:
    """Drop unused results of checkpointed regions from `trace`, in place."""
    trace.bound_symbols[:] = _without_unused_results(trace.bound_symbols, set())


def _without_unused_results(operations: Sequence[BoundSymbol], used: set[str]) -> list[BoundSymbol]:
    """Return the operations without unused results of regions. `used` contains the names that are read after them."""
    used = set(used)
    out: list[BoundSymbol] = []
    for op in reversed(operations):
        if isinstance(op.sym, Region):
            wanted = used.intersection(op.out_names)
            inner = _without_unused_results(op.subsymbols, wanted)
            op = region(inner, same_random_numbers=op.sym.same_random_numbers, wanted=wanted, source=op.source)
        used.update(op.arg_names)
        out.append(op)
    return out[::-1]


def copy_operations(
    operations: Sequence[BoundSymbol], names: dict[str, Any], trace: ActiveTrace, *, new_numbers: bool = False
) -> list[BoundSymbol]:
    """Return copies of operations with new results. `names` maps inputs to replacements; the new results are added.

    With `new_numbers`, data-dependent numbers become new leaves. Without, they are the numbers of the first run, which
    has computed the same values.
    """

    def name(ops: Sequence[BoundSymbol], kind: type[Proxy]) -> None:
        for op in ops:
            made = {*op.out_names}  # without inputs that the operation returns
            for p in op.flat_outs:
                if p.name in made and p.name not in names and isinstance(p, kind):
                    renew = _renewed if new_numbers else _renamed
                    names[p.name] = renew(p, names, trace)
            name(op.subsymbols, kind)

    if new_numbers:
        name(operations, NumberProxy)  # first: the shapes of tensors may depend on them
    name(operations, Proxy)
    return [op.substitute(names) for op in operations]


def _renamed(p: Proxy, names: dict[str, Any], trace: ActiveTrace) -> Proxy:
    return p.replace_name(trace.make_name(p.prefix))


def _renewed(p: Proxy, names: dict[str, Any], trace: ActiveTrace) -> Proxy:
    """Return a new result of the same kind. A data-dependent number becomes a leaf of its own."""
    if isinstance(p, NumberProxy) and p.symbol is not None:
        return symbols_of(trace).renewed(p)
    new = _renamed(p, names, trace)
    if isinstance(new, TensorProxy) and any(isinstance(n, SymbolicNumber) for n in new.shape):
        new.shape = tuple([map_proxies(n, lambda leaf: names.get(leaf.name, leaf)) for n in new.shape])
    return new


# -- random numbers ---------------------------------------------------------------------------------------------------
def random_sources(operations: Sequence[BoundSymbol]) -> list[Source]:
    """Return the generators from which the operations draw."""
    found: dict[tuple[str, int], Source] = {}
    for op in operations:
        programs = [op.subsymbols] if OpTags.RANDOM_OP not in op.sym.tags else []
        inner = [getattr(a, "trace", None) for a in op.args if not isinstance(a, Proxy)]
        programs += [t.bound_symbols for t in inner if isinstance(t, Trace)]  # branches (e.g. of `torch.cond`)
        if programs:
            for source in [source for program in programs for source in random_sources(program)]:
                found.setdefault(_key(source), source)
            continue
        generator = op.kwargs.get("generator")
        devices = [p.device for p in (*op.flat_outs, *op.flat_args) if isinstance(p, TensorProxy)]
        if op.sym in (prims.rng_state, prims.exchange_rng_state):
            generator = op.args[-1] if len(op.args) > 1 and not isinstance(op.args[-1], Device) else None
            devices = [a for a in op.args if isinstance(a, Device)]
        for device in devices:
            found.setdefault(_key((device, generator)), (device, generator))
    return list(found.values())


def _key(source: Source) -> tuple[str, int]:
    device, generator = source
    return (str(device), 0) if generator is None else ("", id(generator))


def states_of(sources: Sequence[Source]) -> list[TensorProxy]:
    """Record operations that read the states of generators, and return the states."""
    return [prims.rng_state(*_operands(source)) for source in sources]


def exchanged(states: Sequence[TensorProxy], sources: Sequence[Source]) -> list[TensorProxy]:
    """Record operations that set the states of generators, and return the previous states."""
    return [prims.exchange_rng_state(s, *_operands(source)) for s, source in zip(states, sources)]


def _operands(source: Source) -> tuple[Any, ...]:
    return source if source[1] is not None else source[:1]


# -- differentiation --------------------------------------------------------------------------------------------------
def _differentiated(bsym: BoundSymbol, joint: JointTrace) -> tuple[list[BoundSymbol], list[BoundSymbol]]:
    """Return the forward operations and the backward operations of a region."""
    wrt = [p for p in bsym.tensors() if is_inexact_dtype(p.dtype) and p.name in joint.tracked]
    inner = _inner(bsym, joint, wrt)
    joint.trace.names |= inner.trace.names
    outputs = proxies_in(bsym.output)
    # Forward and backward run the same random operations, so that they draw the same numbers.
    random = bool(random_sources(inner.trace.bound_symbols))
    if random:  # an input that an operation returns has a new name in `inner`
        joint.env.update({p.name: inner.env[p.name] for p in outputs if p.name in inner.env})
    joint.tracked.update(p.name for p in outputs if inner.env.get(p.name, p).name in inner.tracked)
    stand, backward = _backward(bsym, joint, inner, wrt)
    return [*stand, *(inner.trace.bound_symbols if random else bsym.subsymbols)], backward


def _inner(bsym: BoundSymbol, joint: JointTrace, wrt: Sequence[TensorProxy]) -> JointTrace:
    """Differentiate the region as a separate program."""
    program = Trace("checkpoint", args=bsym.flat_args)
    program.names, program._counters = set(joint.trace.names), dict(joint.trace._counters)
    program.bound_symbols[:] = bsym.subsymbols
    return type(joint)(program, wrt, joint.executors)


def _takes_gradient(p: Proxy) -> bool:
    return isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype)


def _backward(
    bsym: BoundSymbol, joint: JointTrace, inner: JointTrace, wrt: Sequence[TensorProxy]
) -> tuple[list[BoundSymbol], list[BoundSymbol]]:
    """Return the operations that save the region's generator states, and the region's backward operations."""
    trace = joint.trace
    with tracectx(trace), set_langctx("torch"):
        with trace.scope() as asked:
            cotangents = _cotangents(bsym, joint, inner)
        with trace.scope() as gradients:
            found = inner.backward(cotangents, wrt)
        first = [op for op in inner.trace.bound_symbols if op.sym is not prims.decide]  # decided in the forward program
        again, gradients = _needed(first, gradients, {g.name for g in found if g is not None})
        sources = random_sources(again) if bsym.sym.same_random_numbers else []  # type: ignore[attr-defined]
        with trace.scope() as stand:
            states = states_of(sources)
        made = {name for op in (*asked, *again, *gradients) for name in op.out_names}
        given = {p.name: p for op in (*again, *gradients) for p in op.flat_args if p.name not in made}
        tensors = [p for p in given.values() if isinstance(p, TensorProxy)]
        tensors += cotangents.values()  # the recomputation must not start before these exist
        with trace.scope() as start:
            behind = prims.barrier(*tensors, *states) if tensors or states else ()
            before = exchanged(behind[len(tensors) :], sources)
        names: dict[str, Any] = {p.name: q for p, q in zip(tensors, behind)}
        second = copy_operations(again, names, trace)
        with trace.scope() as end:
            exchanged(before, sources)
        with trace.scope() as put:
            for p, g in zip(wrt, found):
                if g is not None:
                    prims.put_grad(p, names.get(g.name, g))
    return stand, [*asked, *start, *second, *end, *[op.substitute(names) for op in gradients], *put]


def _cotangents(bsym: BoundSymbol, joint: JointTrace, inner: JointTrace) -> dict[str, Any]:
    """Return the cotangents of a region's results, by the names of the results inside the region."""
    found: dict[str, Any] = {}
    for p in bsym.flat_outs:
        if not _takes_gradient(p) or p.name not in joint.tracked:
            continue
        gradient = prims.get_grad(joint.env.get(p.name, p))
        name = inner.env.get(p.name, p).name
        found[name] = found[name] + gradient if name in found else gradient
    return found


def _needed(
    again: Sequence[BoundSymbol], gradients: Sequence[BoundSymbol], wanted: set[str]
) -> tuple[list[BoundSymbol], list[BoundSymbol]]:
    """Return the operations of `again` and `gradients` that are needed to compute `wanted`.

    If a random operation is needed, all earlier random operations are too.
    """
    needed = set(wanted)

    def part(operations: Sequence[BoundSymbol], drawn: bool) -> list[BoundSymbol]:
        kept: list[BoundSymbol] = []
        for op in reversed(operations):
            effect = has_effect(op)
            if (effect and drawn) or any(name in needed for name in op.out_names):
                drawn = drawn or effect
                needed.update(op.arg_names)
                kept.append(op)
        return kept[::-1]

    last = part(gradients, True)
    return part(again, False), last
