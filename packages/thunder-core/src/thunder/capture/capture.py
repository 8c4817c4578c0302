# SPDX-License-Identifier: Apache-2.0
"""Capture: run a program once on handles, and return its computation trace, its prologue and its epilogue."""

from __future__ import annotations

import gc
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from thunder.capture.base.fallback import ModuleFallback, RunsEagerly
from thunder.capture.base.substitutions import Substitutions, undone
from thunder.capture.guards.derived_scalars import DerivedScalars
from thunder.capture.guards.epilogue import Epilogue
from thunder.capture.guards.prologue import Prologue
from thunder.capture.higher_order.gradient_hooks import hooked
from thunder.capture.higher_order.leaf_gradients import detach_freed
from thunder.capture.numbers.symbolic import Dynamic, Number
from thunder.capture.reads.bytecode import raised_by_branch, varies_among_processes
from thunder.capture.session import CaptureSession, parameter_names
from thunder.capture.tensors.aliasing import shared_memory
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.leaks import describe_referrer
from thunder.capture.tensors.tracer import Lifted, Tracer, tensors_in
from thunder.core import pytree
from thunder.core.errors import DataDependentError, TracingError
from thunder.core.state import SourceLine
from thunder.core.trace import Trace
from thunder.extend import Executor
from thunder.runtime.decisions import Decision
from thunder.runtime.tensor_check import overlap

__all__ = ["Captured", "capture", "parameter_names", "trace_name"]


class Captured:
    """The result of a capture: the traces, the inputs of this call, and why the program may not be cached."""

    def __init__(self, computation: Trace, inputs: list[Lifted], numbers: list[Number], epilogue: Epilogue | None):
        self.computation = computation
        self.inputs = [x.tensor for x in inputs]
        self.numbers = numbers
        self.epilogue = None if epilogue is None else epilogue.trace
        self.targets = () if epilogue is None else tuple(thing for _, thing in epilogue.targets)
        self.functions: dict[int, weakref.ref[Any]] = {}  # those that the program has made, by their ids
        self.prologue: Prologue | None = None
        self.decisions: tuple[Decision, ...] = ()
        # The positions of the inputs whose requires_grad is set before the program runs, and unset at its end.
        self.switched: tuple[tuple[int, ...], tuple[int, ...]] = (), ()
        self.uncacheable: str | None = None
        self.enables_grad = False  # whether the program enables gradients that the caller has disabled
        self.varies = False  # whether the program may depend on what differs between processes, e.g. hashes
        # What sets are made of over which the program loops, and the orders of their elements.
        self.orders: Sequence[tuple[str, list[Any], list[Any]]] = ()
        # The ranks of its groups if its collectives have another order than in eager mode.
        self.ranks_in_own_order: list[int] = []
        self.communicates = False  # whether it has collectives of several ranks
        self.not_loaded: frozenset[str] = frozenset()  # modules that the program has asked for or tried to import
        self.marked: list[tuple[str, Any]] = []  # descriptions of the sizes that the user marked, with their symbols
        self.where: SourceLine | None = None  # the line of user code that makes it uncacheable, if known


def trace_name(fn: Any) -> str:
    """Return the function's own name if it is a valid identifier, else "computation"."""
    name = getattr(fn, "__name__", "")
    return name if name.isidentifier() else "computation"


def capture(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    name: str,
    executors: Sequence[Executor],
    independent: bool = False,
    may_run_eagerly: bool = True,
    around: Iterable[Callable[[], AbstractContextManager[Any]]] = (),
    dynamic: Dynamic | None = None,
    trusted: bool = False,
    imposed: Sequence[Any] | None = None,
) -> Captured:
    """Run `fn` once on handles and return the captured program. The user's objects are restored afterwards.

    With `trusted`, the prologue does not check the properties that the user guarantees. `CaptureSession` explains the
    other options.

    A tensor passed for several arguments becomes a separate input for each of them. If the program could detect the
    sharing, because it writes to the tensor or compares identities (`q is k`), `fn` runs a second time, and the tensor
    becomes one input.
    """

    def run(distinct: frozenset[int]) -> Captured:
        inputs: list[weakref.ref[Any]] = []

        def on(substitutions: Substitutions) -> Captured:
            session = CaptureSession(
                substitutions, fn, args, kwargs, name=name, executors=executors, independent=independent,
                distinct=distinct, around=around, dynamic=dynamic, imposed=imposed,
                may_run_eagerly=may_run_eagerly,
            )  # fmt: skip
            captured = _capture(session, trusted)
            inputs.extend(weakref.ref(x.handle) for x in session.tracer.inputs)
            return captured

        captured = undone(on)
        _refuse_stored_inputs(inputs)
        return captured

    repeated = frozenset() if independent or dynamic else _repeated(args, kwargs)
    if repeated:
        try:
            return run(repeated)
        except RunsEagerly:
            raise  # a second run would end here, too
        except Exception:  # IsShared, or an error that the second run raises again
            pass
    return run(frozenset())


def _repeated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> frozenset[int]:
    """Return the ids of tensors that are passed more than once and do not require grad."""
    try:
        leaves = pytree.tree_leaves((args, kwargs))
    except RecursionError:
        return frozenset()  # an argument contains itself
    counts = Counter(id(x) for x in leaves if type(x) is torch.Tensor and not x.requires_grad)
    return frozenset(key for key, count in counts.items() if count > 1)


def _capture(session: CaptureSession, trusted: bool) -> Captured:
    try:
        captured = _captured(session, trusted)
    except DataDependentError as refusal:
        if session.recorder.output.reads_clocks:
            raise ModuleFallback("the program needs the value of a clock, or formats it as text") from None
        refusal.overrides_builtins = not raised_by_branch(refusal)
        refusal.derives_scalars = all(map(DerivedScalars(session.tracer, session.evaluation).derives, refusal.asked))
        raise
    _refuse_changed_arrays(session.tracer)
    _refuse_overlaps(session.tracer, arrays=bool(session.recorder.arrays))
    session.release()
    _refuse_leftovers(session.tracer)
    if session.independent:
        _refuse_shared_writes(session.tracer)
    return captured


def _captured(session: CaptureSession, trusted: bool) -> Captured:
    """Run the program and build the result from the recorded trace, reads and writes."""
    tracer, recorder, arguments = session.tracer, session.recorder, session.arguments
    epilogue = _finish(session, session.run())
    session.leave_contexts()
    numbers = [] if session.numbers is None else session.numbers.numbers
    captured = Captured(tracer.trace, tracer.inputs, numbers, epilogue)
    captured.marked = [] if session.numbers is None else session.numbers.marked
    given = {id(leaf) for leaf in arguments.leaves}
    captured.uncacheable = (
        tracer.uncacheable
        or next(iter(recorder.unguardable), None)
        or recorder.unreachable(x.tensor for x in tracer.inputs if id(x.tensor) not in given)
        or (epilogue.unguardable if epilogue is not None else None)
    )
    captured.switched = tracer.leaves.inputs.positions(tracer.inputs)
    if tracer.decisions is not None:
        captured.decisions = tuple(tracer.decisions.made)
    ran = recorder.code.ran
    captured.varies = recorder.code.sets.is_used(recorder.guards, ran) or any(map(varies_among_processes, ran))
    captured.orders = [*recorder.code.sets.orders.values()]
    captured.ranks_in_own_order = tracer.communication.ranks_in_own_order
    captured.communicates = any(group.size > 1 for group in tracer.communication.groups.values())
    captured.not_loaded = frozenset(recorder.code.modules.not_loaded)
    captured.functions = recorder.functions
    captured.where = recorder.unguardable.get(captured.uncacheable or "")
    if captured.uncacheable is None:
        written = _changed(tracer)
        targets = None if epilogue is None else [source for source, _ in epilogue.targets]
        captured.prologue = Prologue(arguments, tracer, recorder, written, targets, trusted=trusted)
    return captured


def _finish(session: CaptureSession, result: Any) -> Epilogue | None:
    """End the trace. It returns the program's result or, if there are side effects, the tensors for the epilogue."""
    tracer, writes, independent = session.tracer, session.writes, session.independent
    epilogue, values = None, result
    detach_freed(tracer)
    if session.effects or Epilogue.needed(result, writes):
        epilogue = _epilogue(session, result, {})
    if not independent:
        shared = shared_memory(tensors_in(result) if epilogue is None else epilogue.tensors)
        epilogue = _epilogue(session, result, shared) if shared else epilogue
    if epilogue is not None:
        values = tuple(epilogue.tensors)
        if independent:
            tracer.trace.info["effects"] = len(values)
            values = (result, *values)
    if not independent:
        _refuse_gradients_of_writes(tracer)
    tracer.finish(values)
    if not independent:
        tracer.leaves.stay_inside(tracer, tensors_in(values), hooked)
    if epilogue is not None:
        epilogue.release()
    return epilogue


