# SPDX-License-Identifier: Apache-2.0
"""Acquisition: one native run of a program gives its computation trace and its prologue."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from thunder.capture.base.fallback import ModuleFallback, fall_back
from thunder.capture.base.predicates import is_tensor
from thunder.capture.base.sources import Source
from thunder.capture.base.user_lines import annotate, line_of_user
from thunder.capture.guards.derived_scalars import DerivedScalars
from thunder.capture.guards.epilogue import Epilogue
from thunder.capture.guards.prologue import Arguments, Prologue
from thunder.capture.handlers import make_tracer
from thunder.capture.higher_order.gradient_hooks import hooked
from thunder.capture.numbers.symbolic import Dynamic, Inputs, Number
from thunder.capture.reads.bytecode import raised_by_branch
from thunder.capture.reads.read_recorder import ReadRecorder
from thunder.capture.tensors.leaks import describe_referrer
from thunder.capture.tensors.tracer import Lifted, Tracer, tensors_in
from thunder.capture.torch_patches import replaced_entry_points
from thunder.core import pytree
from thunder.core.errors import DataDependentError, TracingError
from thunder.core.state import SourceLine
from thunder.core.trace import Trace
from thunder.extend import Executor
from thunder.runtime.lock import tracing_lock
from thunder.runtime.tensor_check import overlap
from thunder.torch.private import without_modes

__all__ = ["Acquired", "acquire", "parameter_names", "trace_name"]


class Acquired:
    """What acquisition found: the traces, the real inputs of this call, and why it may not be kept."""

    def __init__(self, computation: Trace, inputs: list[Lifted], numbers: list[Number], epilogue: Epilogue | None):
        self.computation = computation
        self.inputs = inputs
        self.numbers = numbers
        self.epilogue = None if epilogue is None else epilogue.trace
        self.targets = () if epilogue is None else tuple(thing for _, thing in epilogue.targets)
        self.prologue: Prologue | None = None
        self.uncacheable: str | None = None


def parameter_names(fn: Any) -> list[str]:
    """The names of a callable's positional parameters, without self."""
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        params = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return []
    names: list[str] = []
    for p in params:
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
        elif p.kind is p.VAR_POSITIONAL:
            break
    return names


def trace_name(fn: Any) -> str:
    """The function's own name, where it can name a function."""
    name = getattr(fn, "__name__", "")
    return name if name.isidentifier() else "computation"


def acquire(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    name: str,
    executors: Sequence[Executor],
    independent: bool = False,
    around: Sequence[AbstractContextManager[Any]] = (),
    dynamic: Dynamic | None = None,
    trusted: bool = False,
) -> Acquired:
    """Runs `fn` once on handles and returns what was recorded. The user's objects are left as they were.

    With `independent` each argument is an input of its own, though the same tensor may be given for several of them:
    what gradients are taken for. The contexts of `around` are entered for the run. `dynamic` says which sizes and
    numbers are symbolic; with `trusted` the prologue does not check what the user promises.

    A tensor that is given for several arguments is an input for each of them where the program cannot tell: it neither
    writes to it nor asks for identities (`q is k`). Where it can, it runs once more, with one input.
    """

    def run(distinct: frozenset[int]) -> Acquired:
        return _acquire(
            fn, args, kwargs, distinct, name=name, executors=executors, independent=independent, around=around,
            dynamic=dynamic, trusted=trusted,
        )  # fmt: skip

    repeated = frozenset() if independent or dynamic else _repeated(pytree.tree_leaves((args, kwargs)))
    if repeated:
        with contextlib.suppress(Exception):  # among them _Shared; any other error is raised again below
            return run(repeated)
    return run(frozenset())


class _Shared(Exception):
    """The program can tell that several of its arguments are one tensor."""


def _repeated(leaves: Sequence[Any]) -> frozenset[int]:
    """The ids of tensors that are given more than once, and that no gradients are taken for."""
    counts = Counter(id(x) for x in leaves if type(x) is torch.Tensor and not x.requires_grad)
    return frozenset(key for key, count in counts.items() if count > 1)


