# SPDX-License-Identifier: Apache-2.0
"""Hooks on gradients inside a traced program: of modules (`register_full_backward_hook`) and of tensors.

They are the user's Python and may do anything, so they are not traced: the backward program calls them, with the real
gradients. In the trace a hook is an identity, `hooked`, whose gradient goes through `run_gradient_hooks`.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import BackwardHook

from thunder.core import prims
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.errors import TracingError, UnsupportedError
from thunder.core.proxies import TensorProxy
from thunder.core.state import state, tracectx
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.executors.torchex.base import ex as torch_executor
from thunder.frontend import aliasing
from thunder.frontend.handle import Handle
from thunder.frontend.tracer import needs_grad, user_line

if TYPE_CHECKING:
    from thunder.frontend.tracer import Tracer
    from thunder.transforms.autodiff import JointTrace

__all__ = ["module_hook_class", "register_tensor_hook"]


class Node:
    """What torch's node of the identity would be: it has hooks, which take and return the gradients of its inputs."""

    def __init__(self, count: int):
        self.count = count
        self.hooks: list[Callable[[Any, Any], Any]] = []

    def register_hook(self, hook: Callable[[Any, Any], Any]) -> None:
        """Adds a hook."""
        self.hooks.append(hook)

    def run(self, places: Sequence[int], gradients: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The gradients at `places`, as the hooks make them."""
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
    """Calls the hooks of a node with gradients; what they make of these."""
    return tuple([TensorProxy(like=g) for g in gradients])


def _run(node: Node, places: tuple[int, ...], *gradients: torch.Tensor) -> Any:
    return node.run(places, gradients)


run_gradient_hooks = Symbol(
    "run_gradient_hooks", _run_meta, id="run_gradient_hooks", is_prim=True, executor=torch_executor, fn=_run,
    tags=(OpTags.SIDE_EFFECT,),
)  # fmt: skip


@run_gradient_hooks.grad
def _(node: Node, places: tuple[int, ...], *gradients: TensorProxy) -> Any:
    raise UnsupportedError(
        "a gradient that went through a hook cannot be differentiated again in a traced program: take the hook off, or "
        "call the function without thunder.jit"
    )


def _hooked_meta(node: Node, *values: TensorProxy) -> Any:
    """The same tensors, whose gradients go through hooks."""
    return prims.barrier(*values)


hooked = Symbol("hooked", _hooked_meta, id="hooked")


def _differentiated(bsym: BoundSymbol, joint: JointTrace) -> tuple[list[BoundSymbol], list[BoundSymbol]]:
    node, *values = bsym.args
    places = [i for i, p in enumerate(values) if p.name in joint.tracked and is_inexact_dtype(p.dtype)]
    joint.tracked.update(bsym.output[i].name for i in places)
    with tracectx(joint.trace), joint.trace.scope() as backward:
        gradients = [prims.get_grad(bsym.output[i]) for i in places]
        for i, g in zip(places, run_gradient_hooks(node, tuple(places), *gradients)):
            prims.put_grad(values[i], g)
    return list(bsym.subsymbols), backward


hooked.joint_rule = _differentiated


def _identity(tracer: Tracer, node: Node, handles: Sequence[Handle]) -> Any:
    with tracer.recording():
        return hooked(node, *[aliasing.read(h) for h in handles])


# -- hooks of modules -------------------------------------------------------------------------------------------------
class TracedHook(BackwardHook):
    """torch's own, whose node is one of the trace. It lives as long as the compiled program; its module need not."""

    tracer: weakref.ref[Tracer]

    @property
    def module(self) -> Any:
        """The module that it is of."""
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
    """Stands for `torch.utils.hooks.BackwardHook` while a program is traced."""

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
    """What `register_hook` gives."""

    def __init__(self) -> None:
        self.active = True

    def remove(self) -> None:
        """Takes the hook off."""
        self.active = False

    def __enter__(self) -> Removable:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.remove()


def register_tensor_hook(tracer: Tracer, tensor: Any, hook: Callable[[Any], Any]) -> Removable:
    """`tensor.register_hook(hook)` in a traced program: from here on, its gradient goes through the hook."""
    handle = tracer.handle_of(tensor)
    if not handle._needs_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    value = aliasing.read(handle)
    removable = Removable()
    if not isinstance(hook, types.FunctionType) or hook.__closure__:
        tracer.uncacheable = "a hook on a tensor has state of its own, which is made by the call"

    def run(gradients: Any, _: Any) -> Any:
        return hook(gradients[0]) if removable.active else None

    known = tracer.unknown.get(("hooked", value.name))
    if known is not None:  # it has hooks already, and they run in their order
        known.register_hook(run)
        return removable
    shared = handle._views or any(h is not handle and h._storage is handle._storage for h in [*tracer.handles])
    used = any(value.name in op.arg_names for scope in tracer.trace.scopes for op in scope)
    if handle._storage.source is not None or shared or used:
        raise TracingError(
            "a hook is registered on an input of the traced function, on a view, or on a tensor that has been used "
            f"already, in {user_line()}: register hooks on inputs outside, and on a tensor right after it is made"
        )
    node = Node(1)
    node.register_hook(run)
    (new,) = _identity(tracer, node, [handle])
    handle._value = handle._storage.value = new
    tracer.unknown["hooked", new.name] = node
    return removable
