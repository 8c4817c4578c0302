# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine.measure_collectives()`: how long collectives of several sizes take in a process group."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core.groups import Group
from thunder.examine.hardware import Curve
from thunder.runtime.kernels import collectives
from thunder.torch.collectives import group_named

__all__ = ["SIZES", "measure_collectives"]

#: The sizes that are measured, in bytes.
SIZES = tuple([1 << n for n in range(10, 27, 2)])

# How to start a collective that moves the bytes of a tensor of floats. Its length is a multiple of the number of ranks.
_STARTS: dict[str, Callable[[torch.Tensor, Group], torch.Tensor]] = {
    "all_reduce": lambda x, group: collectives.all_reduce(x, "sum", group),
    "all_gather": lambda x, group: collectives.all_gather(x[: len(x) // group.size], group),
    "reduce_scatter": lambda x, group: collectives.reduce_scatter(x, "sum", group),
    "all_to_all": lambda x, group: collectives.all_to_all(x, _even(x, group), _even(x, group), group),
    "broadcast": lambda x, group: collectives.broadcast(x, 0, group),
}


def _even(x: torch.Tensor, group: Group) -> list[int]:
    return [len(x) // group.size] * group.size


def measure_collectives(
    group: Any = None,
    *,
    kinds: Sequence[str] = tuple(_STARTS),
    sizes: Sequence[int] = SIZES,
    rounds: int = 5,
    device: torch.device | str | None = None,
) -> list[Curve]:
    """Measure collectives of a process group, for `Hardware.with_curves`. All of its ranks must call this function.

    `group` is a process group of torch.distributed; None means the default group. `device` is where the tensors are;
    None means the current GPU if the group has NCCL, else the CPU. The median of `rounds` counts, and the slowest rank.
    """
    named = group_named(torch.distributed.group.WORLD if group is None else group)
    if device is None:
        on_gpu = torch.distributed.get_backend(group) == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    device = torch.device(device)
    found = []
    for kind in kinds:
        points = []
        for size in sorted(sizes):
            count = max(1, size // 4 // named.size) * named.size
            x = torch.zeros(count, device=device)
            seconds = statistics.median(_seconds(_STARTS[kind], x, named) for _ in range(rounds + 1))
            slowest = collectives.all_reduce(torch.tensor(seconds, dtype=torch.float64, device=device), "max", named)
            points.append((count * 4, float(collectives.wait(slowest))))
        found.append(Curve(kind, named.size, tuple(points)))
    return found


def _seconds(start: Callable[[torch.Tensor, Group], torch.Tensor], x: torch.Tensor, group: Group) -> float:
    collectives.wait(collectives.synchronize_ranks(group, str(x.device)))
    if x.is_cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    collectives.wait(start(x, group))
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin
