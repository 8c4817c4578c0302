# SPDX-License-Identifier: Apache-2.0
"""Gradient hooks in a traced program: of modules (`register_full_backward_hook`) and of tensors (`register_hook`).

Hooks are arbitrary user code, so they are not traced. The backward program calls them with the real gradients. In the
trace, a hook is the identity operation `hooked`, whose gradient goes through `run_gradient_hooks`.

If the gradient is differentiated again, torch's autograd records the operations of the hooks, as in eager mode. The
autograd record is a value of the program. Hooks therefore run once, and derivatives of any order go through them.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.hook_sources import HasGradientHooks
from thunder.capture.base.snapshots import cell_value
from thunder.capture.dispatch.registry import handles
from thunder.capture.reads.bytecode import assigned_cells, nested_codes
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.tracer import Tracer, needs_grad
from thunder.core import prims
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.prims import get_grad, put_grad
from thunder.core.proxies import AnyProxy, TensorProxy
from thunder.core.state import state, tracectx
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.executors.torchex.base import ex as torch_executor
from thunder.passes.autodiff import JointTrace

__all__ = ["hooked", "hooked_gradient", "module_hook_class", "register_tensor_hook"]


class Node:
    """A substitute for autograd's node of the identity: its hooks receive and return the gradients of its inputs."""

    def __init__(self, count: int):
        self.count = count
        self.hooks: list[Callable[[Any, Any], Any]] = []

    def register_hook(self, hook: Callable[[Any, Any], Any]) -> None:
        """Add a hook."""
        self.hooks.append(hook)

    def run(self, places: Sequence[int], gradients: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run the hooks on `gradients` of the inputs at `places`, and return the new gradients of these inputs."""
        all_of_them: list[Any] = [None] * self.count
        for i, g in zip(places, gradients):
            all_of_them[i] = g
        for hook in self.hooks:
            found = hook(tuple(all_of_them), tuple(all_of_them))
            if found is not None:
                all_of_them = list(found) if isinstance(found, (tuple, list)) else [found]
        return tuple(
            [torch.zeros_like(g) if all_of_them[i] is None else all_of_them[i] for i, g in zip(places, gradients)]
        )


# -- operations -------------------------------------------------------------------------------------------------------
def _run_meta(node: Node, places: tuple[int, ...], *gradients: TensorProxy) -> Any:
    """Call the hooks of a node with gradients, and return the new gradients."""
    return tuple([TensorProxy(like=g) for g in gradients])


def _run(node: Node, places: tuple[int, ...], *gradients: torch.Tensor) -> Any:
    return node.run(places, gradients)


run_gradient_hooks = Symbol(
    "run_gradient_hooks", _run_meta, id="run_gradient_hooks", is_prim=True, executor=torch_executor, fn=_run,
    tags=(OpTags.SIDE_EFFECT,),
)  # fmt: skip


@run_gradient_hooks.grad
def _(node: Node, places: tuple[int, ...], *gradients: TensorProxy) -> Any:
    *found, record = record_gradient_hooks(node, places, *gradients)
    _put_recorded(record, gradients, found)
    return tuple(found)


class Record:
    """An autograd graph from the tensors `sources` to the tensors `results` that were computed from them."""

    def __init__(self, sources: Sequence[torch.Tensor], results: Sequence[torch.Tensor]):
        self.sources = sources
        self.results = results
        known = set(map(id, sources))
        if any(id(leaf) not in known for leaf in _leaves(results)):
            raise RuntimeError(
                "a gradient hook uses another tensor that requires grad, and the gradient is differentiated again. "
                "Detach that tensor in the hook, or call the function without thunder.jit"
            )


def _leaves(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the leaf tensors that tensors were computed from."""
    found = [t for t in tensors if t.requires_grad and t.grad_fn is None]
    stack: list[Any] = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen: set[Any] = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        stack += [following for following, _ in node.next_functions]
    return found


def _leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().requires_grad_()


def _record_meta(node: Node, places: tuple[int, ...], *gradients: TensorProxy) -> Any:
    """Return the new gradients that the hooks compute, and autograd's record of this computation."""
    return *[TensorProxy(like=g) for g in gradients], _new_record()


def _new_record() -> AnyProxy:
    assert state.trace is not None
    return AnyProxy(name=state.trace.make_name("record"))


def _record(node: Node, places: tuple[int, ...], *gradients: torch.Tensor) -> Any:
    sources = [_leaf(g) for g in gradients]
    with torch.enable_grad():
        found = node.run(places, sources)
    return *[x.detach() for x in found], Record(sources, found)


record_gradient_hooks = Symbol(
    "record_gradient_hooks", _record_meta, id="record_gradient_hooks", is_prim=True, executor=torch_executor,
    fn=_record, tags=(OpTags.SIDE_EFFECT,),
)  # fmt: skip


@record_gradient_hooks.grad
def _(node: Node, places: tuple[int, ...], *gradients: TensorProxy) -> Any:
    *found, record = record_gradient_hooks(node, places, *gradients)
    _put_recorded(record, gradients, found)
    return *found, record


def _put_recorded(record: AnyProxy, sources: Sequence[TensorProxy], results: Sequence[TensorProxy]) -> None:
    """Propagate gradients from the results of a record to its sources."""
    *found, _ = recorded_gradient(record, len(sources), *sources, *[get_grad(x) for x in results])
    for source, gradient in zip(sources, found):
        put_grad(source, gradient)


def _gradient_meta(record: AnyProxy, count: int, *values: TensorProxy) -> Any:
    """Return the gradients of a record's sources, and a record of computing them.

    The first `count` values are the sources, and the other values are the gradients of the results.
    """
    return *[TensorProxy(like=x) for x in values[:count]], _new_record()


def _gradient(record: Record, count: int, *values: torch.Tensor) -> Any:
    given = [_leaf(g) for g in values[count:]]
    pairs = [(x, g) for x, g in zip(record.results, given) if x.requires_grad]
    found: Sequence[Any] = [None] * count
    if pairs:
        with torch.enable_grad():
            results, gradients = zip(*pairs)
            found = torch.autograd.grad(results, record.sources, gradients, allow_unused=True, create_graph=True)
    found = [torch.zeros_like(x) if g is None else g for x, g in zip(record.sources, found)]
    return *[g.detach() for g in found], Record([*record.sources, *given], found)


recorded_gradient = Symbol(
    "recorded_gradient", _gradient_meta, id="recorded_gradient", is_prim=True, executor=torch_executor, fn=_gradient
)


@recorded_gradient.grad
def _(record: AnyProxy, count: int, *values: TensorProxy) -> Any:
    *found, following = recorded_gradient(record, count, *values)
    _put_recorded(following, values, found)
    return *found, following


def _hooked_meta(node: Node, *values: TensorProxy) -> Any:
    """Return the tensors under new names. Their gradients go through the hooks of `node`."""
    return tuple([prims.alias(value) for value in values])


hooked = Symbol("hooked", _hooked_meta, id="hooked")


def _differentiated(bsym: BoundSymbol, joint: JointTrace) -> tuple[list[BoundSymbol], list[BoundSymbol]]:
    node, *values = bsym.args
    places = [i for i, p in enumerate(values) if p.name in joint.tracked and is_inexact_dtype(p.dtype)]
    joint.tracked.update(bsym.output[i].name for i in places)
    with tracectx(joint.trace), joint.trace.scope() as backward:
        gradients = [prims.get_grad(bsym.output[i]) for i in places]
        for i, g in zip(places, run_gradient_hooks(node, tuple(places), *gradients)):
            prims.put_grad(values[i], g)
    return [bsym], backward  # the operation stays, so that differentiating again goes through the hooks again


hooked.joint_rule = _differentiated


def _node_of_meta(x: TensorProxy) -> Any:
    """Return the hooks that an input has when the program runs."""
    assert state.trace is not None
    return AnyProxy(name=state.trace.make_name("hooks"))


def _node_of(x: torch.Tensor) -> Node:
    def retain(gradient: torch.Tensor) -> None:
        gradient = gradient.detach()
        x.grad = gradient.clone() if x.grad is None else x.grad + gradient

    node = Node(1)
    for hook in [*(x._backward_hooks or {}).values(), *([retain] if x.retains_grad else [])]:
        node.register_hook(_of_one(hook))
    return node


def _of_one(hook: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Convert a tensor's hook into a hook of a node with one input."""
    return lambda gradients, _: hook(gradients[0])


node_of_input = Symbol(
    "node_of_input", _node_of_meta, id="node_of_input", is_prim=True, executor=torch_executor, fn=_node_of,
    tags=(OpTags.NON_DIFFERENTIABLE,),
)  # fmt: skip


def hooked_gradient(tracer: Tracer, x: TensorProxy, gradient: Any) -> Any:
    """Apply the hooks of `x` to its gradient. They were registered in the program, or on an input before the call."""
    lifted = tracer.input_of(x)
    node = tracer.unknown.get(("hooked", x.name))
    if lifted is not None and tracer.guarded_of(lifted.tensor, HasGradientHooks):
        node = node_of_input(x)
    return gradient if node is None else run_gradient_hooks(node, (0,), gradient)[0]


def _identity(tracer: Tracer, node: Node, handles: Sequence[Handle]) -> Any:
    with tracer.recording():
        return hooked(node, *[aliasing.read(h) for h in handles])


# -- hooks of modules -------------------------------------------------------------------------------------------------
class TracedHook(BackwardHook):
    """A `BackwardHook` whose node belongs to the trace.

    The compiled program keeps the hook alive, but the hook does not keep its module alive.
    """

    tracer: weakref.ref[Tracer]

    @property
    def module(self) -> Any:
        """The module that the hook belongs to."""
        return self._module()

    @module.setter
    def module(self, value: Any) -> None:
        self._module = weakref.ref(value)

    def _apply_on_tensors(self, fn: Callable[[Any], None], args: Any) -> Any:
        tracer = self.tracer()
        indices = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        if tracer is None or not torch.is_grad_enabled() or not any(needs_grad(args[i]) for i in indices):
            return args, None
        handles = [tracer.handle_of(args[i]) for i in indices]
        node = Node(len(handles))
        fn(node)
        items = list(args)
        values = _identity(tracer, node, handles)
        with tracer.recording():
            for i, handle, value in zip(indices, handles, values):
                if handle._needs_grad:
                    items[i] = tracer.wrap(value, requires_grad=True)
        return (tuple(items) if type(args) is tuple else type(args)(*items)), indices


def module_hook_class() -> Callable[..., Any]:
    """Return the replacement of `torch.utils.hooks.BackwardHook` while a program is traced."""

    def make(module: Any, user_hooks: Any, user_pre_hooks: Any) -> Any:
        tracer: Any = state.frontend
        if tracer is None:
            return BackwardHook(module, user_hooks, user_pre_hooks)
        out = object.__new__(TracedHook)
        out.tracer = weakref.ref(tracer)
        BackwardHook.__init__(out, module, user_hooks, user_pre_hooks)
        return out

    return make


# -- hooks of tensors -------------------------------------------------------------------------------------------------
class Removable:
    """The handle that `register_hook` returns."""

    def __init__(self) -> None:
        self.active = True

    def remove(self) -> None:
        """Remove the hook."""
        self.active = False

    def __enter__(self) -> Removable:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.remove()


_CONSTANTS = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device})