def _epilogue(session: CaptureSession, result: Any, shared: dict[int, Handle]) -> Epilogue:
    """Return the epilogue of a result, which repeats views of `shared` memory."""
    epilogue = Epilogue(session.recorder.reached, session.writes, session.aliases, session.effects)
    epilogue.shared = shared
    # A transform such as grad changes the result, but not the values that the program stores.
    epilogue.build(result, whole=session.independent)
    return epilogue


def _refuse_gradients_of_writes(tracer: Tracer) -> None:
    """Run as Python if the program writes a value that requires grad to an input: autograd records the write."""
    for lifted in tracer.inputs:
        storage = lifted.handle._storage
        if storage.written and storage.visible and storage.needs_grad and storage.value is not lifted.proxy:
            raise ModuleFallback(
                f"the program writes a value that requires grad into its input {lifted.proxy.name}: gradients cannot "
                "flow back through that write. Write under torch.no_grad(), or write a detached value"
            )


def _refuse_changed_arrays(tracer: Tracer) -> None:
    """Run eagerly if the program changes an array that is a constant in the trace, or a view that is a copy in it."""
    for array, before, storage in tracer.constant_arrays:
        if array.tobytes() != before or storage.written:
            raise RunsEagerly("the program changes a NumPy array that it has made and that is also a tensor")
    for bases, copies in tracer.copied_views:
        if any(base.version != version for base, version in bases) or any(copy.written for copy in copies):
            raise RunsEagerly("the program writes to the memory of a view of a NumPy array")


def _changed(tracer: Tracer) -> list[int]:
    """Return the positions of the inputs that the program writes to, or whose attributes it sets."""
    return [i for i, x in enumerate(tracer.inputs) if x.handle._storage.written or x.handle.given_attributes]


def _refuse_overlaps(tracer: Tracer, *, arrays: bool = False) -> None:
    """Run eagerly if the program writes to an input that shares memory with another input."""
    written = _changed(tracer)
    found = overlap([x.tensor for x in tracer.inputs], written, arrays=arrays) if written else None
    if found is not None:
        one, other = (tracer.inputs[i].proxy.name for i in found)
        raise RunsEagerly(
            f"the function writes to {one}, which shares memory with {other}: copy one of them (.clone()) before the "
            "call, or pass their common base and take the views inside the function"
        )


def _refuse_shared_writes(tracer: Tracer) -> None:
    """Raise an error if the program writes to a tensor that is passed for several arguments."""
    names = defaultdict[int, list[str]](list)
    for x in tracer.inputs:
        names[id(x.tensor)].append(x.proxy.name)
    for x in tracer.inputs:
        shared = names[id(x.tensor)]
        if len(shared) > 1 and x.handle._storage.written:
            raise TracingError(
                f"gradients are taken for the arguments {', '.join(shared)}, which are the same tensor, and the "
                f"function writes to {x.proxy.name}. Pass a copy (.clone()) for each argument"
            )


def _refuse_leftovers(tracer: Tracer) -> None:
    """Raise an error if a handle is alive after the run: a stored handle would be a tensor without data."""

    def left() -> list[Any]:
        own = {id(x.handle) for x in tracer.inputs}
        return [h for h in tracer.handles if id(h) not in own]

    if left():
        gc.collect()  # a handle may be part of an unreachable cycle
    found = left()
    if found:
        raise TracingError(
            f"the traced function stored a tensor ({found[0]!r}) in {describe_referrer(found[0], [found])}, which "
            "outlives the call. Return it from the function instead, or keep it as an attribute of the module"
        )


def _refuse_stored_inputs(inputs: Sequence[weakref.ref[Any]]) -> None:
    """Run as Python if an input's handle is alive after the session: the program has stored it where no undo reaches.

    The session itself holds the handles of inputs until it ends, so `_refuse_leftovers` cannot check them.
    """
    if any(handle() is not None for handle in inputs):
        gc.collect()  # a handle may be part of an unreachable cycle
    for handle in inputs:
        found = handle()
        if found is not None:
            raise ModuleFallback(f"the program stores its input in {describe_referrer(found, [found])}")


def trace_function(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trace:
    """Return the computation trace of `fn` under its own name, before claiming by executors."""
    return capture(fn, args, kwargs, name=trace_name(fn), executors=()).computation
