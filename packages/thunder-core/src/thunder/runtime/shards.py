# SPDX-License-Identifier: Apache-2.0
"""Parameters of which each process has a shard (`fully_shard`), as prologues read them.

A *unit* is what torch calls a parameter group: the parameters that one call of `fully_shard` communicates together.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from thunder.core.layouts import Layout, Partial
from thunder.runtime.kernels import dtensors

__all__ = ["layout_of_whole", "local_shards", "plan_of_unit", "sharded_parameters", "units_of"]

# Settings of a unit that decide how it communicates. Not all versions of torch have all of them.
_SETTINGS = (
    "reduce_grads", "all_reduce_grads", "reshard_after_backward", "gradient_divide_factor", "unshard_in_backward",
    "reduce_scatter_unused_params", "force_sum_reduction_for_comms", "_all_reduce_hook", "_all_gather_result",
    "_partial_reduce_output",
)  # fmt: skip
_CLASSES = ("offload_policy", "_all_gather_comm", "_reduce_scatter_comm", "mesh_info")


def units_of(module: Any) -> list[Any]:
    """Return the units whose parameters are gathered for a module; none if another module has torch's state of it."""
    states: Any = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_state"]
    state = states._get_module_fsdp_state(module)
    if state is None:
        return []
    units = getattr(state, "_fsdp_param_groups", None)  # earlier versions of torch have one or none
    return [x for x in [state._fsdp_param_group] if x is not None] if units is None else units


def local_shards(module: Any, i: int) -> list[torch.Tensor]:
    """Return the shards of a unit's parameters. Their gradients arrive at the parameters as sharded tensors.

    Like parameters, they require grad also where gradients are disabled.
    """
    with torch.enable_grad():
        return [p.sharded_param.to_local() for p in units_of(module)[i].fsdp_params]


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
    return unit._sharded_state.name, plain, classes, meshes, parameters, str(unit.mp_policy)


def _plan_of_mesh(mesh: Any) -> tuple[Any, ...]:
    return tuple(mesh.shape), tuple(mesh.mesh.flatten().tolist())


def _plan_of(p: Any) -> tuple[Any, ...]:
    local, whole = p.sharded_param._local_tensor, getattr(p, "_unsharded_param", None)
    # torch gathers the padded data, which is other memory if the parameter was replaced.
    same = local.untyped_storage().data_ptr() == p._sharded_param_data.untyped_storage().data_ptr()
    accumulated = getattr(p, "unsharded_accumulated_grad", None) is not None
    waiting = whole is not None and whole.grad is not None
    types = tuple([str(x) for x in (p.orig_dtype, p.param_dtype, p.reduce_dtype)])
    shapes = tuple(p._orig_size), tuple(p.sharded_size), tuple(p.padded_sharded_param_size)
    hooked = bool(p.sharded_param._post_accumulate_grad_hooks or p.sharded_param._backward_hooks)
    kind, placement = _kind_of(p), p.fsdp_placement.dim
    return p.sharded_param.requires_grad, types, shapes, placement, kind, hooked, same, accumulated, waiting


def layout_of_whole(p: Any) -> Layout | None:
    """Return the layout that tensor parallelism gives to a parameter; None for one that a trace does not support."""
    layout = dtensors.layout_of_spec(p._unsharded_dtensor_spec)
    if layout is None or layout.local_shape != tuple(p._orig_size):
        return None
    return None if any(isinstance(x, Partial) for x in layout.placements) else layout


def _kind_of(p: Any) -> Any:
    """Return what a parameter is beside a shard, as plain values: with tensor parallelism, a key of its layout."""
    local = p.sharded_param._local_tensor
    if type(local) is not torch.Tensor or hasattr(local, "fsdp_pre_all_gather"):
        return "subclass"
    if not p.is_dtensor:
        return "plain"
    if getattr(p.mesh_info, "is_spmd_mesh", False):
        return "same mesh"
    spec = p._unsharded_dtensor_spec
    return *dtensors.spec_key(spec), tuple(spec.shape)
