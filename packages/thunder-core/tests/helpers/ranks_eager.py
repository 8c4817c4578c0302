# SPDX-License-Identifier: Apache-2.0
"""The program that each rank of the tests of eager calls beside programs with `fully_shard` and DTensors runs.

The report contains for each case the losses of its steps or the error, and the reason if the function runs eagerly.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from processes import DEVICE, main
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import thunder
from thunder.frontend import rank_agreement

Step = Callable[[torch.Tensor, bool], torch.Tensor]


def mesh_of_three_seconds() -> DeviceMesh:
    """Return a mesh of all ranks whose collectives soon fail."""
    return DeviceMesh.from_group(dist.new_group(timeout=datetime.timedelta(seconds=3)), DEVICE)


def model_of(kind: str, mesh: DeviceMesh) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    if kind == "parallel":
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def step_of(name: str, kind: str, mesh: DeviceMesh) -> Step:
    """Return a step that no trace can express if its second argument is true."""
    model = model_of(kind, mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: torch.Tensor, untraceable: bool) -> torch.Tensor:
        if untraceable:
            torch.manual_seed(0)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step.__qualname__ = step.__name__ = name
    return step


def losses(step: Step, untraceable: list[bool]) -> list[float]:
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    return [step(x, each).item() for each in untraceable]


def outcome(name: str, untraceable: list[bool], kind: str = "sharded", before: Callable[[], Any] = int) -> Any:
    """Compare a jitted step with the eager one, in the same order on all ranks."""
    mesh = mesh_of_three_seconds()
    expected = losses(step_of(name, kind, mesh), [False] * len(untraceable))
    jitted = thunder.jit(step_of(name, kind, mesh), check_ranks=False, sharp_edges="allow")
    before()
    try:
        found: Any = losses(jitted, untraceable) == expected
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    stats = jitted._stats
    return {"found": found, "reason": stats.partly_eager or stats.eager, "misses": thunder.cache_misses(jitted)}


def follows_nobody(x: torch.Tensor) -> torch.Tensor:
    return x


follows_nobody.__qualname__ = follows_nobody.__name__ = "follows"


def run(rank: int, size: int) -> dict[str, Any]:
    rank_agreement.timeout_of_group = lambda: 1.0  # type: ignore[assignment]
    store = distributed_c10d._get_default_store()

    thunder.jit(follows_nobody)(torch.ones(1))  # it has the same title

    def after_rank_0() -> None:
        if rank:
            store.wait([f"{rank_agreement.Function('thunder.jit(follows)', '1.0').key}/always/0"])

    return {
        # The first one, because torch confuses meshes of the same ranks in DTensors.
        "alone with DTensors": outcome("alone_parallel", [False, False, rank == 0], "parallel"),
        "together": outcome("together", [False, False, True, False]),
        "follows": outcome("follows", [rank == 0] * 3, before=after_rank_0),
        "alone": outcome("alone", [False, False, rank == 1]),
    }


if __name__ == "__main__":
    main(run, on_device=True, blocking=True)
