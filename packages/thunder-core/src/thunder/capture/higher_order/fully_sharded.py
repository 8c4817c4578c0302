# SPDX-License-Identifier: Apache-2.0
"""`fully_shard` (FSDP 2) inside a traced program: gathers of parameters and reductions of gradients are operations.

torch runs them in hooks of the modules. A trace replaces what these hooks call:

- Before the forward, the shards of the unit's parameters are concatenated and gathered in one collective, and the
  modules see the whole parameters. Where torch reshards after the forward, backward gathers again
  (`prims.gather_shards`), instead of keeping the parameters.
- In backward, the gradients of the unit's parameters are reduced in one collective, in torch's layout and with its
  divisions, so that the sums have the same bits. The gradients of the shards arrive at the sharded parameters.
- Parameters that tensor parallelism shards, too, are gathered among the ranks with the same part of them. The modules
  see DTensors again, and operations on them become local ones (`capture/dispatch/dtensors.py`).

A shard is an input of the program: `to_local()` of the parameter, whose gradient is a `DTensor` again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.sources import Root
from thunder.capture.dispatch.collectives import check_scope, start, wait
from thunder.capture.dispatch.dtensors import dtensor
from thunder.capture.higher_order.custom_function import apply_traced
from thunder.capture.tensors.communication import Unit
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.tracer import Tracer
from thunder.core import prims
from thunder.core.groups import Group
from thunder.core.state import state
from thunder.runtime import shards
from thunder.torch import private
from thunder.torch.collectives import group_named

__all__ = ["gather_parameters", "root_forward_begins"]


class Shape(NamedTuple):
    """The shapes of a parameter."""

    whole: tuple[int, ...]
    shard: tuple[int, ...]  # on this rank
    numel: int  # of the whole parameter
    padded: int  # elements of a shard on all ranks
    trained: bool
    dtype: torch.dtype


class Plan(NamedTuple):
    """How a unit communicates."""

    group: Group  # that gathers the shards
    reducing: Group  # of the same ranks, that reduces gradients
    replicas: Group | None  # of the copies of a shard, with a two-dimensional mesh
    gathers_again: bool  # whether backward gathers the parameters again
    parameters: list[Shape]
    gather_dtype: torch.dtype
    reduce_dtype: torch.dtype
    factors: tuple[float | None, float | None]  # by which gradients are divided before and after the reduction
    reductions: tuple[str, str]  # of the shards' group, and of the replicas


def root_forward_begins(tracer: Tracer, state: Any, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Replace what the first module of a forward does: torch initializes its state once, and moves the inputs."""
    if tracer.undo_later is None:
        fall_back("the program calls a sharded module (fully_shard) in a transform")
    tracer.undo_later(private.end_sharded_forward, state)  # also if the trace ends before the forward does
    with tracer.recording():
        private.prepare_sharded_forward(state)
    device = torch.device(state._device)
    if device.type != "cpu" and any(x.device.type != device.type for x in _tensors((args, kwargs))):
        fall_back("the program calls a sharded module (fully_shard) whose inputs it moves to another device")
    return args, kwargs


def _tensors(x: Any) -> list[Any]:
    if isinstance(x, torch.Tensor):
        return [x]
    items = x.values() if isinstance(x, dict) else x if isinstance(x, (tuple, list)) else ()
    return [tensor for item in items for tensor in _tensors(item)]


