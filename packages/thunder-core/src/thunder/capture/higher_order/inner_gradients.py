# SPDX-License-Identifier: Apache-2.0
"""`torch.autograd.grad` inside a traced program, e.g. for forces of an energy or for gradient penalties.

thunder differentiates the recorded operations in place, starting with the first that uses the inputs. New operations
replace them: these have results with the same names, and also return the values that backward needs. The backward
operations follow. They are ordinary operations, so with `create_graph=True` gradients propagate through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.phase import TracerPhase
from thunder.capture.base.user_lines import user_line
from thunder.capture.dispatch.registry import handles
from thunder.capture.higher_order.derivatives import one_of
from thunder.capture.higher_order.gradient_hooks import hooked_gradient
from thunder.capture.tensors.tracer import Tracer, needs_grad
from thunder.core import prims
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.errors import TracingError
from thunder.core.prims.autodiff import zeros_of
from thunder.core.proxies import TensorProxy
from thunder.core.state import SourceLine
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.executors.torchex.base import ex as torch_executor
from thunder.extend import compilation
from thunder.passes.autodiff import JointTrace
from thunder.passes.forward import part, pulled_back
from thunder.passes.gradient_paths import gradient_path
from thunder.plugins import transformed

__all__ = ["differentiated", "flowing_gradients", "gradients"]


@handles(torch.autograd.grad)
def gradients(
    tracer: Tracer,
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    """Handle `torch.autograd.grad` of tensors in the program that is being traced."""
    if is_grads_batched:
        fall_back("the program calls torch.autograd.grad with is_grads_batched=True")
    wrt = _listed(inputs)
    flowing = flowing_gradients(tracer, outputs, grad_outputs)
    if not all(map(needs_grad, wrt)):
        raise RuntimeError("One of the differentiated Tensors does not require grad")
    values = [_value(tracer, x) for x in wrt]
    _check_outside(tracer, [value for value, _ in flowing], values)
    found = _hooked(tracer, values, differentiated(tracer, flowing, values, freed=False))
    unused = next((i for i, g in enumerate(found) if g is None), None)
    if unused is not None and not allow_unused and not materialize_grads:
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if "
            f"this is the desired behavior. (in {user_line()})"
        )
    with tracer.recording():
        if materialize_grads:
            found = [zeros_of(p) if g is None else g for p, g in zip(values, found)]
        if not create_graph:
            found = [None if g is None else prims.detach(g) for g in found]
    return tuple([None if g is None else tracer.wrap(g, requires_grad=create_graph) for g in found])


def _listed(x: Any) -> list[Any]:
    return [x] if isinstance(x, torch.Tensor) else list(x)


def flowing_gradients(tracer: Tracer, outputs: Any, grad_outputs: Any) -> list[tuple[TensorProxy, TensorProxy]]:
    """Return the values of `outputs` with their cotangents, or raise torch's errors for invalid arguments."""
    results = _listed(outputs)
    given = [None] * len(results) if grad_outputs is None else _listed(grad_outputs)
    _check(results, given)
    return [
        (_value(tracer, x), _cotangent(tracer, x, g)) for x, g in zip(results, given) if g is not None or needs_grad(x)
    ]


def _check(results: Sequence[Any], given: Sequence[Any]) -> None:
    """Raise torch's errors for invalid arguments."""
    if len(given) != len(results):
        raise RuntimeError(f"got {len(results)} tensors and {len(given)} gradients")
    for i, (x, g) in enumerate(zip(results, given)):
        if not needs_grad(x):
            raise RuntimeError(f"element {i} of tensors does not require grad and does not have a grad_fn")
        if g is None and x.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        if g is not None and g.shape != x.shape:
            raise RuntimeError(
                f"Mismatch in shape: grad_output[{i}] has a shape of {g.shape} and output[{i}] has a shape of "
                f"{x.shape}."
            )


def _value(tracer: Tracer, x: Any) -> TensorProxy:
    with tracer.recording():
        value: TensorProxy = tracer.unwrap(x)
        return value


def _cotangent(tracer: Tracer, x: Any, given: Any) -> TensorProxy:
    if given is not None:
        return _value(tracer, given)
    with tracer.recording():
        value = tracer.unwrap(x)
        one: TensorProxy = prims.reshape(one_of(value), value.shape) if value.ndim else one_of(value)
        return one


def differentiated(
    tracer: Tracer, flowing: Sequence[tuple[Any, Any]], wrt: Sequence[TensorProxy], *, freed: bool
) -> list[Any]:
    """Return the gradients of `wrt`. `flowing` contains pairs of a value and its cotangent.

    `freed` says that the operations are not differentiated again. Otherwise, only the torch executor's gradients are
    used: they are torch's own kernels, and can be differentiated.
    """
    *around, operations = tracer.trace.scopes
    if freed:
        operations[:] = _rewritten_by_plugins(tracer, operations)
    names = {p.name for p in wrt}
    _check_reach(around, names, {value.name for value, _ in flowing}, operations)
    first = next((i for i, op in enumerate(operations) if not names.isdisjoint(op.arg_names)), len(operations))
    path = gradient_path(operations[first:], [value.name for value, _ in flowing])
    with tracer.recording():
        with tracer.trace.scope() as recorded:
            executors = [ex for ex in tracer.executors if freed or ex.is_fallback]
            joint = JointTrace(part(operations[first:]), wrt, executors, into=tracer.trace, path=path.values)
        operations[first:] = [*recorded, *_aliases(joint)]
        tracer.forget_producers()
        count = len(operations)
        found = pulled_back(joint, flowing, wrt)
    made = frozenset(name for op in operations[count:] for name in op.out_names)
    tracer.trace.info.setdefault("backward", []).append(made)
    return found