def _has_state(hook: Any) -> bool:
    """Check whether a hook may have state that the call creates: in its closure, or in its default arguments."""
    if type(hook) is functools.partial and not hook.__dict__:
        given = (*hook.args, *hook.keywords.values())
        return _has_state(hook.func) or any(type(x) not in _CONSTANTS for x in given)
    if not isinstance(hook, types.FunctionType):
        return True
    assigned = {name for code in (hook.__code__, *nested_codes(hook.__code__)) for name in assigned_cells(code)}
    cells = dict(zip(hook.__code__.co_freevars, hook.__closure__ or ()))
    values = [cell_value(cell) for cell in cells.values()]
    if "<locals>" in hook.__qualname__:  # else the function exists before the call
        values += [*(hook.__defaults__ or ()), *(hook.__kwdefaults__ or {}).values()]
    return not assigned.isdisjoint(cells) or any(type(x) not in _CONSTANTS for x in values)


@handles(torch.Tensor.register_hook)
def register_tensor_hook(tracer: Tracer, tensor: Any, hook: Callable[[Any], Any]) -> Removable:
    """Handle `tensor.register_hook(hook)`: from here on, the gradient of `tensor` goes through `hook`."""
    handle = tracer.handle_of(tensor)
    if not handle._needs_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    value = aliasing.read(handle)
    removable = Removable()
    if _has_state(hook):
        tracer.uncacheable = "a hook on a tensor is a closure or an object, and the call creates its state"

    def run(gradients: Any, _: Any) -> Any:
        return hook(gradients[0]) if removable.active else None

    known = tracer.unknown.get(("hooked", value.name))
    if known is not None:  # the tensor has hooks, and hooks run in the order of registration
        known.register_hook(run)
        return removable
    shared = handle._views or any(h is not handle and h._storage is handle._storage for h in [*tracer.handles])
    used = any(value.name in op.arg_names for scope in tracer.trace.scopes for op in scope)
    if handle._storage.source is not None or shared or used:
        fall_back("the program registers a hook on an input, on a view, or on a tensor that it has already used")
    node = Node(1)
    node.register_hook(run)
    (new,) = _identity(tracer, node, [handle])
    handle._value = handle._storage.value = new
    tracer.unknown["hooked", new.name] = node
    return removable
