# SPDX-License-Identifier: Apache-2.0
"""Calls of a jitted function with transforms inside another traced function: only its subtrace is transformed.

Closed-over tensors and parameters of the inner function become inputs of the subtrace. A subtrace supports only the
`before_grad` phase of a transform. A transform with other phases raises an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.capture.base.new_objects import collect_garbage
from thunder.capture.base.phase import TracerPhase
from thunder.capture.higher_order.subtrace import Subtrace, tracer_here
from thunder.core import prims, pytree
from thunder.core.errors import UnsupportedError
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, proxies_in
from thunder.core.trace import Trace
from thunder.transforms.base import PHASES, PassContext, TraceInto, Transform

__all__ = ["call_transformed"]


def call_transformed(
    fn: Callable[..., Any],
    transforms: Sequence[Transform],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    trace_into: TraceInto,
) -> Any:
    """Trace `fn` into a subtrace, apply the transforms to the subtrace, and return its results."""
    _check(transforms, name)
    tracer = tracer_here(name)
    part = Subtrace(tracer, name, constant=False)
    leaves, structure = pytree.tree_flatten((args, kwargs))
    inner = [part.stand_in(x) if isinstance(x, torch.Tensor) else x for x in leaves]
    inner_args, inner_kwargs = pytree.tree_unflatten(inner, structure)
    with contextlib.ExitStack() as around:
        for transform in transforms:
            with TracerPhase():  # contexts of transforms are no code of the program
                around.enter_context(transform.tracing())
        result = part.run(fn, *inner_args, **inner_kwargs)
    if part.written() or part.written_outside():
        raise UnsupportedError(
            f"{name} has transforms, is called by another traced function, and writes to memory. Return the new value "
            "instead, or pass the transforms to the thunder.jit of the calling function"
        )
    outputs, out_structure = pytree.tree_flatten(result)
    tensors = [x for x in outputs if isinstance(x, torch.Tensor)]
    values = part.read(tensors)
    _refuse_kept(part, tensors, name)
    each = iter(values)
    output = pytree.tree_unflatten([next(each) if isinstance(x, torch.Tensor) else x for x in outputs], out_structure)
    program = _program(part, output, tracer.trace)
    context = PassContext("before_grad", {}, tuple(tracer.executors), trace_into)
    for transform in transforms:
        if transform.has("before_grad"):
            program = transform.apply(program, context)
    tracer.trace.names |= program.names  # names that the transforms added must not be used again
    *body, last = program.bound_symbols
    with part.transforming() as recorded:
        recorded += [op for op in body if OpTags.UNPACK_OP not in op.sym.tags]
    new, structure = pytree.tree_flatten(last.args[0])  # a transform may change the returned value
    return pytree.tree_unflatten(part.give(new), structure)


def _refuse_kept(part: Subtrace, results: list[torch.Tensor], name: str) -> None:
    """Raise if user code keeps a tensor of the subtrace that is not returned, because a transform may remove it."""
    known = {id(h) for h in (*part.inputs, *results)}
    kept = [h for h in part.own_handles() if id(h) not in known]
    if kept:
        with part.tracer.recording():  # finalizers of other objects are no part of the program
            collect_garbage()
        kept = [h for h in part.own_handles() if id(h) not in known]
    if kept:
        raise UnsupportedError(
            f"{name} has transforms, is called by another traced function, and keeps a tensor that it created "
            f"({kept[0]!r}) without returning it. Return this tensor as well"
        )


def _check(transforms: Sequence[Transform], name: str) -> None:
    for transform in transforms:
        others = [phase for phase in PHASES if phase != "before_grad" and transform.has(phase)]
        if transform.is_needed and others:
            raise UnsupportedError(
                f"{name} has the transform {transform.name}, which changes whole programs, and is called by another "
                f"traced function. Pass the transform to the thunder.jit of the calling function, or call {name} "
                "outside of it"
            )


def _program(part: Subtrace, output: Any, around: Trace) -> Trace:
    """Return the subtrace as a separate program, with every value that it reads from outside as an input."""
    results = proxies_in(output)
    program = part.to_trace([p for p in results if isinstance(p, TensorProxy)])
    program.names, program._counters = around.names, around._counters
    made: set[str] = set()
    inputs: dict[str, Proxy] = {p.name: p for p in part.values}
    for op in program.bound_symbols:
        inputs.update({p.name: p for p in op.flat_args if p.name not in made and p.name not in inputs})
        made.update(op.out_names)
    inputs.update({p.name: p for p in results if p.name not in made and p.name not in inputs})
    program.args = list(inputs.values())
    program.bound_symbols[:0] = [BoundSymbol(prims.unpack_trivial, (p,), {}, p) for p in program.args]
    program.bound_symbols.append(BoundSymbol(prims.python_return, (output,), {}, None))
    return program