def _rewritten_by_plugins(tracer: Tracer, operations: list[BoundSymbol]) -> list[BoundSymbol]:
    """Return the operations after the plugins' passes that run before differentiation, e.g. for causal masks."""
    trace = part(operations)
    trace.names = set(tracer.trace.names)
    with TracerPhase():  # passes of plugins are no code of the program
        for found in transformed(trace, "before_grad", options=compilation().options, executors=tracer.executors):
            trace = found
    made = {name for op in trace.bound_symbols for name in op.out_names}
    if not made.issuperset(name for op in operations for name in op.out_names):
        return operations  # a value that the program may still read is gone
    tracer.trace.names |= trace.names
    return trace.bound_symbols


def _hooked(tracer: Tracer, wrt: Sequence[TensorProxy], found: Sequence[Any]) -> list[Any]:
    """Apply the gradient hooks of the tensors `wrt` to their gradients `found`."""
    out: dict[str, Any] = {}
    with tracer.recording():
        for p, g in zip(wrt, found):
            if p.name not in out:
                out[p.name] = g if g is None else hooked_gradient(tracer, p, g)
    return [out[p.name] for p in wrt]


def _aliases(joint: JointTrace) -> list[BoundSymbol]:
    """Bind names of the program to the values that replace them in the differentiated operations."""
    found: list[BoundSymbol] = []
    for name, other in joint.env.items():
        if isinstance(other, TensorProxy):
            found.append(BoundSymbol(prims.alias, (other,), {}, TensorProxy(like=other, name=name)))
    return found


def _check_reach(
    around: Sequence[Sequence[BoundSymbol]], wrt: set[str], results: set[str], operations: Sequence[BoundSymbol]
) -> None:
    """Raise if results depend on `wrt` through operations outside of the function that is being transformed."""
    moving = set(wrt)
    for scope in around:
        for op in scope:
            if op.sym.differentiable and not moving.isdisjoint(op.arg_names):
                moving.update(p.name for p in op.flat_outs if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype))
    moving -= wrt
    read = results.union(*(op.arg_names for op in operations)) if operations else results
    if not moving.isdisjoint(read):
        raise TracingError(
            "torch.autograd.grad inside a transformed function (thunder.grad, vmap, checkpoint) needs the gradient of "
            f"operations before that function, in {user_line()}. Move these operations into the transformed function"
        )


# -- inputs that depend on each other ---------------------------------------------------------------------------------
def _check_outside(tracer: Tracer, results: Sequence[TensorProxy], wrt: Sequence[TensorProxy]) -> None:
    """Check that no input was computed from another input before the call, because gradients would miss that path."""
    asked = [x for x in tracer.inputs if any(x.proxy.name == p.name for p in wrt)]
    if not asked:
        return
    reached = {p.name for p in results}
    for op in reversed([op for scope in tracer.trace.scopes for op in scope]):
        if op.sym.differentiable and not reached.isdisjoint(op.out_names):
            reached.update(op.arg_names)
    made = [
        x for x in tracer.inputs
        if x.proxy.name in reached and x.tensor.requires_grad and not tracer.is_leaf(x.tensor)
    ]  # fmt: skip
    if made and (len(asked) > 1 or made[0] is not asked[0] or len(made) > 1):
        with tracer.recording():
            check_apart(tuple(x.proxy for x in made), tuple(x.proxy for x in asked), user_line())


def _apart_meta(made: Sequence[TensorProxy], asked: Sequence[TensorProxy], line: SourceLine | None) -> None:
    """Raise if one of the tensors `made` depends on a tensor in `asked`, whose gradient is requested."""


def _apart(made: Sequence[torch.Tensor], asked: Sequence[torch.Tensor], line: SourceLine | None) -> None:
    """Search torch's graph of `made` for tensors in `asked`, and raise if one is found."""
    nodes = {x.grad_fn for x in asked} - {None}
    for x in made:
        seen: set[Any] = set()
        stack: list[Any] = [x.grad_fn]
        while stack:
            for node, _ in stack.pop().next_functions:
                if node is None or node in seen:
                    continue
                if node in nodes or any(getattr(node, "variable", None) is y for y in asked):
                    raise TracingError(
                        f"torch.autograd.grad inside a traced function, in {line}: one input of the function was "
                        "computed from another input, whose gradient is requested. Compute it inside the function, or "
                        "call torch.autograd.grad outside of the function"
                    )
                seen.add(node)
                stack.append(node)


check_apart = Symbol(
    "check_apart", _apart_meta, id="check_apart", is_prim=True, executor=torch_executor, fn=_apart,
    tags=(OpTags.SIDE_EFFECT, OpTags.NON_DIFFERENTIABLE),
)  # fmt: skip
