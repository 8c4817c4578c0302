# SPDX-License-Identifier: Apache-2.0
"""`backward()` inside a traced program, and the `.grad` of leaf tensors.

`.grad` is an attribute of a leaf's handle, like the attributes that user code sets on tensors: its first read is a
guarded read of the caller's tensor, and the epilogue assigns its last value. `backward()` computes the same gradients
as `torch.autograd.grad` with respect to all leaves of the graph, and adds them to `.grad` by ordinary operations. A
tensor that is already there is written in place, as in eager mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back
from thunder.capture.base.hook_sources import HasLeafHooks
from thunder.capture.base.sources import Attr
from thunder.capture.base.user_lines import line_of_user
from thunder.capture.dispatch.dtensors import dtensor, local_tensor
from thunder.capture.dispatch.registry import handles, handles_property
from thunder.capture.higher_order.data_parallel import check_reductions, reduce_gradients
from thunder.capture.higher_order.fully_sharded import accumulate_whole, finish_backward, held_units
from thunder.capture.higher_order.inner_gradients import differentiated, flowing_gradients
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.leaf_tensors import set_requires_grad
from thunder.capture.tensors.tracer import Tracer
from thunder.clang import maybe_convert_to_dtype
from thunder.core import prims
from thunder.core.langctx import set_langctx
from thunder.core.prims.autodiff import zeros_of
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import OpTags, Symbol
from thunder.executors.torchex.base import ex as torch_executor
from thunder.passes.gradient_paths import GradientPath, add_paths_through, depending_on, gradient_path
from thunder.runtime.autograd import leaf_gradients
from thunder.torch import private

__all__ = ["detach_freed"]


# -- .grad ------------------------------------------------------------------------------------------------------------
@handles_property("grad")
def _get_grad(tracer: Tracer, x: Any) -> Any:
    if _is_converted_to_itself(tracer, x):
        return None
    return _grad_of(tracer, tracer.handle_of(x))  # an input from here on, even if it was not used before


def _grad_of(tracer: Tracer, handle: Handle) -> Handle | None:
    own = handle.__dict__
    if "grad" in own:
        return own["grad"]  # type: ignore[no-any-return]
    lifted = tracer.input_with(handle)
    found = None if lifted is None else tracer.guarded_of(lifted.tensor, Attr, "grad")
    return None if found is None else tracer.handle_of(found)


def _is_converted_to_itself(tracer: Tracer, x: Any) -> bool:
    """Check whether `module.to(…)` reads `grad` of a parameter that needs no conversion, e.g. has the right dtype."""
    converted = private.parameter_being_converted(lambda filename: line_of_user(filename, 0) is not None)
    return isinstance(converted, torch.Tensor) and tracer.handle_of(converted) is tracer.handle_of(x)


@handles_property("grad", assigned=True)
def _set_grad(tracer: Tracer, target: Any, value: Any) -> None:
    handle = tracer.handle_of(target)
    if tracer.undo_later is None or tracer.parts or (tracer.input_with(handle) is None and handle not in tracer.leaves):
        fall_back("the program sets the .grad of a tensor that it computes")
    new = None if value is None else tracer.handle_of(value)
    if new is not None and (
        new is handle
        or new._needs_grad
        or new._value.shape != handle._value.shape
        or new._value.dtype is not handle._value.dtype
        or new._value.device is not handle._value.device
    ):
        fall_back("the program sets the .grad of a tensor to one that has other metadata or requires grad")
    handle.__dict__["grad"] = new


# -- backward() -------------------------------------------------------------------------------------------------------
@handles(torch.Tensor.backward)
def _backward(
    tracer: Tracer, x: Any, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
    inputs: Any = None,
) -> None:  # fmt: skip
    _accumulate(tracer, x, gradient, retain_graph, create_graph, inputs)


@handles(torch.autograd.backward)
def _backward_of_several(
    tracer: Tracer, tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None,
    create_graph: bool = False, grad_variables: Any = None, inputs: Any = None,
) -> None:  # fmt: skip
    if grad_variables is not None:
        fall_back("the program passes grad_variables to backward()")
    _accumulate(tracer, tensors, grad_tensors, retain_graph, create_graph, inputs)


def _accumulate(
    tracer: Tracer, outputs: Any, cotangents: Any, retain_graph: bool | None, create_graph: bool, inputs: Any
) -> None:
    """Add the gradients of leaf tensors to their `.grad`."""
    if create_graph:
        fall_back("the program calls backward(create_graph=True)")
    if tracer.undo_later is None or tracer.parts or tracer.backwards or len(tracer.trace.scopes) > 1:
        fall_back("the program calls backward() in a function that is transformed, or in a part of the program")
    check_reductions(tracer)
    flowing = flowing_gradients(tracer, outputs, cotangents)
    path = gradient_path(tracer.trace.bound_symbols, [value.name for value, _ in flowing])
    leaves = [leaf for leaf in _leaves(tracer) if leaf[1].name in path.values]
    graph = path.results & depending_on(path.operations, [value.name for _, value in leaves])
    _refuse_freed(tracer, graph)
    if inputs is not None:
        wanted = [tracer.handle_of(x) for x in ([inputs] if isinstance(inputs, torch.Tensor) else inputs)]
        known = [handle for handle, _ in leaves]
        if not wanted or any(not any(x is handle for handle in known) for x in wanted):
            fall_back("the program calls backward() with inputs that are not leaves of the graph")
        leaves = [leaf for leaf in leaves if any(leaf[0] is x for x in wanted)]
    _check_leaves(tracer, leaves, path)
    # Autograd adds a gradient as soon as it is complete: a leaf's gradient after the first use of the leaf. The bias of
    # `linear` comes before the weight, because torch computes `addmm(bias, input, weight.t())`.
    first: dict[str, tuple[int, int]] = {}
    for i, op in enumerate(path.operations):
        for j, name in enumerate(op.arg_names):
            first.setdefault(name, (-i, -j if op.sym is ltorch.linear else j))
    held = held_units(tracer, path.values)
    if held:
        if inputs is not None:
            fall_back("the program calls backward() with inputs, and a sharded module does not reduce its gradients")
        shards = {id(p.sharded_param) for unit in held for p in unit.unit.fsdp_params}
        reduced = {id(shard.local) for key, shard in tracer.communication.shards.items() if key in shards}
        names = {x.proxy.name for x in tracer.inputs if id(x.handle) in reduced}
        leaves = [leaf for leaf in leaves if leaf[1].name not in names]
    leaves.sort(key=lambda leaf: first.get(leaf[1].name, (0, 0)))
    whole = [[x._value for x in unit.whole if x._value.name in unit.trained] for unit in held]
    values = [value for _, value in leaves] + [value for values in whole for value in values]
    finish_backward(tracer, path.values)
    gradients = differentiated(tracer, flowing, values, freed=not retain_graph)
    if not retain_graph:
        tracer.freed.update(graph)
    with tracer.recording(), set_langctx("torch"):
        found = [zeros_of(value) if g is None else prims.detach(g) for value, g in zip(values, gradients)]
        in_use = _memory_in_use(tracer)
        for (handle, value), gradient in zip(leaves, found):
            _add(tracer, handle, value, maybe_convert_to_dtype(gradient, value.dtype), in_use)
    parts = iter(found[len(leaves) :])
    for unit, values in zip(held, whole):
        with tracer.recording():
            handles_ = [tracer.wrap(next(parts)) for _ in values]
        for parameter, gradient in accumulate_whole(tracer, unit, handles_):
            with tracer.recording(), set_langctx("torch"):
                local = tracer.communication.shards[id(parameter)].local._value
                _add(tracer, tracer.handle_of(parameter), local, aliasing.read(gradient), _memory_in_use(tracer))
    # DDP's own hooks on autograd's nodes, which Python cannot see, do nothing: its forward has not prepared them.
    reduce_gradients(tracer, [handle for handle, _ in leaves], lambda leaf: _grad_of(tracer, leaf))


def _leaves(tracer: Tracer) -> Iterator[tuple[Handle, TensorProxy]]:
    """Yield the leaves of autograd's graph, with the values from which gradients flow to them."""
    sharded = {id(shard.local): shard.parameter for shard in tracer.communication.shards.values()}
    receivers = [x for handles in tracer.communication.receivers.values() for x in handles]
    for lifted in list(tracer.inputs):
        if lifted.handle._needs_grad and not any(lifted.handle is x for x in receivers):
            parameter = sharded.get(id(lifted.handle))
            yield lifted.handle if parameter is None else tracer.handle_of(parameter), lifted.proxy
    yield from tracer.leaves.alive()


def _check_leaves(tracer: Tracer, leaves: Sequence[tuple[Handle, TensorProxy]], path: GradientPath) -> None:
    """Fall back if eager mode would run hooks, go on outside of the program, or find a leaf changed."""
    receivers = [x for handles in tracer.communication.receivers.values() for x in handles]
    shards = [*[shard.local for shard in tracer.communication.shards.values()], *receivers]
    for lifted in tracer.inputs:
        if any(lifted.handle is shard for shard in shards):
            continue
        if lifted.handle._needs_grad and lifted.proxy.name in path.values and not tracer.is_leaf(lifted.tensor):
            fall_back("the program calls backward() on a value that depends on tensors computed before the call")
    for handle, value in leaves:
        given = tracer.input_with(handle)
        if given is not None and tracer.guarded_of(given.tensor, HasLeafHooks):
            fall_back("the program calls backward(), and a leaf tensor has gradient hooks")
        if ("hooked", value.name) in tracer.unknown:
            fall_back("the program calls backward(), and a leaf tensor has gradient hooks")
        if not path.read.isdisjoint(_old_values(tracer, handle)):
            fall_back("the program writes to a leaf tensor, and then calls backward() through its old value")


def _old_values(tracer: Tracer, handle: Handle) -> set[str]:
    """Return the values that a leaf had before it was written without autograd's knowledge."""
    found: set[str] = set()
    own = handle if handle._local is None else handle._local
    op = tracer.producer(own._storage.value)
    while op is not None and op.sym is prims.assign_value:
        found.add(op.args[0].name)
        op = tracer.producer(op.args[0])
    return found


