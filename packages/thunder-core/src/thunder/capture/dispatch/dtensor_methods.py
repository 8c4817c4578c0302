# SPDX-License-Identifier: Apache-2.0
"""The methods of DTensor that convert and redistribute, which are replaced while a program is traced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.tracing_mode import TracingMode
from thunder.capture.dispatch.collectives import check_scope
from thunder.capture.dispatch.dtensors import (
    contiguous_strides,
    dtensor,
    dtensor_class,
    local_and_layout,
    redistributed,
    varying,
)
from thunder.capture.tensors.tracer import Tracer
from thunder.core.layouts import Layout, Partial, Placement, Replicated, Sharded
from thunder.core.state import state
from thunder.runtime.kernels import dtensors

__all__ = ["replaced_dtensor_methods"]


def _placements_of(mesh: Any, placements: Any) -> list[Placement]:
    if placements is None:
        return [Replicated()] * mesh.ndim
    found = [dtensors.placement_of(p) for p in placements]
    if None in found or len(found) != mesh.ndim:
        fall_back(f"the program distributes a DTensor with placements {placements}")
    return found  # type: ignore[return-value]


def _positive(placements: Sequence[Placement], ndim: int) -> list[Placement]:
    return [Sharded(p.dim % ndim) if isinstance(p, Sharded) and ndim else p for p in placements]


def _from_local(
    tracer: Tracer, local_tensor: Any, device_mesh: Any = None, placements: Any = None, *, run_check: bool = False,
    shape: Any = None, stride: Any = None, grad_placements: Any = None,
) -> Any:  # fmt: skip
    """Replace `DTensor.from_local`."""
    if device_mesh is None or run_check or grad_placements is not None or isinstance(local_tensor, dtensor_class()):
        fall_back("the program calls DTensor.from_local with run_check, grad_placements, or without a mesh")
    with tracer.recording():
        mesh = dtensors.mesh_of(device_mesh)
        if mesh is None:
            fall_back("the program uses a device mesh whose process groups do not exist anymore")
    placed = _positive(_placements_of(device_mesh, placements), local_tensor.dim())
    sizes = list(local_tensor.shape)
    for group, p in zip(mesh.groups, placed):
        if isinstance(p, Sharded):
            sizes[p.dim] *= group.size
    if shape is not None and list(shape) != sizes:
        fall_back("the program calls DTensor.from_local with a shape that ranks share unevenly")
    check_scope(tracer, "DTensor.from_local")
    return dtensor(tracer, tracer.handle_of(local_tensor), Layout(placed, sizes, contiguous_strides(sizes), mesh))


def _to_local(tracer: Tracer, x: Any, *, grad_placements: Any = None) -> Any:
    """Replace `DTensor.to_local`. With partial `grad_placements`, each rank has a summand of the gradient."""
    local, layout = local_and_layout(tracer, x)
    if grad_placements is not None:
        placed = _positive(_placements_of(x.device_mesh, grad_placements), len(layout.shape))
        for group, p, new in zip(layout.mesh.groups, layout.of_gradient.placements, placed):
            if isinstance(p, Replicated) and new == Partial("sum"):
                local = varying(tracer, local, group)
            elif p != new:
                fall_back(f"the program calls DTensor.to_local with grad_placements={grad_placements}")
    return local.view_as(local)


def _redistribute(
    tracer: Tracer, x: Any, device_mesh: Any = None, placements: Any = None, *, async_op: bool = False,
    forward_dtype: Any = None, backward_dtype: Any = None,
) -> Any:  # fmt: skip
    """Replace `DTensor.redistribute`."""
    local, layout = local_and_layout(tracer, x)
    if placements is None or forward_dtype is not None or backward_dtype is not None:
        fall_back("the program calls DTensor.redistribute without placements, or with dtypes")
    if device_mesh is not None and device_mesh != x.device_mesh:
        fall_back("the program redistributes a DTensor to another mesh")
    placed = _positive(_placements_of(x.device_mesh, placements), len(layout.shape))
    check_scope(tracer, "DTensor.redistribute")
    if placed == list(layout.placements):
        return x
    out = redistributed(tracer, local, layout, placed)
    return dtensor(tracer, out, Layout(placed, layout.shape, layout.stride, layout.mesh))


def _full_tensor(tracer: Tracer, x: Any, *, grad_placements: Any = None) -> Any:
    """Replace `DTensor.full_tensor`."""
    whole = _redistribute(tracer, x, None, [torch.distributed.tensor.Replicate()] * x.device_mesh.ndim)
    return _to_local(tracer, whole, grad_placements=grad_placements)


def replaced_dtensor_methods() -> list[tuple[Any, str, Any]]:
    """Return the replacements of the methods of DTensor that convert and redistribute."""
    cls = dtensor_class()
    if cls is None or not torch.distributed.is_initialized():
        return []

    def replaced(ours: Callable[..., Any], original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if state.frontend is None:
                return original(*args, **kwargs)
            with TracingMode():
                return ours(state.frontend, *args, **kwargs)

        return call

    return [
        (cls, "from_local", staticmethod(replaced(_from_local, cls.from_local))),
        (cls, "to_local", replaced(_to_local, cls.to_local)),
        (cls, "redistribute", replaced(_redistribute, cls.redistribute)),
        (cls, "full_tensor", replaced(_full_tensor, cls.full_tensor)),
    ]
