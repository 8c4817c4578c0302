# SPDX-License-Identifier: Apache-2.0
"""The program that each rank of the tests of differing ranks runs: each way in which users' ranks come to differ.

The report contains for each case "right" if all numbers are those of eager mode, or the error.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from processes import main
from ranks_differ import error_of
from ranks_eager import mesh_of_three_seconds, model_of
from torch import nn

import thunder
from thunder.frontend import check_ranks, rank_agreement


def training(
    mesh: Any,
    name: str,
    kind: str,
    rank: int,
    *,
    rows: Callable[[int], int] = lambda i: 3,
    untraceable: int | None = None,
    branches: bool = False,
    **options: Any,
) -> str:
    """Run four steps jitted and eagerly, with `rows(step)` rows."""

    group = mesh.get_group()

    def losses(jit: Callable[..., Any]) -> list[float]:
        model = model_of(kind, mesh) if kind == "sharded" else _plain()
        if kind == "replicated":
            model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x: torch.Tensor, i: int) -> torch.Tensor:
            if untraceable and i == untraceable:
                torch.manual_seed(0)
            loss = model(x).square().mean()
            if branches and x.sum() > 0:
                loss = loss * 2
            loss.backward()
            for p in model.parameters() if kind == "by hand" else ():
                dist.all_reduce(p.grad, group=group)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step.__qualname__ = name
        jitted, found = jit(step), []
        for i in range(4):
            torch.manual_seed(10 * i + rank)
            found.append(jitted(torch.randn(rows(i), 4), i).item())
        return found

    expected = losses(lambda step: step)
    return outcome(lambda: losses(lambda step: thunder.jit(step, sharp_edges="allow", **options)) == expected)


def _plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


def outcome(run: Callable[[], bool]) -> str:
    found: list[bool] = []
    error = error_of(lambda: found.append(run()))
    return error or ("right" if found[0] else "wrong")


def in_other_order(mesh: Any, rank: int, *, at_first: bool) -> str:
    """Call two functions in the same order, unless `at_first`, and then in another order on rank 1."""
    group = mesh.get_group()

    def first(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x, "sum", group) + 1

    def second(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", group) + 2

    first.__qualname__, second.__qualname__ = f"first{at_first}", f"second{at_first}"
    functions, x = [thunder.jit(f, check_ranks=True) for f in (first, second)], torch.ones(3)
    for f in () if at_first else functions:
        f(x)
    return outcome(lambda: {f: f(x).sum().item() for f in functions[:: 1 - 2 * rank]} == dict(zip(functions, (9, 18))))


def after_the_end_of_rank_1(mesh: Any, rank: int, found: dict[str, Any]) -> None:
    """Rank 1 ends while rank 0 waits for it."""
    group = mesh.get_group()
    f = thunder.jit(lambda x: functional.all_reduce(x, "sum", group) * 2, check_ranks=False)
    f(torch.ones(3))
    if rank == 0:
        found["other rank ends"] = outcome(lambda: f(torch.ones(3)) is None)
    print(json.dumps(found), flush=True)
    os._exit(0)


def cases(rank: int) -> dict[str, Callable[[Any], str]]:
    """Return each case, given a mesh of its own."""
    one, numbers = 1 if rank else None, itertools.count()

    def case(kind: str, **options: Any) -> Callable[[Any], str]:
        name = f"step{next(numbers)}"
        return lambda mesh: training(mesh, name, kind, rank, **options)

    return {
        # These come first: their comparison ends as soon as a rank runs a function eagerly.
        "order": lambda mesh: in_other_order(mesh, rank, at_first=False),
        "order at first": lambda mesh: in_other_order(mesh, rank, at_first=True),
        "shapes": case("sharded", rows=lambda i: 3 + 2 * rank),
        "shapes, DDP": case("replicated", rows=lambda i: 3 + 2 * rank),
        "one compiles again": case("sharded", rows=lambda i: 3 + 9000 * (rank and i > 1)),
        "branches": case("sharded", branches=True),
        "one falls back, DDP": case("replicated", untraceable=one and 3),
        "all fall back once, merged": case("by hand", untraceable=1, bucketing="exact"),
        "one cannot be compiled, merged": case("by hand", untraceable=one, bucketing="exact"),
        "one falls back, merged": case("by hand", untraceable=one and 3, bucketing="exact"),
        "bucketing": case("by hand", bucketing=("exact", "never")[rank]),
        "remat": case("sharded", remat=("auto", "none")[rank]),
        "kept_parameters": case("sharded", kept_parameters=(0, "auto")[rank], overlap_memory=(None, 0)[rank]),
    }


def run(rank: int, size: int) -> dict[str, Any]:
    rank_agreement.timeout_of_group = lambda: 1.0  # type: ignore[assignment]
    check_ranks.timeout_of_group = lambda: 1.0  # type: ignore[assignment]
    named = cases(rank)
    # Created first, because ranks that have raised an error go on sooner than those that wait for a timeout.
    meshes = [mesh_of_three_seconds() for _ in range(len(named) + 1)]
    found = {}
    for (name, run_case), mesh in zip(named.items(), meshes):
        dist.barrier()
        found[name] = run_case(mesh)
    dist.barrier()
    after_the_end_of_rank_1(meshes[-1], rank, found)
    return found


if __name__ == "__main__":
    main(run, on_device=True, blocking=True)
