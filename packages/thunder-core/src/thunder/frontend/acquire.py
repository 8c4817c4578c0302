# SPDX-License-Identifier: Apache-2.0
"""Acquisition: one native run of a program gives its computation trace and its prologue."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core import pytree
from thunder.core.trace import Trace
from thunder.extend import Executor
from thunder.frontend.effects import ModuleState
from thunder.frontend.entry_points import replaced_entry_points
from thunder.frontend.environment import Environment
from thunder.frontend.lock import tracing_lock
from thunder.frontend.prologue import Arguments, build_prologue
from thunder.frontend.tracer import Lifted, Tracer

__all__ = ["Acquired", "acquire", "parameter_names"]


class Acquired:
    """What acquisition found: the traces, the real inputs of this call, and why it may not be kept."""

    def __init__(
        self, computation: Trace, prologue: Trace | None, inputs: list[Lifted], rebuild: Callable[[Any], Any] | None,
        uncacheable: str | None, effects: ModuleState, arguments: int,
    ):  # fmt: skip
        self.computation = computation
        self.prologue = prologue
        self.inputs = inputs
        self.rebuild = rebuild
        self.uncacheable = uncacheable
        self.effects = effects
        self.arguments = arguments  # how many of the inputs are tensors among the arguments


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
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, name: str, executors: Sequence[Executor]
) -> Acquired:
    """Runs `fn` once on handles and returns what was recorded. The user's objects are left as they were."""
    with tracing_lock:
        environment = Environment(fn)
        arguments = Arguments(args, kwargs, parameter_names(fn))
        tracer = Tracer(name, executors)
        tracer.name_lifted(environment.name_of)
        leaves = [
            tracer.add_input(leaf, leaf_name) if isinstance(leaf, torch.Tensor) else leaf
            for leaf, leaf_name in zip(arguments.leaves, arguments.names)
        ]
        given = len(tracer.inputs)
        call_args, call_kwargs = pytree.tree_unflatten(leaves, arguments.structure)
        effects = ModuleState(m for _, m, _ in environment.modules)
        with effects.restored(tracer), replaced_entry_points(tracer), tracer.user_code():
            result = fn(*call_args, **call_kwargs)
        output, rebuild = _output(tracer, result, effects)
        tracer.finish(output)
        tensors = [x.tensor for x in tracer.inputs]
        uncacheable = (
            arguments.unguardable() or environment.unreachable(iter(tensors[given:])) or effects.unguardable()
        )
        written = [i for i, x in enumerate(tracer.inputs) if x.handle._storage.written]
        prologue = None if uncacheable else build_prologue(arguments, tracer.inputs, environment, written)
        inputs, tracer.inputs = tracer.inputs, []
    return Acquired(tracer.trace, prologue, inputs, rebuild, uncacheable, effects, given)


def _output(tracer: Tracer, result: Any, effects: ModuleState) -> tuple[Any, Callable[[Any], Any] | None]:
    """The output as a trace can return it, and how the user's result is made of it (None: it is the result)."""
    extra = effects.handles()
    if not extra and _printable(result):
        return result, None
    leaves, structure = pytree.tree_flatten(result)
    positions = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    tensors = tuple(leaves[i] for i in positions)
    constants = [None if isinstance(x, torch.Tensor) else x for x in leaves]

    def rebuild(values: Any) -> Any:
        filled = list(constants)
        for i, value in zip(positions, values):
            filled[i] = value
        return pytree.tree_unflatten(filled, structure)

    return (*tensors, *extra), rebuild


def _printable(x: Any) -> bool:
    """Whether a trace can return it as it is: tensors, numbers, strings and None in tuples, lists and dicts."""
    kind = type(x)
    if kind in (tuple, list):
        return all(_printable(i) for i in x)
    if kind is dict:
        return all(type(k) in (str, int) and _printable(v) for k, v in x.items())
    return isinstance(x, torch.Tensor) or kind in (bool, int, float, str, type(None))


def trace_function(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trace:
    """The trace of `fn` under its own name, before any executor has been chosen."""
    return acquire(fn, args, kwargs, name=trace_name(fn), executors=()).computation

