# SPDX-License-Identifier: Apache-2.0
"""Parameters of which each process has a shard (`fully_shard`), as prologues read them.

A *unit* is what torch calls a parameter group: the parameters that one call of `fully_shard` communicates together.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from thunder.core.layouts import Layout, Partial
from thunder.runtime.kernels import dtensors

__all__ = [
    "Shape", "factors_of_unit", "flat_gradients", "gradient_receivers", "gradients_of_shards", "groups_of_unit",
    "layout_of_whole", "local_shards", "padded", "plan_of_unit", "shape_of", "sharded_parameters", "units_of", "waits",
    "whole_of",
]  # fmt: skip

# Settings of a unit that decide how it communicates. Not all versions of torch have all of them.
_SETTINGS = (
    "reduce_grads", "all_reduce_grads", "reshard_after_backward", "gradient_divide_factor", "unshard_in_backward",
    "reduce_scatter_unused_params", "force_sum_reduction_for_comms", "_all_reduce_hook", "_all_gather_result",
    "_partial_reduce_output",
)  # fmt: skip
_CLASSES = ("offload_policy", "_all_gather_comm", "_reduce_scatter_comm", "mesh_info")

_KNOWN_PLANS: dict[Any, tuple[Any, ...]] = {}


def units_of(module: Any) -> list[Any]:
    """Return the units whose parameters are gathered for a module; none if another module has torch's state of it."""
    states: Any = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_state"]
    state = states._get_module_fsdp_state(module)
    if state is None:
        return []
    units = getattr(state, "_fsdp_param_groups", None)  # earlier versions of torch have one or none
    return [x for x in [state._fsdp_param_group] if x is not None] if units is None else units


def local_shards(module: Any, i: int) -> tuple[torch.Tensor, ...]:
    """Return the shards of a unit's parameters. Their gradients arrive at the parameters as sharded tensors.

    Like parameters, they require grad also where gradients are disabled.
    """
    parameters = units_of(module)[i].fsdp_params
    with torch.enable_grad():
        found: tuple[torch.Tensor, ...] = _LocalShards.apply(parameters, *[p.sharded_param for p in parameters])
    return found


class _LocalShards(torch.autograd.Function):
    """`to_local()` of all parameters of a unit at once, because this runs before each call of a program."""

    @staticmethod
    def forward(ctx: Any, parameters: Sequence[Any], *sharded: Any) -> tuple[torch.Tensor, ...]:
        ctx.parameters, ctx.waiting = parameters, [p.unsharded_accumulated_grad for p in parameters]
        ctx.set_materialize_grads(False)
        found = [x._local_tensor.view_as(x._local_tensor) for x in sharded]
        ctx.mark_non_differentiable(*[local for x, local in zip(sharded, found) if not x.requires_grad])
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        found = []
        for p, waiting, gradient in zip(ctx.parameters, ctx.waiting, gradients):
            if gradient is not None:
                _reduced(p, waiting)
            found.append(None if gradient is None else p.to_sharded_dtensor(gradient))
        return None, *found


def _reduced(p: Any, waiting: torch.Tensor | None) -> None:
    """Note that a caller's `backward()` has reduced a gradient, with those that waited for it in the forward."""
    if p.unsharded_accumulated_grad is not waiting:
        raise RuntimeError(
            "gradients that wait for their reduction (set_requires_gradient_sync) changed between the forward and the "
            "backward() of a jitted module that is sharded by fully_shard. Call backward() before the forward that "
            "reduces them, or jit the whole step"
        )
    p.unsharded_accumulated_grad = None


def gradient_receivers(unit: Any) -> list[torch.Tensor]:
    """Return stand-ins for the whole parameters of a unit that are trained.

    The gradients that a caller's `backward()` gives them wait in the unit until others are reduced.
    """
    with torch.enable_grad():
        return list(_Receivers.apply(torch.zeros((), device="cpu", requires_grad=True), unit))


