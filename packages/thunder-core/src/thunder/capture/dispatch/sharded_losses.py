# SPDX-License-Identifier: Apache-2.0
"""How cross-entropy runs on logits whose classes are sharded (`torch.distributed.tensor.parallel.loss_parallel`).

The logits stay where they are. All ranks of the mesh dimension that shards the classes need the targets of their rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from thunder.core.layouts import Layout, Partial, Placement, Replicated, Sharded
from thunder.torch.cross_entropy import rule_options

__all__ = ["LossPlan", "plan_of_loss"]


class LossPlan(NamedTuple):
    """The placements of operands and result, and what the dimensions of the mesh shard."""

    operands: dict[str, list[Placement]]  # by the names of arguments
    result: list[Placement]
    classes: int  # the dimension of the mesh that shards the classes
    rows: list[int]  # the dimensions of the mesh that shard rows
    ignore_index: int
    reduction: str


def plan_of_loss(arguments: dict[str, Any], layouts: dict[str, Layout]) -> LossPlan | None:
    """Return how to compute a cross-entropy without a gather of the logits, or None if that is not possible.

    It is possible for class numbers without label smoothing, if one dimension of the mesh shards the classes.
    """
    given = {k: v for k, v in arguments.items() if k not in ("input", "target")}
    _, ignore_index, reduction, smoothing = rule_options(**given)
    logits, target = layouts["input"], layouts.get("target")
    dim = 0 if len(logits.shape) == 1 else 1
    of_classes = [k for k, p in enumerate(logits.placements) if p == Sharded(dim)]
    if target is None or len(of_classes) != 1 or smoothing or not _checked(arguments, layouts, dim):
        return None
    operands: dict[str, list[Placement]] = {name: [] for name in layouts}
    result: list[Placement] = []
    for k, p in enumerate(logits.placements):
        of_row = p.dim - (p.dim > dim) if isinstance(p, Sharded) and k not in of_classes else None
        operands["input"].append(p if isinstance(p, Sharded) else Replicated())
        operands["target"].append(Replicated() if of_row is None else Sharded(of_row))
        if "weight" in operands:
            operands["weight"].append(Replicated())
        if of_row is None:
            result.append(Replicated())
        else:
            result.append(Sharded(of_row) if reduction == "none" else Partial("sum"))
    rows = [k for k, p in enumerate(logits.placements) if isinstance(p, Sharded) and k not in of_classes]
    return LossPlan(operands, result, of_classes[0], rows, ignore_index, reduction)


def _checked(arguments: dict[str, Any], layouts: dict[str, Layout], dim: int) -> bool:
    """Check for class numbers that fit the logits. torch's error for others comes from the usual cross-entropy."""
    shape, target, weight = layouts["input"].shape, layouts["target"].shape, layouts.get("weight")
    rows = (*shape[:dim], *shape[dim + 1 :])
    return (
        (target == rows or (rows == () and target == (1,) != shape))
        and arguments["target"].dtype in (torch.int64, torch.uint8)
        and arguments["input"].is_floating_point()
        and (
            weight is None or (weight.shape == (shape[dim],) and arguments["weight"].dtype == arguments["input"].dtype)
        )
    )