def _acquire(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    distinct: frozenset[int],
    *,
    name: str,
    executors: Sequence[Executor],
    independent: bool,
    around: Sequence[AbstractContextManager[Any]],
    dynamic: Dynamic | None,
    trusted: bool,
) -> Acquired:
    """Run once; tensors with an id in `distinct` are an input for each argument that they are given for."""
    with tracing_lock:
        arguments = Arguments(args, kwargs, parameter_names(fn))
        tracer = make_tracer(name, executors)
        recorder = ReadRecorder()
        if distinct:
            recorder.watch_identity()
        tracer.name_lifted(recorder.name_of)

        def source_of(tensor: torch.Tensor) -> Source | None:
            return arguments.source_of(tensor) or recorder.source_of(tensor)

        tracer.read_attribute = lambda tensor, name: recorder.attribute_of_tensor(source_of(tensor), tensor, name)
        tracer.guarded_of = lambda tensor, *step: recorder.tensor_is(source_of(tensor), tensor, *step)
        if dynamic:
            symbolic = tracer.symbolic = recorder.symbolic = Inputs(tracer, dynamic, recorder.plants)
            symbolic.source_of = source_of
            symbolic.source_of_list, symbolic.guarded_number = recorder.source_of_list, recorder.number
            tracer.derived_scalars = DerivedScalars(tracer) if dynamic.tells else None
        try:
            with contextlib.ExitStack() as contexts:
                contexts.enter_context(without_modes())  # the user's see what runs
                for context in around:
                    contexts.enter_context(context)
                epilogue = _run(fn, tracer, recorder, arguments, (args, kwargs), independent, distinct)
            numbers = [] if tracer.symbolic is None else tracer.symbolic.numbers
            acquired = Acquired(tracer.trace, tracer.inputs, numbers, epilogue)
            given = {id(leaf) for leaf in arguments.leaves}
            acquired.uncacheable = (
                tracer.uncacheable
                or next(iter(recorder.unguardable), None)
                or recorder.unreachable(x.tensor for x in tracer.inputs if id(x.tensor) not in given)
                or (epilogue.unguardable if epilogue is not None else None)
            )
            if acquired.uncacheable is None:
                written = [i for i, x in enumerate(tracer.inputs) if x.handle._storage.written]
                targets = None if epilogue is None else [source for source, _ in epilogue.targets]
                acquired.prologue = Prologue(arguments, tracer, recorder, written, targets, trusted=trusted)
        except DataDependentError as refusal:
            refusal.converts = not raised_by_branch(refusal)
            refusal.tells = all(map(DerivedScalars(tracer).derives, refusal.asked))
            raise
        finally:
            recorder.release()
        _refuse_leftovers(tracer)
        if independent:
            _refuse_shared_writes(tracer)
        _refuse_overlaps(tracer)
    return acquired


def _run(
    fn: Callable[..., Any], tracer: Tracer, recorder: ReadRecorder, arguments: Arguments, call: Any, independent: bool,
    distinct: frozenset[int],
) -> Epilogue | None:  # fmt: skip
    """The native run. No handle of it outlives this function but those of the inputs."""
    leaves = [
        tracer.add_input(leaf, source.label, independent=independent or id(leaf) in distinct)
        if is_tensor(leaf)
        else recorder.argument(source, leaf)
        for leaf, source in zip(arguments.leaves, arguments.sources)
    ]
    copies = pytree.tree_unflatten(leaves, arguments.structure)
    aliases: dict[int, Any] = {}
    result, writes = _call(fn, tracer, recorder, arguments, (call, copies), aliases)
    shared = [x.handle for x in tracer.inputs if id(x.tensor) in distinct]
    if recorder.identity_matters or any(h._storage.written or h.given_attributes for h in shared):
        raise _Shared
    reason = recorder.seeded(tracer.generators)
    if reason is not None:
        raise ModuleFallback(reason)
    for lifted in tracer.inputs:
        given = lifted.handle.given_attributes
        if given:
            where = arguments.source_of(lifted.tensor) or recorder.source_of(lifted.tensor)
            writes += recorder.given_attributes(where, lifted.tensor, given)
    if tracer.attention_kernels is not None:
        recorder.attention_kernels(tracer.attention_kernels)
    return _finish(tracer, recorder, result, writes, aliases, independent)