class _Receivers(torch.autograd.Function):
    """Tensors of one element in memory, with the shapes of whole parameters."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, unit: Any) -> tuple[torch.Tensor, ...]:
        ctx.unit, ctx.trained = unit, [p for p in unit.fsdp_params if p.sharded_param.requires_grad]
        ctx.set_materialize_grads(False)
        zeros = [torch.zeros((), dtype=_reduce_dtype(p), device=unit.device) for p in ctx.trained]
        return tuple([x.expand(p._orig_size) for x, p in zip(zeros, ctx.trained)])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, None]:  # type: ignore[override]
        for p, gradient in zip(ctx.trained, gradients):
            if gradient is not None:
                _keep(p, gradient)
        if ctx.unit.reduce_grads:  # set_requires_gradient_sync was called between forward and backward
            _reduce_waiting(ctx.unit)
        return None, None


def _keep(p: Any, gradient: torch.Tensor) -> None:
    """Add the gradient of a whole parameter to those that are not reduced yet."""
    found = gradient.detach()
    layout = layout_of_whole(p) if p.is_dtensor else None
    if layout is not None:
        found = dtensors.dtensor_of(found, layout)
    waiting = p.unsharded_accumulated_grad  # not written in place: other tensors may share the memory of a gradient
    p.unsharded_accumulated_grad = found if waiting is None else waiting + found


def _reduce_waiting(unit: Any) -> None:
    """Reduce the gradients that wait, and add them to those of the shards, as torch does."""
    parameters = [p for p in unit.fsdp_params if p.unsharded_accumulated_grad is not None]
    gradients = [getattr(g, "_local_tensor", g) for g in (p.unsharded_accumulated_grad for p in parameters)]
    shapes, (_, group, replicas) = [shape_of(p) for p in parameters], groups_of_unit(unit)
    before, after, scatter, reduce = factors_of_unit(unit)
    with torch.no_grad():
        flat = flat_gradients(gradients, shapes, group.size(), _reduce_dtype(parameters[0]), before)
        total = flat.new_empty(flat.numel() // group.size())
        dist.reduce_scatter_tensor(total, flat, getattr(dist.ReduceOp, scatter.upper()), group)
        if replicas is not None:
            dist.all_reduce(total, getattr(dist.ReduceOp, reduce.upper()), replicas)
        for p, gradient in zip(parameters, gradients_of_shards(total, shapes, after)):
            p.unsharded_accumulated_grad = None
            found, present = p.to_sharded_dtensor(gradient), p.sharded_param.grad
            p.sharded_param.grad = found if present is None else present + found


def _reduce_dtype(p: Any) -> torch.dtype:
    """Return the dtype in which the gradients of a parameter are reduced, and in which they wait for it."""
    found: torch.dtype = p.reduce_dtype or p.param_dtype or p.orig_dtype
    return found


def waits(unit: Any) -> tuple[bool, ...]:
    """Check which parameters of a unit have gradients that are not reduced yet."""
    return tuple([p.unsharded_accumulated_grad is not None for p in unit.fsdp_params])


def sharded_parameters(module: Any, i: int) -> list[torch.Tensor]:
    """Return a unit's parameters, as tensors that are sharded."""
    return [p.sharded_param for p in units_of(module)[i].fsdp_params]


def plan_of_unit(module: Any, i: int) -> tuple[Any, ...]:
    """Return all that decides how a unit communicates, as plain values that a guard can compare."""
    unit = units_of(module)[i]
    settings = {name: getattr(unit, name, None) for name in _SETTINGS}
    kinds = (bool, int, float, type(None))
    plain = tuple([(name, x if isinstance(x, kinds) else "set") for name, x in settings.items()])
    classes = tuple([type(getattr(unit, name, None)).__name__ for name in _CLASSES])
    mesh, after = unit.mesh_info.mesh, unit.post_forward_mesh_info
    meshes = tuple([None if m is None else _plan_of_mesh(m) for m in (mesh, after and after.mesh)])
    names = ("shard_process_group", "reduce_scatter_process_group", "replicate_process_group")
    groups = [getattr(info, name, None) for info in (unit.mesh_info, after) for name in names]
    meshes = (*meshes, tuple([None if g is None else g.group_name for g in groups]))
    parameters = tuple([_plan_of(p) for p in unit.fsdp_params])
    found = unit._sharded_state.name, plain, classes, meshes, parameters, str(unit.mp_policy)
    # A guard compares the same object quickly. Settings may be equal and of different types, e.g. 1 and True.
    return _KNOWN_PLANS.setdefault((found, tuple(map(type, settings.values()))), found)


@functools.lru_cache(maxsize=64)  # meshes do not change
def _plan_of_mesh(mesh: Any) -> tuple[Any, ...]:
    return tuple(mesh.shape), tuple(mesh.mesh.flatten().tolist())


def _plan_of(p: Any) -> tuple[Any, ...]:
    local, whole = p.sharded_param._local_tensor, getattr(p, "_unsharded_param", None)
    # torch gathers the padded data, which is other memory if the parameter was replaced.
    same = local.untyped_storage().data_ptr() == p._sharded_param_data.untyped_storage().data_ptr()
    waiting = whole is not None and whole.grad is not None
    types = tuple([str(x) for x in (p.orig_dtype, p.param_dtype, p.reduce_dtype)])
    shapes = tuple(p._orig_size), tuple(p.sharded_size), tuple(p.padded_sharded_param_size)
    hooked = bool(p.sharded_param._post_accumulate_grad_hooks or p.sharded_param._backward_hooks)
    kind, placement = _kind_of(p), p.fsdp_placement.dim
    return p.sharded_param.requires_grad, types, shapes, placement, kind, hooked, same, waiting


