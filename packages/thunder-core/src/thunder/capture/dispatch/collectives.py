# SPDX-License-Identifier: Apache-2.0
"""Functional collectives of torch.distributed in a traced program.

All ranks must run the same collectives in the same order. If a pass removed a collective on one rank, the next
collective of this rank would pair with another one of the other ranks, and the numbers would be wrong without an error.
Collectives therefore become primitives with the tag COLLECTIVE (`core/prims/collectives.py`).

- A functional collective (`torch.ops._c10d_functional`) starts a primitive; `wait_tensor` waits for its result. The
  tensor subclass that waits at its first use (`AsyncCollectiveTensor`) is not created: the trace contains the wait.
- A call of a process group, which all other functions of torch.distributed make, is recorded in `process_groups.py`.

A program with collectives is guarded on the rank, the number of processes, and the ranks of each of its groups.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.sources import Root, Source
from thunder.capture.base.tracing_mode import TracingMode
from thunder.capture.dispatch.writing import assign
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.tracer import Tracer, needs_grad, tensors_in
from thunder.core import prims
from thunder.core.events import current_log
from thunder.core.groups import Group
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.state import state
from thunder.core.symbol import OpTags, proxies_in
from thunder.runtime.kernels import collectives
from thunder.torch.collectives import FUNCTIONAL, joins_tensors

__all__ = [
    "call_collective", "check_scope", "finish_collectives", "note_group", "replaced_collectives", "start",
    "values_of_collectives", "wait",
]  # fmt: skip

# The namespaces of `torch.ops` that contain functional collectives.
_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")


def call_collective(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call of `func`, an operator of torch.distributed, or fall back."""
    namespace, _, name = str(func).removesuffix(".default").rpartition(".")
    title = f"torch.ops.{namespace}.{name}"
    if namespace in _NAMESPACES and name == "wait_tensor":
        return wait(tracer, tracer.handle_of(*args, **kwargs))
    function = FUNCTIONAL.get(name.removesuffix("_").removesuffix("_out"))
    if namespace not in _NAMESPACES or function is None:
        fall_back(f"the program calls {title}, a collective that no trace can express")
    tracked = torch.is_grad_enabled() and any(map(needs_grad, tensors_in(args, kwargs)))
    in_place = name.endswith(("_", "_out"))
    if tracked and (in_place or name.startswith("broadcast")):
        fall_back(f"the program calls {title}, whose gradient torch does not define, on a tensor that requires grad")
    check_scope(tracer, title)
    out = kwargs.pop("out", None)
    if name.startswith("all_") and "_coalesced" in name and _joins(tracer, args):
        results = _start_joined(tracer, title, name.partition("_coalesced")[0], *args, **kwargs)
    else:
        results = start(tracer, title, function, *args, **kwargs)
    if not in_place:
        return results
    target = args[0] if out is None else out
    pairs = zip(target, results) if isinstance(target, (list, tuple)) else [(target, results)]
    for one, result in pairs:
        assign(tracer, one, result, name)
    return target


def _joins(tracer: Tracer, args: Sequence[Any]) -> bool:
    devices = [tracer.handle_of(x).device for x in args[0]]
    with tracer.recording():
        return len(devices) > 1 and joins_tensors(args[-1], devices[0])


def _start_joined(tracer: Tracer, title: str, name: str, inputs: Sequence[Any], *args: Any) -> list[Any]:
    """Record a collective on the concatenation of tensors, and return its results, which are not in flight."""
    if len({x.dtype for x in inputs}) > 1:
        fall_back(f"the program calls {title} on tensors of different dtypes")
    with TracingMode():
        flat = tracer.handle_of(torch.cat([x.reshape(-1) for x in inputs]))
        found = wait(tracer, start(tracer, title, FUNCTIONAL[name], flat, *args))
        parts = found.reshape(-1, flat.shape[0]).split([x.numel() for x in inputs], 1)
        heads = [x.shape if name == "all_reduce" else (-1, *x.shape[1:]) for x in inputs]
        return [part.reshape(head) for part, head in zip(parts, heads)]


def check_scope(tracer: Tracer, title: str) -> None:
    """Fall back if the operations that are being recorded may run never or several times in a call of the program."""
    once = bool(tracer.parts or tracer.backwards) or all(
        any(scope is part for part in tracer.scopes_of_parts) for scope in tracer.trace.scopes[1:]
    )
    if not once:
        fall_back(f"a branch of the program, or a function that it calls several times, calls {title}, a collective")


