# SPDX-License-Identifier: Apache-2.0
"""Acquisition: one native run of a program gives its computation trace and its prologue."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core import pytree
from thunder.core.errors import TracingError
from thunder.core.trace import Trace
from thunder.extend import Executor
from thunder.frontend.effects import ModuleState
from thunder.frontend.entry_points import replaced_entry_points
from thunder.frontend.environment import Environment
from thunder.frontend.lock import tracing_lock
from thunder.frontend.prologue import Arguments, build_prologue
from thunder.frontend.tracer import Lifted, Tracer

__all__ = ["Acquired", "acquire", "parameter_names", "trace_name"]


class Acquired:
    """What acquisition found: the traces, the real inputs of this call, and why it may not be kept."""

    def __init__(self, computation: Trace, inputs: list[Lifted], output: _Output, effects: ModuleState):
        self.computation = computation
        self.inputs = inputs
        self.output = output
        self.effects = effects
        self.prologue: Trace | None = None
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
) -> Acquired:
    """Runs `fn` once on handles and returns what was recorded. The user's objects are left as they were.

    With `independent` each argument is an input of its own, though the same tensor may be given for several of them: what
    gradients are taken for.
    """
    with tracing_lock:
        environment = Environment(fn)
        arguments = Arguments(args, kwargs, parameter_names(fn))
        tracer = Tracer(name, executors)
        tracer.name_lifted(environment.name_of)
        effects = ModuleState(m for _, m, _ in environment.modules)
        output = _run(fn, tracer, arguments, effects, independent)
        _refuse_leftovers(tracer)
        if independent:
            _refuse_shared_writes(tracer)
        acquired = Acquired(tracer.trace, tracer.inputs, output, effects)
        given = {id(leaf) for leaf in arguments.leaves}
        acquired.uncacheable = (
            tracer.uncacheable
            or arguments.unguardable()
            or environment.unreachable(x.tensor for x in tracer.inputs if id(x.tensor) not in given)
            or effects.unguardable()
        )
        if acquired.uncacheable is None:
            written = [i for i, x in enumerate(tracer.inputs) if x.handle._storage.written]
            acquired.prologue = build_prologue(arguments, tracer.inputs, environment, written)
    return acquired


def _run(
    fn: Callable[..., Any], tracer: Tracer, arguments: Arguments, effects: ModuleState, independent: bool
) -> _Output:
    """The native run. No handle of it outlives this function but those of the inputs."""
    leaves = [
        tracer.add_input(leaf, name, independent=independent) if isinstance(leaf, torch.Tensor) else leaf
        for leaf, name in zip(arguments.leaves, arguments.names)
    ]
    call_args, call_kwargs = pytree.tree_unflatten(leaves, arguments.structure)
    with effects.restored(), replaced_entry_points(tracer), tracer.user_code():
        result = fn(*call_args, **call_kwargs)
    extra = effects.take_tensors()
    output = _Output(result, extra)
    tracer.finish(result if output.structure is None else (*output.tensors(result), *extra))
    return output


class _Output:
    """How the user's result is made of what the program returns.

    A result of tensors and plain values in tuples, lists and dicts is what the program returns, and `structure` is None. Else
    the program returns the tensors, and after them those that effects assign.
    """

    def __init__(self, result: Any, extra: Sequence[Any]):
        self.structure: Any = None
        self.extra = len(extra)
        if extra or not _is_plain(result):
            leaves, self.structure = pytree.tree_flatten(result)
            self.places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
            self.constants = [None if isinstance(x, torch.Tensor) else x for x in leaves]

    def tensors(self, result: Any) -> list[torch.Tensor]:
        """The tensors of a result, in order."""
        return [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]

    def rebuild(self, values: Any) -> tuple[Any, Sequence[Any]]:
        """The user's result, and the tensors for the effects."""
        if self.structure is None:
            return values, ()
        leaves = list(self.constants)
        for i, value in zip(self.places, values):
            leaves[i] = value
        return pytree.tree_unflatten(leaves, self.structure), values[len(self.places) :]


def _is_plain(x: Any) -> bool:
    """Whether a trace can return it as it is: tensors, numbers, strings and None in tuples, lists and dicts."""
    kind = type(x)
    if kind in (tuple, list):
        return all(_is_plain(i) for i in x)
    if kind is dict:
        return all(type(k) in (str, int) and _is_plain(v) for k, v in x.items())
    return isinstance(x, torch.Tensor) or kind in (bool, int, float, str, type(None))


def _refuse_shared_writes(tracer: Tracer) -> None:
    """A write to one argument would have to reach the others that are the same tensor."""
    for x in tracer.inputs:
        shared = [y.proxy.name for y in tracer.inputs if y.tensor is x.tensor]
        if len(shared) > 1 and x.handle._storage.written:
            raise TracingError(
                f"gradients are taken for the arguments {', '.join(shared)}, which are one tensor, and the function writes to "
                f"{x.proxy.name}: give each a tensor of its own"
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
            f"the traced function stored a tensor ({found[0]!r}) in {_holder(found[0])}, which outlives the call. Return it from the "
            "function instead, or keep it as an attribute of the module"
        )


def _holder(handle: Any) -> str:
    for holder in gc.get_referrers(handle):
        if isinstance(holder, (list, dict, set, tuple)):
            owners = [o for o in gc.get_referrers(holder) if getattr(o, "__dict__", None) is holder]
            if owners:
                return f"an attribute of a {type(owners[0]).__name__}"
            if isinstance(holder, dict) and "__name__" in holder:
                return f"the globals of {holder['__name__']}"
        if type(holder).__name__ not in ("frame", "list_iterator"):
            return f"a {type(holder).__name__}"
    return "a place that cannot be named"


def trace_function(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trace:
    """The trace of `fn` under its own name, before any executor has been chosen."""
    return acquire(fn, args, kwargs, name=trace_name(fn), executors=()).computation