def gather_parameters(tracer: Tracer, unit: Any, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Record the gather of a unit's parameters, and let its modules see them."""
    grad = torch.is_grad_enabled()
    if any(known.unit is unit and (known.differentiable or not grad) for known in tracer.communication.units):
        return args, kwargs  # gradients of all its forwards are reduced together
    check_scope(tracer, "the forward of a sharded module")
    with tracer.recording():
        reason = _why_not(tracer, unit, module)
        if reason is not None:
            fall_back(f"the program calls a sharded module (fully_shard) {reason}")
        plan = _plan(unit)
        locals_ = _read_shards(tracer, unit, module)
    handles = apply_traced(tracer, _Gathered, (plan, *locals_), {})
    wholes = [_as_parallelized(tracer, p, handle) for p, handle in zip(unit.fsdp_params, handles)]
    with tracer.recording():
        for p, handle in zip(unit.fsdp_params, wholes):
            handle.__dict__["_is_param"] = True
            for owner, name in private.holders_of_parameter(p):
                before = owner._parameters[name]
                if before is not handle:
                    tracer.recorder.substitute((owner._parameters, name), before, handle)
        trained = [h._value.name for p, h in zip(unit.fsdp_params, handles) if grad and p.sharded_param.requires_grad]
        tracer.communication.units.append(Unit(unit, trained, grad))
    return args, kwargs


def _as_parallelized(tracer: Tracer, p: Any, handle: Handle) -> Handle:
    """Return the whole parameter as modules see it: a DTensor if tensor parallelism shards it."""
    with tracer.recording():
        layout = shards.layout_of_whole(p) if p.is_dtensor else None
    return handle if layout is None else dtensor(tracer, handle, layout)


def _why_not(tracer: Tracer, unit: Any, module: Any) -> str | None:
    """Return what a trace does not support about a unit, or None."""
    i = next((i for i, x in enumerate(shards.units_of(module)) if x is unit), None)
    if i is None:
        return "that was jitted before it was sharded"
    if id(module) not in tracer.recorder.reached:
        return "that no path from the function leads to"
    sharding, settings, classes, meshes, parameters, _ = shards.plan_of_unit(module, i)
    known = dict(settings)
    reasons = [
        ("in a transform", bool(tracer.parts)),
        ("in a checkpointed region", len(tracer.trace.scopes) > 1),
        ("whose parameters are not sharded at the moment", sharding != "SHARDED" or known["_all_gather_result"]),
        ("whose parameters have been replaced", not all(p[6] for p in parameters)),
        ("with gradients that are not reduced yet", known["_partial_reduce_output"] or any(p[7] for p in parameters)),
        ("that does not reduce its gradients (set_requires_gradient_sync)", not known["reduce_grads"]),
        ("that does not reduce its gradients among replicas", not known["all_reduce_grads"]),
        ("with hooks on its all-reduce", known["_all_reduce_hook"] is not None),
        ("with an offload policy", classes[0] != "OffloadPolicy"),
        ("with its own collectives", not all(name.startswith("Default") for name in classes[1:3])),
        ("with a factor for its gradients", known["gradient_divide_factor"] is not None),
        ("that reshards its parameters to a part of the ranks", bool(meshes[1]) and meshes[1] != meshes[0]),
        ("whose parameters are sharded in another dimension than the first", any(p[3] != 0 for p in parameters)),
        ("whose parameters are of a subclass of torch.Tensor", any(p[4] == "subclass" for p in parameters)),
        ("whose parameters are DTensors on the mesh of the shards", any(p[4] == "same mesh" for p in parameters)),
        (
            "whose parameters tensor parallelism shards unevenly, or twice in one dimension",
            any(p.is_dtensor and shards.layout_of_whole(p) is None for p in unit.fsdp_params),
        ),
        ("with hooks on its parameters", any(p[5] for p in parameters)),
        ("with parameters of several dtypes", len({p[1] for p in parameters}) > 1),
    ]
    return next((reason for reason, holds in reasons if holds), None)


def _plan(unit: Any) -> Plan:
    groups = private.groups_of_unit(unit)
    first = unit.fsdp_params[0]
    gather_dtype = first.param_dtype or first.orig_dtype
    reduce_dtype = first.reduce_dtype or gather_dtype
    before, after, scatter, reduce = private.gradient_factors(unit, groups[1:], reduce_dtype)
    gathering, reducing = group_named(groups[0]), group_named(groups[1])
    replicas = None if groups[2] is None else group_named(groups[2])
    again = unit.post_forward_mesh_info is not None
    shapes = [_shape(p) for p in unit.fsdp_params]
    factors, reductions = (before, after), (scatter, reduce)
    return Plan(gathering, reducing, replicas, again, shapes, gather_dtype, reduce_dtype, factors, reductions)


def _shape(p: Any) -> Shape:
    whole, shard, trained = tuple(p._orig_size), tuple(p.sharded_size), p.sharded_param.requires_grad
    return Shape(whole, shard, p._orig_size.numel(), p.padded_sharded_param_size.numel(), trained, p.orig_dtype)


def _read_shards(tracer: Tracer, unit: Any, module: Any) -> list[Handle]:
    """Make the shards of a unit inputs of the program, and guard how the unit communicates."""
    if id(unit) in tracer.communication.shards:
        return tracer.communication.shards[id(unit)]
    recorder = tracer.recorder
    at = recorder.reached[id(module)].source, next(i for i, x in enumerate(shards.units_of(module)) if x is unit)
    functions = Root(shards, "thunder.runtime.shards")
    recorder.value(functions.attr("plan_of_unit").call(at), shards.plan_of_unit(module, at[1]))
    read = functions.attr("local_shards").call(at)
    found = []
    for i, local in enumerate(private.without_overrides(shards.local_shards, module, at[1])):
        recorder.tensor_found(read.item(i), local)
        found.append(tracer.handle_of(local))
    tracer.communication.shards[id(unit)] = found
    return found


class _Gathered(torch.autograd.Function):
    """The whole parameters of a unit, whose gradient reduces the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *shards: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.plan = plan
        tracer: Any = state.frontend
        flat = torch.cat(
            [_padded(x.reshape(-1), p.padded).to(plan.gather_dtype) for x, p in zip(shards, plan.parameters)]
        )
        gather = prims.gather_shards if plan.gathers_again else prims.all_gather
        whole = wait(tracer, start(tracer, "fully_shard", gather, flat, plan.group))
        parts = whole.view(plan.group.size, -1).split([p.padded for p in plan.parameters], dim=1)
        return tuple([part.reshape(-1)[: p.numel].view(p.whole) for part, p in zip(parts, plan.parameters)])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        plan: Plan = ctx.plan
        tracer: Any = state.frontend
        size, (before, after) = plan.group.size, plan.factors
        trained = [(g, p) for g, p in zip(grads, plan.parameters) if p.trained]
        rows = [_padded(g.reshape(-1), size * p.padded).view(size, -1).to(plan.reduce_dtype) for g, p in trained]
        flat = torch.cat(rows, dim=1).reshape(-1)
        if before not in (None, 1):
            flat = flat / before
        total: Any = wait(
            tracer, start(tracer, "fully_shard", prims.reduce_scatter, flat, plan.reductions[0], plan.reducing)
        )
        if plan.replicas is not None:
            reduced = start(tracer, "fully_shard", prims.all_reduce, total, plan.reductions[1], plan.replicas)
            total = wait(tracer, reduced)
        if after not in (None, 1):
            total = total / after
        parts = iter(total.split([p.padded for _, p in trained]))
        return None, *[_gradient(next(parts), p) if p.trained else None for p in plan.parameters]


def _padded(flat: torch.Tensor, numel: int) -> torch.Tensor:
    """Return elements with zeros after them."""
    return F.pad(flat, (0, numel - flat.shape[0])) if flat.shape[0] < numel else flat


def _gradient(part: torch.Tensor, p: Shape) -> torch.Tensor:
    """Return the gradient of this rank's shard."""
    return part[: math.prod(p.shard)].view(p.shard).to(p.dtype)