def start(tracer: Tracer, title: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Record the start of a collective by `function`, and return handles of its results, which are in flight."""
    grad = any(map(needs_grad, tensors_in(args, kwargs)))
    with tracer.recording():
        current_log().add("collective", title, where=state.source)
        tracer.communication.check_reads(map(tracer.handle_of, tensors_in(args, kwargs)))
        before = len(tracer.trace.scopes[-1])
        out = function(*tracer.unwrap(args), **tracer.unwrap(kwargs))
        for op in tracer.trace.scopes[-1][before:]:
            for group in op.args:
                if isinstance(group, Group):
                    note_group(tracer, group)
        detached = grad and tracer.detaching and not torch.is_grad_enabled()
        tracer.communication.in_flight.update({p.name: detached for p in proxies_in(out)})
        return tracer.wrap(out, requires_grad=grad and torch.is_grad_enabled())


def note_group(tracer: Tracer, group: Group) -> None:
    """Record that the program communicates in a group, or fall back if this process is not a member."""
    if torch.distributed.get_rank() not in group.ranks:
        fall_back(f"the program calls a collective of {group!r}, to which this process does not belong")
    tracer.communication.groups.setdefault(group.name, group)


def waited(tracer: Tracer, value: Proxy) -> TensorProxy:
    """Record the wait for a value in flight."""
    detached = tracer.communication.in_flight.pop(value.name)
    result = prims.wait(value)
    return prims.detach(result) if detached else result  # type: ignore[no-any-return]


def wait(tracer: Tracer, handle: Handle) -> Handle:
    """Record the wait for the result of a collective. Later reads of the tensor depend on the wait, and follow it."""
    with tracer.recording():
        value = aliasing.read(handle)
        if value.name not in tracer.communication.in_flight:
            if tracer.owner_of(handle) is not None:
                fall_back("the program waits for a collective that it has not started")
            return handle
        result = tracer.wrap(waited(tracer, value), requires_grad=handle._needs_grad)
    assign(tracer, handle, result, "wait_tensor")
    return handle


def finish_collectives(tracer: Tracer) -> None:
    """Wait for values in flight at the end of the program, because nothing outside of it can wait for them."""
    if tracer.communication.works:
        fall_back("the program starts a collective and does not wait for it")
    if tracer.communication.groups:
        _refuse_early_reads(tracer)
    _refuse_unused_parameters(tracer)
    for handle in list(tracer.handles):
        if handle._storage.value.name in tracer.communication.in_flight and not handle._views:
            wait(tracer, handle)
    with tracer.recording():
        for name in list(tracer.communication.in_flight):  # values that no tensor has anymore
            producer = next(op for op in tracer.trace.bound_symbols if name in op.out_names)
            for p in proxies_in(producer.output):
                if p.name in tracer.communication.in_flight:
                    waited(tracer, p)


def _refuse_unused_parameters(tracer: Tracer) -> None:
    """Fall back if a parameter of a sharded module gets no gradient: torch leaves it out of the reduction."""
    if tracer.communication.whole:
        fall_back("the program calls unshard() of a sharded module (fully_shard), and leaves its parameters whole")
    if not tracer.communication.units or not torch.is_grad_enabled():
        return
    through = [op for op in tracer.trace.bound_symbols if OpTags.NON_DIFFERENTIABLE not in op.sym.tags]
    used = {name for op in through for name in op.arg_names}
    unused = [name for unit in tracer.communication.units for name in unit.trained if name not in used]
    if unused:
        fall_back(f"{len(unused)} parameters of a sharded module (fully_shard) get no gradient in backward()")


def _refuse_early_reads(tracer: Tracer) -> None:
    """Fall back if the program reads a result in flight before it waits for it, which may be too early."""
    in_flight: set[str] = set()
    stack = tracer.trace.bound_symbols[::-1]
    while stack:
        op = stack.pop()
        if op.subsymbols:
            stack += reversed(op.subsymbols)
        elif op.sym is not prims.wait and not in_flight.isdisjoint(op.arg_names):
            fall_back("the program reads the result of a collective before it waits for it")
        elif OpTags.COLLECTIVE in op.sym.tags and op.sym is not prims.wait:
            in_flight.update(op.out_names)


def replaced_collectives() -> list[tuple[Any, str, Any]]:
    """Return replacements of private functions of torch.distributed.

    One wraps the result of a functional collective in a tensor subclass, which waits at its first use. A trace contains
    the wait instead, so that executors receive plain tensors.
    """
    found = []
    module: Any = sys.modules.get("torch.distributed._functional_collectives")
    if hasattr(module, "_maybe_wrap_tensor"):
        found.append((module, "_maybe_wrap_tensor", torch.ops._c10d_functional.wait_tensor))
    if hasattr(module, "_FromTorchTensor"):  # in torch 2.11, the function that wraps it with a gradient
        found.append((module._FromTorchTensor, "apply", torch.ops._c10d_functional.wait_tensor))
    module = sys.modules.get("torch.distributed.nn.functional")
    if hasattr(module, "_not_supported_under_compile"):  # it raises an error if `torch.compiler.is_compiling()`
        found.append((module, "_not_supported_under_compile", _supported))
    module = sys.modules.get("torch.distributed.distributed_c10d")
    return found + [(module, name, _changes_groups) for name in _CHANGES_OF_GROUPS if hasattr(module, name)]


# The functions that are called first when a process group is created or destroyed.
_CHANGES_OF_GROUPS = ("_new_group_with_tag", "_new_process_group_helper", "destroy_process_group", "split_group")


def _changes_groups(*args: Any, **kwargs: Any) -> NoReturn:
    """Fall back before the group exists: the names of groups count the calls."""
    fall_back("the program creates or destroys a process group")


def _supported(name: str, **kwargs: Any) -> None:
    """Accept a function of `torch.distributed.nn.functional`: its `torch.autograd.Function` is traced."""


def values_of_collectives(tracer: Tracer) -> list[tuple[Source, Any]]:
    """Return the values on which a program with collectives is guarded, with their sources."""
    if not tracer.communication.groups:
        return []
    module = Root(torch.distributed, "torch.distributed")
    found: list[tuple[Source, Any]]
    found = [(module.attr(name).call(), getattr(torch.distributed, name)()) for name in ("get_world_size", "get_rank")]
    ranks = Root(collectives, "thunder.runtime.kernels.collectives").attr("group_ranks")
    return found + [(ranks.call((group.name,)), group.ranks) for group in tracer.communication.groups.values()]
