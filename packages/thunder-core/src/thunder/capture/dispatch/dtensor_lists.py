# SPDX-License-Identifier: Apache-2.0
"""Functions of lists of DTensors (`torch._foreach_*` and `torch._fused_*`), which optimizers and clipping call.

They are elementwise, except for norms, so they run on the local tensors of DTensors with the same placements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.dispatch.collectives import check_scope
from thunder.capture.dispatch.dtensors import dtensor, filled, has_dtensors, local_and_layout, tensors_of
from thunder.capture.dispatch.sharding import norm_reduction
from thunder.capture.dispatch.writing import writes_in_place
from thunder.capture.tensors.tracer import Tracer
from thunder.core.layouts import Layout, Partial, Replicated, Sharded

__all__ = ["call_on_lists", "takes_lists"]


def takes_lists(func: Any) -> bool:
    """Check for a function of lists of tensors."""
    return getattr(func, "__name__", "").startswith(("_foreach_", "_fused_"))


def call_on_lists(
    tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[..., Any]
) -> Any:
    """Call an elementwise function of lists of tensors, e.g. of an optimizer, on the local tensors."""
    name = func.__name__
    layouts = _layouts(tracer, name, args, kwargs)
    check_scope(tracer, f"{name} on DTensors")
    locals_ = iter(
        [local_and_layout(tracer, x)[0] if has_dtensors((x,), {}) else x for x in tensors_of((args, kwargs))]
    )
    out = call(tracer, func, filled(args, locals_), filled(kwargs, locals_))
    if writes_in_place(name):
        return args[0] if name.startswith("_foreach_") else None
    if name == "_foreach_norm":
        order = (*args[1:], *[kwargs[k] for k in ("ord",) if k in kwargs], 2)[0]
        layouts = [_of_reduction(layout, norm_reduction(order)) for layout in layouts]
    elif any(tuple(x.shape) != layout.local_shape for x, layout in zip(out, layouts)):
        fall_back(f"the program calls {name} on DTensors, which is not elementwise")
    return type(out)([dtensor(tracer, tracer.handle_of(x), layout) for x, layout in zip(out, layouts)])


def _layouts(tracer: Tracer, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Layout]:
    """Return the layouts of the lists' DTensors by position, or fall back if those of a position differ."""
    lists = [x for x in (*args, *kwargs.values()) if isinstance(x, (list, tuple)) and has_dtensors((x,), {})]
    layouts: list[Layout] = []
    for i in range(max(map(len, lists), default=0)):
        found = {local_and_layout(tracer, xs[i])[1] for xs in lists if i < len(xs) and has_dtensors((xs[i],), {})}
        same = {(x.placements, x.shape, x.part, x.mesh) for x in found}
        if len(same) != 1 or any(isinstance(p, Partial) for x in found for p in x.placements):
            fall_back(f"the program calls {name} on DTensors with different placements, or on sums of several ranks")
        layouts.append(found.pop())
    single = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if any(has_dtensors((x,), {}) and not _is_replicated(local_and_layout(tracer, x)[1]) for x in single):
        fall_back(f"the program calls {name} on DTensors with a number that is not the same on all ranks")
    for xs in lists:
        if any(not has_dtensors((x,), {}) and x.dim() for x in xs if isinstance(x, torch.Tensor)):
            fall_back(f"the program combines a DTensor and a torch.Tensor in {name}")
    return layouts


def _is_replicated(layout: Layout) -> bool:
    return all(isinstance(p, Replicated) for p in layout.placements)


def _of_reduction(layout: Layout, op: str) -> Layout:
    """Return the layout of the reduction of a whole tensor."""
    placements = [Partial(op) if isinstance(p, Sharded) else p for p in layout.placements]
    return Layout(placements, (), (), layout.mesh)
