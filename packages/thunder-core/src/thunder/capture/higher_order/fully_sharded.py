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

from collections.abc import Container, Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from thunder.capture.base.fallback import compile_later, fall_back
from thunder.capture.base.snapshots import Write
from thunder.capture.base.sources import Root, Source
from thunder.capture.base.tracing_mode import TracingMode
from thunder.capture.dispatch.collectives import check_scope, start, wait
from thunder.capture.dispatch.dtensors import dtensor, local_tensor
from thunder.capture.higher_order.custom_function import apply_traced
from thunder.capture.tensors.communication import Shard, Unit, Waiting
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.tracer import Tracer
from thunder.core import prims
from thunder.core.groups import UNIT_NAMES, Group
from thunder.core.layouts import Layout
from thunder.core.state import state
from thunder.runtime import shards
from thunder.runtime.kernels.dtensors import mesh_of
from thunder.torch import private
from thunder.torch.collectives import group_named

__all__ = [
    "accumulate_whole", "finish_backward", "forward_ends", "gather_parameters", "held_units",
    "leave_backward_to_caller", "reshard", "root_forward_begins", "set_gradient_sync", "unshard", "writes_to_units",
]  # fmt: skip


_FUNCTIONS = Root(shards, title="thunder.runtime.shards")  # that prologues call


class Plan(NamedTuple):
    """How a unit communicates."""

    group: Group  # that gathers the shards
    halves: tuple[Group, Group] | None  # gather in two steps, if backward repeats only the second of them
    reducing: Group  # of the same ranks, that reduces gradients
    replicas: Group | None  # of the copies of a shard, with a two-dimensional mesh
    gathers_again: bool  # whether backward gathers the parameters again
    parameters: list[shards.Shape]
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


def unshard(tracer: Tracer, module: Any, async_op: bool = False) -> Any:
    """Replace the method of sharded modules that gathers parameters before their forward."""
    if not private.is_initialized(module):
        compile_later(tracer, "the program calls unshard() before the first forward of a sharded module (fully_shard)")
    for unit in shards.units_of(module):
        gather_parameters(tracer, unit, module, (), {})
        tracer.communication.whole[id(unit)] = unit
    return private.unshard_handle() if async_op else None


def reshard(tracer: Tracer, module: Any) -> None:
    """Replace the method of sharded modules that lets them see the shards again."""
    for i, unit in enumerate(shards.units_of(module)):
        if id(module) not in tracer.recorder.reached:
            fall_back("the program calls reshard() of a module to which no path leads")
        if unit._sharded_state.name != "SHARDED":
            _run_on_whole_parameters(tracer)
        with tracer.recording():
            source = _unit_source(tracer, module, i).attr("_sharded_state").attr("name")
            tracer.recorder.value(source, unit._sharded_state.name)
        tracer.communication.whole.pop(id(unit), None)
        show_shards(tracer, unit)


def _run_on_whole_parameters(tracer: Tracer) -> NoReturn:
    """Run a call eagerly if a unit has gathered its parameters before: eager mode does not gather them again."""
    compile_later(tracer, "the parameters of a sharded module (fully_shard) are not sharded at the moment", most=3)


