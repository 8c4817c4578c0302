# SPDX-License-Identifier: Apache-2.0
"""A program that each rank of a test of collectives runs: `python ranks.py RANK STORE`.

Every case runs three times eagerly and three times jitted. The program prints, as JSON, for each case: both lists of
results, the cache hits, the compilations, and the reason if the function is partly eager.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import thunder

CASES: dict[str, Callable[[torch.Tensor], Any]] = {}
GRADIENTS = {"gradient", "nn_gradient", "autograd_function"}


def case(fn: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """Register a case under the function's name."""
    CASES[fn.__name__] = fn
    return fn


def reduced(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x, "sum", dist.group.WORLD)


@case
def used(x: torch.Tensor) -> torch.Tensor:
    return reduced(x) * 2


@case
def unused_on_one_rank(x: torch.Tensor) -> torch.Tensor:
    first, second = reduced(x), reduced(x * 10)
    return second if dist.get_rank() == 0 else first + second


@case
def equal_calls(x: torch.Tensor) -> torch.Tensor:
    first, second = reduced(x), reduced(x)
    return second if dist.get_rank() == 0 else first + second


@case
def raw_operators(x: torch.Tensor) -> torch.Tensor:
    name = dist.group.WORLD.group_name
    first = torch.ops._c10d_functional.all_reduce(x, "sum", name)
    torch.ops._c10d_functional.wait_tensor(first)  # the program reads `first` itself after the wait
    second = torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(x * 3, "sum", name))
    return second if dist.get_rank() == 0 else first + second


@case
def gathered(x: torch.Tensor) -> torch.Tensor:
    every = functional.all_gather_tensor(x, 0, dist.group.WORLD)
    part = functional.reduce_scatter_tensor(torch.cat([x, x * 2]), "sum", 0, dist.group.WORLD)
    return every.sum() + part


@case
def rank_is_read(x: torch.Tensor) -> torch.Tensor:
    return x * dist.get_rank() + dist.get_world_size()


@case
def in_place_operator(x: torch.Tensor) -> torch.Tensor:
    y = torch.ops._c10d_functional.all_reduce_(x * 2, "sum", dist.group.WORLD.group_name)
    return torch.ops._c10d_functional.wait_tensor(y) + 1


@case
def barrier(x: torch.Tensor) -> torch.Tensor:
    dist.barrier()
    return x * 2


@case
def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y


@case
def asynchronous(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y, async_op=True).wait()
    return y


@case
def functional_then_barrier(x: torch.Tensor) -> torch.Tensor:
    y = reduced(x)
    dist.barrier()
    return y


@case
def sent(x: torch.Tensor) -> torch.Tensor:
    if dist.get_rank() == 0:
        dist.send(x, 1)
        return x
    y = torch.empty(3)
    dist.recv(y, 0)
    return y


@case
def gradient(x: torch.Tensor) -> torch.Tensor:
    return reduced(x * x)


@case
def nn_gradient(x: torch.Tensor) -> torch.Tensor:
    from torch.distributed.nn.functional import all_reduce

    return all_reduce(x * x) + 1


class Reduce(torch.autograd.Function):
    """The sum over all ranks, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return reduced(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return reduced(g)


@case
def autograd_function(x: torch.Tensor) -> torch.Tensor:
    return Reduce.apply(x * x) * 2


class Block(torch.nn.Module):
    """Two layers with a collective between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two = (torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU()) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.one(x)
        dist.all_reduce(h.data)
        return self.two(h)


def run(fn: Callable[..., Any], name: str, rank: int) -> list[Any]:
    """Return the results of three calls, or their gradients, or the error."""
    found = []
    for i in range(3):
        x = torch.arange(1.0, 4.0) * (rank + 1) + i
        x.requires_grad_(name in GRADIENTS)
        try:
            y = fn(x)
            if name in GRADIENTS and y.requires_grad:
                y = torch.autograd.grad(y.sum(), x)[0]
            found.append(y.tolist())
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
        dist.barrier()
    return found


def main(rank: int, store: str) -> None:
    warnings.simplefilter("ignore")
    timeout = datetime.timedelta(seconds=30)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timeout)
    CASES["module"] = Block()
    report = {}
    for name, fn in CASES.items():
        jitted = thunder.jit(fn)
        eager = run(fn, name, rank)
        found = run(jitted, name, rank)
        stats = jitted._stats
        inner = [] if stats.per_module is None else [p._stats.cache_hits for p in stats.per_module.programs]
        report[name] = {
            "eager": eager, "jitted": found, "hits": stats.cache_hits, "misses": stats.cache_misses,
            "reason": stats.partly_eager, "inner_hits": inner,
        }  # fmt: skip
    print(json.dumps(report), flush=True)
    dist.destroy_process_group()
    os._exit(0)  # the exit would destroy the works that eager runs left without a wait, at times after gloo's threads


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