def _refuse_freed(tracer: Tracer, results: set[str]) -> None:
    if not tracer.freed.isdisjoint(results):
        fall_back("the program calls backward() a second time through a part of the graph")


def _memory_in_use(tracer: Tracer) -> set[str]:
    """Return the names of the values whose memory tensors of the program use."""
    return {*aliasing.storages_by_memory(tracer.handles, tracer.producer)}


def _add(tracer: Tracer, leaf: Handle, value: TensorProxy, gradient: TensorProxy, in_use: set[str]) -> None:
    """Add a gradient to that of a leaf. `in_use` is the memory of other tensors, now with that of the gradient."""
    present = _grad_of(tracer, leaf)
    layout = None if value.dtensor_layout is not None else leaf._value.dtensor_layout
    if present is not None:
        if present._needs_grad:
            fall_back("the program calls backward(), and the .grad of a leaf tensor requires grad")
        present = present if layout is None else local_tensor(tracer, present, layout)
        aliasing.write(present, aliasing.read(present) + gradient, "backward")
        return
    memory = aliasing.memory_of(gradient, tracer.producer)
    shared = tracer.producer(gradient) is None or memory in in_use
    in_use.add(memory)
    new = new_gradient(gradient, value, shared)
    found = tracer.wrap(new)
    leaf.__dict__["grad"] = found if layout is None else dtensor(tracer, found, layout)


def _new_meta(gradient: TensorProxy, leaf: TensorProxy, shared: bool) -> TensorProxy:
    """Return the first gradient of a leaf, with the strides of the leaf and with memory of its own."""
    return TensorProxy(like=gradient)


new_gradient = Symbol(
    "new_gradient", _new_meta, id="new_gradient", is_prim=True, executor=torch_executor,
    fn=leaf_gradients.new_gradient, tags=(OpTags.NON_DIFFERENTIABLE, OpTags.VIEW_OP),
)  # fmt: skip


# -- results whose graph is freed -------------------------------------------------------------------------------------
def detach_freed(tracer: Tracer) -> None:
    """Detach tensors whose graph `backward()` has freed. The epilogue gives results a graph without saved values."""
    if not tracer.freed:
        return
    given = {id(lifted.handle) for lifted in tracer.inputs} | {id(leaf) for leaf, _ in tracer.leaves.alive()}
    through, count = set[str](), 0  # the values whose path is partly freed, of the first operations
    for x in list(tracer.handles):
        if not x._needs_grad or id(x) in given:
            continue
        with tracer.proxies(), set_langctx("torch"):
            value = aliasing.read(x)
            operations = tracer.trace.bound_symbols
            add_paths_through(tracer.freed, through, operations[count:])
            count = len(operations)
            if value.name not in through:
                continue
            x._freed = "whole" if value.name in tracer.freed and not x._views else "part"
            set_requires_grad(x, False)
            if x._local is None:  # a DTensor follows its local tensor
                x._value = prims.detach(value)