def gather_parameters(tracer: Tracer, unit: Any, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Record the gather of a unit's parameters, unless it is known, and let its modules see them."""
    tracer.communication.whole.pop(id(unit), None)
    grad = torch.is_grad_enabled()
    # Gradients of all forwards before a backward are reduced together.
    known = next((x for x in tracer.communication.units if x.unit is unit and (x.differentiable or not grad)), None)
    if known is None or not _is_current(tracer, known):
        known = _gathered(tracer, unit, module, grad)
        tracer.communication.units.append(known)
        tracer.communication.in_own_order = True
    with tracer.recording():
        for p, handle in zip(unit.fsdp_params, known.shown):
            for owner, name in private.holders_of_parameter(p):
                if owner._parameters[name] is not handle:
                    tracer.recorder.withdraw((owner._parameters, name))  # what an earlier forward has gathered
                    before = owner._parameters[name]
                    tracer.recorder.substitute((owner._parameters, name), before, handle)
    return args, kwargs


def _is_current(tracer: Tracer, known: Unit) -> bool:
    """Check whether the shards are those that were gathered."""
    if known.versions == _versions(tracer, known.unit):
        return True
    if known.unit.post_forward_mesh_info is None or known.differentiable:
        fall_back("the program writes to sharded parameters (fully_shard) between forward and backward")
    _forget(tracer, known)
    return False


def _forget(tracer: Tracer, known: Unit) -> None:
    """Remove a unit by identity: tuples of handles that are compared would become operations."""
    tracer.communication.units = [x for x in tracer.communication.units if x is not known]


def _versions(tracer: Tracer, unit: Any) -> list[int]:
    known = tracer.communication.shards
    return [known[id(p.sharded_param)].local._storage.version for p in unit.fsdp_params]


def forward_ends(tracer: Tracer, unit: Any, module: Any, inputs: Any, output: Any) -> Any:
    """Let the modules of a unit see the shards again, where torch reshards after the forward."""
    if unit.post_forward_mesh_info is not None:
        show_shards(tracer, unit)
    return output


def show_shards(tracer: Tracer, unit: Any) -> None:
    """Let the modules of a unit see the shards again."""
    with tracer.recording():
        for p in unit.fsdp_params:
            for owner, name in private.holders_of_parameter(p):
                tracer.recorder.withdraw((owner._parameters, name))


def set_gradient_sync(tracer: Tracer, module: Any, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
    """Replace the method of sharded modules: whether the next backward reduces gradients."""
    modules = list(module.modules()) if recurse else [module]
    with tracer.recording():
        for found in modules:
            for i, unit in enumerate(shards.units_of(found)):
                if id(found) not in tracer.recorder.reached:
                    fall_back("the program sets whether a module reduces gradients to which no path leads")
                source = _unit_source(tracer, found, i)
                tracer.communication.syncs[id(unit)] = unit, source, bool(requires_gradient_sync)


def _unit_source(tracer: Tracer, module: Any, i: int) -> Source:
    return _FUNCTIONS.attr("units_of").call((tracer.recorder.reached[id(module)].source,)).item(i)


def _reduces(tracer: Tracer, unit: Any) -> bool:
    known = tracer.communication.syncs.get(id(unit))
    return bool(unit.reduce_grads) if known is None else known[2]


def writes_to_units(tracer: Tracer) -> list[Write]:
    """Return what the program assigns to units: whether they reduce gradients, and those that are not reduced yet."""
    found = []
    for unit, source, value in tracer.communication.syncs.values():
        names = [name for name in ("reduce_grads", "all_reduce_grads") if getattr(unit, name) is not value]
        found += [Write("set_attribute", source, unit, name, value) for name in names]
    for waiting in tracer.communication.waiting.values():
        for j, (p, before, now) in enumerate(zip(waiting.unit.fsdp_params, waiting.before, waiting.now)):
            if now is not before:
                at = waiting.source.attr("fsdp_params").item(j)
                found.append(Write("set_attribute", at, p, "unsharded_accumulated_grad", now))
    return found


def held_units(tracer: Tracer, values: Container[str]) -> list[Unit]:
    """Return the units that a `backward()` through `values` reaches, and that do not just reduce its gradients."""
    units = [x for x in tracer.communication.units if any(name in values for name in x.trained)]
    return [x for x in units if not _reduces(tracer, x.unit) or _has_waiting(tracer, x.unit)]


def _has_waiting(tracer: Tracer, unit: Any) -> bool:
    return any(g is not None for g in _waiting(tracer, unit).now)


def accumulate_whole(tracer: Tracer, known: Unit, gradients: Sequence[Handle]) -> list[tuple[Any, Handle]]:
    """Add gradients of whole parameters to those that are not reduced yet.

    If the unit reduces gradients now, return the sharded parameters with the reduced gradients of their shards.
    """
    plan: Plan = known.plan
    waiting = _waiting(tracer, known.unit)
    trained = [i for i, p in enumerate(plan.parameters) if p.trained]
    with TracingMode(), torch.no_grad():
        before = _locals_of_waiting(tracer, known.unit)
        for i, g in zip(trained, gradients):
            old, p = before[i], known.unit.fsdp_params[i]
            new = tracer.handle_of(g.to(plan.reduce_dtype) if old is None else old + g)
            waiting.now[i] = _as_parallelized(tracer, p, new)
        if not _reduces(tracer, known.unit):
            return []
        now = _locals_of_waiting(tracer, known.unit)
        reduced = _reduced(tracer, plan, [now[i] for i in trained])
    waiting.now = [None] * len(waiting.now)
    return [(known.unit.fsdp_params[i].sharded_param, tracer.handle_of(g)) for i, g in zip(trained, reduced)]


def finish_backward(tracer: Tracer, values: Container[str]) -> None:
    """Forget the whole parameters of units whose gradients a `backward()` through `values` computes."""
    if any(name in values for name in tracer.communication.reduced):
        fall_back("the program calls backward() twice through a forward of a sharded module (fully_shard)")
    for known in list(tracer.communication.units):
        _refuse_incomplete(known)
        show_shards(tracer, known.unit)
        reached = [name for name in known.trained if name in values]
        if not reached:
            continue
        if len(reached) < len(known.trained):
            fall_back(
                f"{len(known.trained) - len(reached)} parameters of a sharded module (fully_shard) get no gradient in "
                "backward()"
            )
        _forget(tracer, known)
        tracer.communication.reduced.update(reached)


def _refuse_incomplete(known: Unit) -> None:
    """Fall back if modules of a group have not run, or the program writes to a whole parameter.

    torch completes the forward of the group elsewhere, and forgets the write when it reshards.
    """
    if private.in_sharded_forward(known.unit):
        fall_back("the program calls some, but not all modules that one call of fully_shard shards together")
    if any(handle._storage.written for handle in known.whole):
        fall_back("the program writes to a parameter of a sharded module (fully_shard) in its forward")


def leave_backward_to_caller(tracer: Tracer) -> None:
    """Fall back if a caller's `backward()` would not do with gradients what the forward has prepared."""
    for known in tracer.communication.units:
        _refuse_incomplete(known)
        if known.trained and known.reduces is not _reduces(tracer, known.unit):
            fall_back(
                "the program calls set_requires_gradient_sync after the forward of a sharded module (fully_shard), and "
                "leaves backward() to its caller"
            )
        waiting = tracer.communication.waiting.get(id(known.unit))
        if known.trained and waiting is not None and any(x is not y for x, y in zip(waiting.before, waiting.now)):
            fall_back(
                "the program calls backward() for a sharded module (fully_shard) that does not reduce its gradients "
                "yet, and leaves another backward() to its caller"
            )


def _gathered(tracer: Tracer, unit: Any, module: Any, grad: bool) -> Unit:
    check_scope(tracer, "the forward of a sharded module")
    with tracer.recording():
        reason = _why_not(tracer, unit, module)
        if reason is not None:
            fall_back(f"the program calls a sharded module (fully_shard) {reason}")
        plan = _plan(unit)
        locals_ = _read_shards(tracer, unit, module)
        reduces = _reduces(tracer, unit)
        waiting = _locals_of_waiting(tracer, unit) if grad and reduces else []
        receivers = [] if not grad or reduces else _read_receivers(tracer, unit)
    with tracer.scope_of_part() as operations:  # in a checkpointed region, backward gathers as it does outside of it
        half = _first_half(tracer, plan, locals_)
        handles = apply_traced(tracer, _Gathered, (plan, half, waiting, *locals_, *receivers), {})
        shown = [_as_parallelized(tracer, p, handle) for p, handle in zip(unit.fsdp_params, handles)]
    tracer.trace.scopes[0].extend(operations)
    for handle in shown:
        handle.__dict__["_is_param"] = True
    with tracer.recording():
        names = [handle._value.name for handle in handles]
        tracer.trace.info.setdefault(UNIT_NAMES, {}).update(dict.fromkeys(names, private.name_of_unit(unit)))
        trained = [name for p, name in zip(unit.fsdp_params, names) if grad and p.sharded_param.requires_grad]
        return Unit(unit, plan, list(handles), shown, _versions(tracer, unit), trained, grad, reduces)


def _as_parallelized(tracer: Tracer, p: Any, handle: Handle) -> Handle:
    """Return the whole parameter as modules see it: a DTensor if tensor parallelism shards it."""
    layout = _layout_of_whole(tracer, p)
    return handle if layout is None else dtensor(tracer, handle, layout)


def _layout_of_whole(tracer: Tracer, p: Any) -> Layout | None:
    with tracer.recording():
        return shards.layout_of_whole(p) if p.is_dtensor else None


def _why_not(tracer: Tracer, unit: Any, module: Any) -> str | None:
    """Return what a trace does not support about a unit, or None."""
    i = next((i for i, x in enumerate(shards.units_of(module)) if x is unit), None)
    if i is None:
        return "that was jitted before it was sharded"
    if id(module) not in tracer.recorder.reached:
        return "that no path from the function leads to"
    sharding, settings, classes, meshes, parameters, _ = shards.plan_of_unit(module, i)
    known, sharded = dict(settings), classes[3] in ("FSDPMeshInfo", "HSDPMeshInfo")
    if sharding != "SHARDED" or known["_all_gather_result"]:
        _run_on_whole_parameters(tracer)
    reasons = [
        ("whose parameters are not sharded", not sharded),
        ("in a transform", bool(tracer.parts)),
        ("whose parameters have been replaced", not all(p[6] for p in parameters)),
        ("with gradients that are not reduced yet", known["_partial_reduce_output"] or any(p[7] for p in parameters)),
        ("that does not reduce its gradients among replicas", known["all_reduce_grads"] is not known["reduce_grads"]),
        ("with hooks on its all-reduce", known["_all_reduce_hook"] is not None),
        ("with an offload policy", classes[0] != "OffloadPolicy"),
        ("with its own collectives", not all(name.startswith("Default") for name in classes[1:3])),
        (
            "with a factor for its gradients that the backend applies",
            sharded and "premul_sum" in shards.factors_of_unit(unit)[2:],
        ),
        (
            "with replicas of shards, that reshards its parameters to a part of the ranks",
            sharded and meshes[1] not in (None, meshes[0]) and shards.groups_of_unit(unit)[2] is not None,
        ),
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
    groups = shards.groups_of_unit(unit)
    first = unit.fsdp_params[0]
    gather_dtype = first.param_dtype or first.orig_dtype
    reduce_dtype = first.reduce_dtype or gather_dtype
    before, after, scatter, reduce = shards.factors_of_unit(unit)
    gathering, reducing = group_named(groups[0]), group_named(groups[1])
    replicas = None if groups[2] is None else group_named(groups[2])
    again = unit.post_forward_mesh_info is not None
    halves = private.halves_of_gather(unit)
    halves = None if halves is None else (group_named(halves[0]), group_named(halves[1]))
    shapes = [shards.shape_of(p) for p in unit.fsdp_params]
    factors, reductions = (before, after), (scatter, reduce)
    return Plan(gathering, halves, reducing, replicas, again, shapes, gather_dtype, reduce_dtype, factors, reductions)


def _read_shards(tracer: Tracer, unit: Any, module: Any) -> list[Handle]:
    """Make the shards of a unit inputs of the program, and guard how the unit communicates."""
    recorder, known = tracer.recorder, tracer.communication.shards
    if all(id(p.sharded_param) in known for p in unit.fsdp_params):
        return [known[id(p.sharded_param)].local for p in unit.fsdp_params]
    mesh_of(unit.mesh_info.mesh)  # so that it is known when the layouts of parameters are asked for
    at = recorder.reached[id(module)].source, next(i for i, x in enumerate(shards.units_of(module)) if x is unit)
    tracer.communication.sources[id(unit)] = _unit_source(tracer, module, at[1])
    recorder.value(_FUNCTIONS.attr("plan_of_unit").call(at), shards.plan_of_unit(module, at[1]))
    read, sharded = _FUNCTIONS.attr("local_shards").call(at), _FUNCTIONS.attr("sharded_parameters").call(at)
    found = private.without_overrides(shards.local_shards, module, at[1])
    for i, (p, local) in enumerate(zip(unit.fsdp_params, found)):
        recorder.value(sharded.item(i), p.sharded_param)
        recorder.tensor_found(read.item(i), local)
        known[id(p.sharded_param)] = Shard(p.sharded_param, tracer.handle_of(local))
        if any(x.tensor is p.sharded_param and x.handle._local is not None for x in tracer.inputs):
            fall_back("the program reads sharded parameters (fully_shard) before it calls their module")
    return [known[id(p.sharded_param)].local for p in unit.fsdp_params]


def _read_receivers(tracer: Tracer, unit: Any) -> list[Handle]:
    """Make stand-ins for the trained parameters inputs of the program: they get the gradients that are not reduced."""
    known = tracer.communication.receivers.get(id(unit))
    if known is not None:
        return known
    source = _FUNCTIONS.attr("gradient_receivers").call((tracer.communication.sources[id(unit)],))
    found = private.without_overrides(shards.gradient_receivers, unit)
    for j, x in enumerate(found):
        tracer.recorder.tensor_found(source.item(j), x)
    tracer.communication.receivers[id(unit)] = [tracer.handle_of(x) for x in found]
    return tracer.communication.receivers[id(unit)]


def _waiting(tracer: Tracer, unit: Any) -> Waiting:
    """Return the gradients of a unit that are not reduced yet, which are inputs of the program."""
    known = tracer.communication.waiting.get(id(unit))
    if known is not None:
        return known
    source, found = tracer.communication.sources[id(unit)], []
    with tracer.recording():
        tracer.recorder.value(_FUNCTIONS.attr("waits").call((source,)), shards.waits(unit))
        for j, p in enumerate(unit.fsdp_params):
            gradient = p.unsharded_accumulated_grad
            if gradient is not None:
                at = source.attr("fsdp_params").item(j).attr("unsharded_accumulated_grad")
                tracer.recorder.value(at, gradient)
            found.append(None if gradient is None else tracer.handle_of(gradient))
    tracer.communication.waiting[id(unit)] = known = Waiting(unit, source, found)
    return known


def _locals_of_waiting(tracer: Tracer, unit: Any) -> list[Any]:
    """Return the gradients of a unit that are not reduced yet; the local tensors of those that are DTensors."""
    found: list[Any] = []
    for p, x in zip(unit.fsdp_params, _waiting(tracer, unit).now):
        layout = _layout_of_whole(tracer, p)
        found.append(x if x is None or layout is None else local_tensor(tracer, x, layout))
    return found


def _first_half(tracer: Tracer, plan: Plan, locals_: Sequence[Any]) -> Any:
    """Gather what each part of the ranks keeps until backward; return None if there are no parts."""
    if plan.halves is None:
        return None
    with TracingMode(), torch.no_grad():
        return _exchanged(tracer, prims.all_gather, _flat(plan, locals_), plan.halves[0])


class _Gathered(torch.autograd.Function):
    """The whole parameters of a unit, whose gradient reduces the gradients of all ranks.

    `waiting` contains gradients that are reduced with them. If stand-ins for the parameters follow the shards, these
    get the gradients instead, which are not reduced.
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, half: Any, waiting: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.plan, ctx.waiting, ctx.keeps = plan, waiting, len(inputs) > len(plan.parameters)
        rows = _rows_of_ranks(state.frontend, plan, half, inputs[: len(plan.parameters)])
        parts = _unpacked(state.frontend, rows, [p.padded for p in plan.parameters])
        return tuple([shards.whole_of(part, p, plan.group.size) for part, p in zip(parts, plan.parameters)])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        plan: Plan = ctx.plan
        tracer: Any = state.frontend
        trained = [i for i, p in enumerate(plan.parameters) if p.trained]
        if ctx.keeps:
            return *[None] * (3 + len(grads)), *[grads[i].to(plan.reduce_dtype) for i in trained]
        waiting = ctx.waiting or [None] * len(grads)
        whole = [grads[i] if waiting[i] is None else waiting[i] + grads[i] for i in trained]
        reduced = dict(zip(trained, _reduced(tracer, plan, whole)))
        return None, None, None, *[reduced.get(i) for i in range(len(grads))]


def _exchanged(tracer: Any, gather: Any, flat: Any, group: Group) -> Any:
    return wait(tracer, start(tracer, "fully_shard", gather, flat, group))


def _unpacked(tracer: Any, rows: Any, sizes: Sequence[int]) -> Any:
    with tracer.recording():
        return tracer.wrap(prims.unpack_shards(tracer.unwrap(rows), tuple(sizes)), requires_grad=False)


def _flat(plan: Plan, locals_: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the concatenated shards of this process."""
    parts = [shards.padded(x.reshape(-1), p.padded) for x, p in zip(locals_, plan.parameters)]
    return torch.cat([part.to(plan.gather_dtype) for part in parts])


def _rows_of_ranks(tracer: Any, plan: Plan, half: Any, locals_: Sequence[torch.Tensor]) -> Any:
    """Return the concatenated shards of all ranks, one row for each rank."""
    again = prims.gather_shards if plan.gathers_again else prims.all_gather
    if plan.halves is None:
        return _exchanged(tracer, again, _flat(plan, locals_), plan.group).view(plan.group.size, -1)
    outer, inner = plan.halves
    rows = _exchanged(tracer, again, half, inner).view(inner.size, outer.size, -1)
    return rows.transpose(0, 1).reshape(plan.group.size, -1)


def _reduced(tracer: Tracer, plan: Plan, grads: Sequence[Any]) -> list[torch.Tensor]:
    """Return the gradients of this process's shards, from those of the whole parameters that are trained."""
    size, (before, after) = plan.group.size, plan.factors
    trained = [p for p in plan.parameters if p.trained]
    flat: Any = shards.flat_gradients(grads, trained, size, plan.reduce_dtype, before)
    total: Any = wait(
        tracer, start(tracer, "fully_shard", prims.reduce_scatter, flat, plan.reductions[0], plan.reducing)
    )
    if plan.replicas is not None:
        total = wait(tracer, start(tracer, "fully_shard", prims.all_reduce, total, plan.reductions[1], plan.replicas))
    return shards.gradients_of_shards(total, trained, after)