def _call(
    fn: Callable[..., Any],
    tracer: Tracer,
    recorder: ReadRecorder,
    arguments: Arguments,
    calls: Any,
    aliases: dict[int, Any],
) -> tuple[Any, list[Any]]:
    """What the program returns, and what it assigned to the user's objects, which is undone."""
    call, copies = calls
    asks_for_numbers = tracer.symbolic is not None and tracer.symbolic.dynamic.converts
    writes: list[Any] = []
    try:
        with recorder:
            recorder.start(fn)
            arguments.read(recorder)
            for original, copy, source in zip(call, copies, arguments.roots):
                recorder.copied(original, copy, source, aliases)
            with replaced_entry_points(numbers=asks_for_numbers), tracer.user_code(), recorder.watch_code():
                result = recorder.context.run(_result, fn, *copies)
    except Exception as error:
        if tracer.refusal is None or error is tracer.refusal or isinstance(error, ModuleFallback):
            raise
        raise _located(tracer.refusal) from error  # which it has made something else of
    finally:
        writes += recorder.undo()
    if tracer.partly_eager is not None:
        raise tracer.partly_eager  # the program has caught it
    if tracer.refusal is not None:
        raise _located(tracer.refusal)
    return result, writes


def _finish(
    tracer: Tracer, recorder: ReadRecorder, result: Any, writes: list[Any], aliases: dict[int, Any], independent: bool
) -> Epilogue | None:
    """Ends the trace with the program's result or, where it has effects, with the tensors that the epilogue needs."""
    epilogue, values = None, result
    if Epilogue.needed(result, writes):
        epilogue = Epilogue(recorder.reached, writes, aliases)
        # A transform makes something else of the result, but does not touch what the program keeps.
        epilogue.build(result, whole=independent)
        values = tuple(epilogue.tensors)
        if independent:
            tracer.trace.info["effects"] = len(values)
            values = (result, *values)
    tracer.finish(values)
    if not independent:
        tracer.leaves.stay_inside(tracer, tensors_in(values), hooked)
    if epilogue is not None:
        epilogue.release()
    return epilogue


def _result(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return fn(*args, **kwargs)
    except TracingError as error:
        raise _located(error) from error.__cause__
    except RuntimeError as error:
        if "TorchScript interpreter" not in str(error):
            raise
        fall_back("the program calls what torch.jit has compiled, into which nobody sees")


def _located(error: Exception) -> Exception:
    """An error with the line of the user's that it comes from."""
    annotate(error, _line_of(error))
    return error


def _line_of(error: BaseException) -> SourceLine | None:
    """The user's line that an error comes from."""
    found, entry = None, error.__traceback__
    while entry is not None:
        found = line_of_user(entry.tb_frame.f_code.co_filename, entry.tb_lineno) or found
        entry = entry.tb_next
    return found


def _refuse_overlaps(tracer: Tracer) -> None:
    """A write to one input would have to reach another that has elements in the same places."""
    written = [i for i, x in enumerate(tracer.inputs) if x.handle._storage.written]
    found = overlap([x.tensor for x in tracer.inputs], written) if written else None
    if found is not None:
        one, other = (tracer.inputs[i].proxy.name for i in found)
        raise TracingError(
            f"the function writes to {one}, which shares memory with {other}: give each memory of its own (.clone()), "
            "or pass what both are views of and take the views inside"
        )


def _refuse_shared_writes(tracer: Tracer) -> None:
    """A write to one argument would have to reach the others that are the same tensor."""
    for x in tracer.inputs:
        shared = [y.proxy.name for y in tracer.inputs if y.tensor is x.tensor]
        if len(shared) > 1 and x.handle._storage.written:
            raise TracingError(
                f"gradients are taken for the arguments {', '.join(shared)}, which are one tensor, and the function "
                f"writes to {x.proxy.name}: give each a tensor of its own"
            )


def _refuse_leftovers(tracer: Tracer) -> None:
    """A handle that is alive after the run was stored somewhere, where it would stay without ever having data."""

    def left() -> list[Any]:
        own = {id(x.handle) for x in tracer.inputs}
        return [h for h in tracer.handles if id(h) not in own]

    if left():
        gc.collect()  # one may be part of a cycle that nobody can reach
    found = left()
    if found:
        raise TracingError(
            f"the traced function stored a tensor ({found[0]!r}) in {describe_referrer(found[0], [found])}, which "
            "outlives the call. Return it from the function instead, or keep it as an attribute of the module"
        )


def trace_function(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trace:
    """The trace of `fn` under its own name, before any executor has been chosen."""
    return acquire(fn, args, kwargs, name=trace_name(fn), executors=()).computation
