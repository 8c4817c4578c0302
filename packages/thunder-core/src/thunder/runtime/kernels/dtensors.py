# SPDX-License-Identifier: Apache-2.0
"""DTensors at the border of compiled programs: their local tensors, and DTensors made of local tensors."""

from __future__ import annotations

from typing import Any

import torch

from thunder.core.groups import Group
from thunder.core.layouts import NORM, Layout, Mesh, Partial, Placement, Replicated, Sharded
from thunder.runtime.kernels.table import kernel
from thunder.runtime.torch_private import norm_placement, strided_placement

__all__ = [
    "dtensor_of", "layout_key", "layout_of_spec", "local_of", "local_with_gradient", "mesh_of", "placement_of",
    "spec_key", "spec_of",
]  # fmt: skip

# torch's objects for meshes and for layouts with a dtype. A mesh lives as long as its process groups.
_MESHES: dict[Mesh, Any] = {}
_SPECS: dict[tuple[Layout, torch.dtype], Any] = {}
# The keys of specs, by their ids: prologues ask for the same specs in each call.
_KEYS: dict[int, tuple[Any, Any, Any, tuple[Any, ...]]] = {}
_MOST_KEYS = 4096


def mesh_of(mesh: Any) -> Mesh | None:
    """Return the description of a device mesh of torch, or None if a group of it does not exist anymore.

    If process groups have been destroyed and created again, torch gives new DTensors an earlier mesh, which is equal to
    theirs. The description is that of a mesh of now, if one is known.
    """
    found = _described(mesh)
    if found is None:
        equal = [other for other in [*_MESHES.values()] if other is not mesh and other == mesh]  # threads add to it
        return next((found for other in equal if (found := _described(other)) is not None), None)
    return found


def _described(mesh: Any) -> Mesh | None:
    from torch.distributed.distributed_c10d import get_process_group_ranks

    groups = [mesh.get_group(i) for i in range(mesh.ndim)]
    try:
        ranks = [get_process_group_ranks(g) for g in groups]
    except (KeyError, ValueError):
        return None
    described = [Group(str(g.group_name), r, str(getattr(g, "group_desc", ""))) for g, r in zip(groups, ranks)]
    found = Mesh(mesh.device_type, described, mesh.mesh_dim_names)
    if _MESHES.get(found) is not mesh:  # an earlier one may have groups that were destroyed
        _MESHES[found] = mesh
        _SPECS.clear()
    return found


def placement_of(placement: Any) -> Placement | None:
    """Return the description of a placement of torch, or None if layouts do not have it."""
    kinds = torch.distributed.tensor
    if type(placement) is kinds.Shard:
        return Sharded(placement.dim)
    if type(placement) is strided_placement():
        return Sharded(placement.dim, placement.split_factor)
    if type(placement) is kinds.Replicate:
        return Replicated()
    if type(placement) is norm_placement():
        return Partial(f"{NORM}{float(placement.norm_type)}")
    return Partial(placement.reduce_op) if type(placement) is kinds.Partial else None


def layout_of_spec(spec: Any) -> Layout | None:
    """Return the layout of a DTensor's spec, or None if it has a placement that layouts do not have."""
    placements = [placement_of(p) for p in spec.placements]
    sharded = [p.dim for p in placements if isinstance(p, Sharded) and p.factor == 1]
    if len(set(sharded)) != len(sharded):
        return None  # several dimensions of the mesh shard one dimension, and not in blocks
    if None in placements:
        return None
    mesh = mesh_of(spec.mesh)
    return None if mesh is None else Layout(placements, spec.shape, spec.stride, mesh)  # type: ignore[arg-type]


def layout_key(x: Any) -> Any:
    """Return a DTensor's layout, as plain values. Prologues of programs call this function."""
    spec = getattr(x, "_spec", None)
    if spec is None:
        return None
    return *spec_key(spec), tuple(x._local_tensor.shape)


def spec_key(spec: Any) -> tuple[Any, ...]:
    """Return the placements and the mesh of a DTensor's spec, as plain values."""
    known, placements, mesh = _KEYS.get(id(spec)), spec.placements, spec.mesh
    if known is not None and known[0] is spec and known[1] is placements and known[2] is mesh:
        return known[3]
    groups = tuple([mesh.get_group(i).group_name for i in range(mesh.ndim)])
    key = tuple(map(str, placements)), groups, mesh.device_type, mesh.mesh_dim_names
    if len(_KEYS) >= _MOST_KEYS:
        _KEYS.clear()
    _KEYS[id(spec)] = spec, placements, mesh, key
    return key


def spec_of(layout: Layout, dtype: torch.dtype) -> Any:
    """Return torch's spec of a layout."""
    found = _SPECS.get((layout, dtype))
    if found is None:
        from torch.distributed.tensor import Partial as PartialOf
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

        def placement(p: Placement) -> Any:
            if isinstance(p, Sharded):
                return Shard(p.dim) if p.factor == 1 else strided_placement()(p.dim, split_factor=p.factor)
            if isinstance(p, Partial) and p.op.startswith(NORM):
                return norm_placement()(float(p.op.removeprefix(NORM)))
            return PartialOf(p.op) if isinstance(p, Partial) else Replicate()

        mesh = _MESHES.get(layout.mesh)
        if mesh is None:
            raise RuntimeError(f"this process has no device mesh {layout.mesh!r}")
        meta = TensorMeta(torch.Size(layout.shape), layout.stride, dtype)
        found = DTensorSpec(mesh, tuple(map(placement, layout.placements)), tensor_meta=meta)
        _SPECS[layout, dtype] = found
    return found


@kernel
def local_of(a: Any, layout: Layout) -> torch.Tensor:
    """Return the local tensor of a DTensor, redistributed to a layout if it is a gradient with another one."""
    spec = getattr(a, "_spec", None)
    if spec is None:
        raise RuntimeError(f"expected a DTensor with the layout {layout!r}, not a tensor of class {type(a).__name__}")
    placements = spec_of(layout, a.dtype).placements
    if spec.placements != placements:
        a = a.redistribute(placements=placements)
    local: torch.Tensor = a._local_tensor
    return local.wait() if type(local) is not torch.Tensor and hasattr(local, "wait") else local


def local_with_gradient(x: Any) -> Any:
    """Return the local tensor of a DTensor, whose gradient becomes the DTensor's. Prologues call this function."""
    with torch.enable_grad():
        return x.to_local()


@kernel
def dtensor_of(a: torch.Tensor, layout: Layout) -> Any:
    """Return the DTensor with a local tensor."""
    from torch.distributed.tensor import DTensor

    return DTensor(a, spec_of(layout, a.dtype), requires_grad=False)  # type: ignore[call-arg]