def layout_of_whole(p: Any) -> Layout | None:
    """Return the layout that tensor parallelism gives to a parameter; None for one that a trace does not support."""
    layout = dtensors.layout_of_spec(_spec_of_whole(p))
    if layout is None or layout.local_shape != tuple(p._orig_size):
        return None
    return None if any(isinstance(x, Partial) for x in layout.placements) else layout


def _spec_of_whole(p: Any) -> Any:
    """Return the spec that tensor parallelism gives to a parameter."""
    return p._unsharded_dtensor_spec if hasattr(p, "_unsharded_dtensor_spec") else p._tp_spec  # torch 2.11


def _kind_of(p: Any) -> Any:
    """Return what a parameter is beside a shard, as plain values: with tensor parallelism, a key of its layout."""
    local = p.sharded_param._local_tensor
    if type(local) is not torch.Tensor or hasattr(local, "fsdp_pre_all_gather"):
        return "subclass"
    if not p.is_dtensor:
        return "plain"
    if getattr(p.mesh_info, "is_spmd_mesh", False):
        return "same mesh"
    spec = _spec_of_whole(p)
    return *dtensors.spec_key(spec), tuple(spec.shape)


# -- parameters and their parts ---------------------------------------------------------------------------------------
class Shape(NamedTuple):
    """The shapes of a parameter."""

    whole: tuple[int, ...]
    shard: tuple[int, ...]  # on this rank
    numel: int  # of the whole parameter
    padded: int  # elements of a shard on all ranks
    dim: int  # that is sharded
    trained: bool
    dtype: torch.dtype


def shape_of(p: Any) -> Shape:
    """Return the shapes of a parameter."""
    whole, shard, trained = tuple(p._orig_size), tuple(p.sharded_size), p.sharded_param.requires_grad
    padded, dim = p.padded_sharded_param_size.numel(), p.fsdp_placement.dim
    return Shape(whole, shard, p._orig_size.numel(), padded, dim, trained, p.orig_dtype)


def groups_of_unit(unit: Any) -> tuple[Any, Any, Any]:
    """Return the process groups that gather shards, that reduce gradients, and of the replicas of a shard or None."""
    mesh = unit.mesh_info
    replicas = getattr(mesh, "replicate_process_group", None)
    return mesh.shard_process_group, unit._reduce_scatter_process_group, replicas


def factors_of_unit(unit: Any) -> tuple[Any, Any, str, str]:
    """Return by what gradients are divided before and after they are reduced, and the two reductions."""
    module: Any = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_collectives"]
    sums = getattr(unit, "force_sum_reduction_for_comms", False)
    dtype, factor = _reduce_dtype(unit.fsdp_params[0]), unit.gradient_divide_factor
    found = module._get_gradient_divide_factors(*groups_of_unit(unit)[1:], dtype, unit.device.type, factor, sums)
    scatter, reduce = (str(getattr(op, "op", op)).rpartition(".")[2].lower() for op in found[2:])
    return found[0], found[1], scatter, reduce


def whole_of(flat: torch.Tensor, p: Shape, size: int) -> torch.Tensor:
    """Return a parameter, given the shards of all `size` ranks, one after another."""
    if p.dim == 0:
        return flat[: p.numel].view(p.whole)
    return torch.cat([row.view(p.shard) for row in flat.view(size, -1).unbind(0)], p.dim)  # shards of the same shape


def _rows_of(whole: torch.Tensor, p: Shape, size: int) -> torch.Tensor:
    """Return the shards of all ranks, given a parameter or its gradient."""
    if p.dim != 0:
        whole = torch.cat(whole.chunk(size, p.dim), 0)
    return padded(whole.reshape(-1), size * p.padded).view(size, -1)


def flat_gradients(
    gradients: Sequence[torch.Tensor], shapes: Sequence[Shape], size: int, dtype: torch.dtype, divisor: float | None
) -> torch.Tensor:
    """Return gradients of whole parameters as they are reduced: in one tensor with a part for each of `size` ranks."""
    rows = [_rows_of(g, p, size).to(dtype) for g, p in zip(gradients, shapes)]
    flat = torch.cat(rows, dim=1).reshape(-1)
    return flat if divisor in (None, 1) else flat / divisor


def gradients_of_shards(total: torch.Tensor, shapes: Sequence[Shape], divisor: float | None) -> list[torch.Tensor]:
    """Return the gradients of this rank's shards from its part of the reduced gradients."""
    if divisor not in (None, 1):
        total = total / divisor
    parts = total.split([p.padded for p in shapes])
    return [part[: math.prod(p.shard)].view(p.shard).to(p.dtype) for part, p in zip(parts, shapes)]


def padded(flat: torch.Tensor, numel: int) -> torch.Tensor:
    """Return elements with zeros after them."""
    return F.pad(flat, (0, numel - flat.shape[0])) if flat.shape[0] < numel else flat
