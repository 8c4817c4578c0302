# SPDX-License-Identifier: Apache-2.0
"""The program that each rank of the tests of `DistributedDataParallel` runs: training, eagerly and jitted.

The report contains for each case: whether the losses, parameters, buffers and gradients after each step are equal to
the bit, the compilations, the reason if the step is partly eager, and the collectives of the last program.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from processes import main
from ranks import collectives
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import thunder

STEPS = 5  # the first two run eagerly
CASES: dict[str, Callable[..., Any]] = {}


def case(fn: Callable[..., Any]) -> Callable[..., Any]:
    CASES[fn.__name__] = fn
    return fn


class Model(nn.Module):
    """Layers of different sizes, with buffers, and a weight that is used twice."""

    def __init__(self, frozen: bool = False, tied: bool = False, unused: bool = False):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.GELU(), nn.BatchNorm1d(7), nn.Linear(7, 5))
        self.head = nn.Linear(5, 5, bias=False)
        if frozen:
            self.layers[0].requires_grad_(False)
        if tied:
            self.head.weight = self.layers[4].weight = nn.Parameter(torch.randn(5, 5))
            self.layers[0] = nn.Linear(5, 5)
            self.layers[1], self.layers[3] = nn.LayerNorm(5), nn.BatchNorm1d(5)
        if unused:
            self.extra = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


class OrderByRank(nn.Module):
    """Layers that ranks use in another order, so that gradients become ready in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (self.one, self.two) if dist.get_rank() == 0 else (self.two, self.one)
        return second(first(x).tanh())


class UsedOnOneRank(nn.Module):
    """A layer that only rank 0 uses, and a weight that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 5)
        self.transposed = nn.Parameter(torch.randn(4, 5).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(x) @ self.transposed
        return y + self.two(x)[:, :4] if dist.get_rank() == 0 else y


def unfrozen(ddp: Any) -> Any:
    ddp.module.layers[0].requires_grad_(True)
    return ddp


def replaced(ddp: Any) -> Any:
    ddp.module.head.weight = nn.Parameter(torch.ones(5, 5))
    return ddp


def replicated(rank: int, *, jits_inside: bool = False, model: nn.Module | None = None, **options: Any) -> nn.Module:
    torch.manual_seed(rank)  # DDP takes the parameters of rank 0
    module = Model() if model is None else model
    return DistributedDataParallel(thunder.jit(module) if jits_inside else module, **options)


def step_of(ddp: Any, optimizer: Any) -> Callable[..., Any]:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = ddp(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def accumulating(ddp: Any, optimizer: Any) -> Callable[..., Any]:
    def step(x: torch.Tensor) -> torch.Tensor:
        with ddp.no_sync():
            ddp(x).square().mean().backward()
        loss = ddp(x * 2).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def twice_without_zeroing(ddp: Any, optimizer: Any) -> Callable[..., Any]:
    """Gradients that are averaged already are averaged again with those that are added."""

    def step(x: torch.Tensor) -> torch.Tensor:
        for factor in (1.0, 2.0):
            loss = ddp(x * factor).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def loop_of(run: Any, optimizer: Any) -> Callable[..., Any]:
    """A loop in Python around a jitted module."""
    return step_of(run, optimizer)


def train(
    rank: int, build: Callable[[], Any], make: Callable[..., Any], jit: Callable[..., Any] | None, optimizer: Any
) -> tuple[list[Any], Any]:
    """Train for some steps, and return the state after each step, and what was jitted."""
    ddp = build()
    step = make(ddp, optimizer(ddp.parameters()))
    jitted = step if jit is None else jit(step)
    torch.manual_seed(100 + rank)
    states = []
    for _ in range(STEPS):
        loss = jitted(torch.randn(6, 5))
        states.append([loss.clone(), *[x.detach().clone() for x in ddp.state_dict().values()]])
    return states, jitted


def report(eager: list[Any], found: list[Any], jitted: Any) -> dict[str, Any]:
    stats = jitted._stats
    return {
        "equal": [all(torch.equal(a, b) for a, b in zip(one, two)) for one, two in zip(eager, found)],
        "misses": stats.cache_misses, "reason": stats.partly_eager, "collectives": collectives(jitted),
        "explained": str(thunder.explain(jitted)),
    }  # fmt: skip


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "sharded": lambda parameters: ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1, momentum=0.9),
}
# build, step, optimizer
WHOLE: dict[str, tuple[Callable[[int], Any], Callable[..., Any], str]] = {
    "plain": (replicated, step_of, "sgd"),
    "adamw": (replicated, step_of, "adamw"),
    "jitted_inside": (lambda rank: replicated(rank, jits_inside=True), step_of, "sgd"),
    "small_buckets": (lambda rank: replicated(rank, bucket_cap_mb=0.0001), step_of, "sgd"),
    "without_buffers": (lambda rank: replicated(rank, broadcast_buffers=False), step_of, "sgd"),
    "bucket_views": (lambda rank: replicated(rank, gradient_as_bucket_view=True), step_of, "sgd"),
    "finds_unused": (lambda rank: replicated(rank, find_unused_parameters=True), step_of, "sgd"),
    "frozen": (lambda rank: replicated(rank, model=Model(frozen=True)), step_of, "sgd"),
    "tied": (lambda rank: replicated(rank, model=Model(tied=True)), step_of, "sgd"),
    "accumulating": (replicated, accumulating, "sgd"),
    "twice_without_zeroing": (replicated, twice_without_zeroing, "sgd"),
    "unused": (lambda rank: replicated(rank, model=Model(unused=True), find_unused_parameters=True), step_of, "sgd"),
    "sharded_optimizer": (replicated, step_of, "sharded"),
    "order_by_rank": (lambda rank: replicated(rank, model=OrderByRank()), step_of, "sgd"),
    "used_on_one_rank": (
        lambda rank: replicated(rank, model=UsedOnOneRank(), find_unused_parameters=True),
        step_of,
        "sgd",
    ),
    "unfrozen": (lambda rank: unfrozen(replicated(rank, model=Model(frozen=True))), step_of, "sgd"),
    "replaced": (lambda rank: replaced(replicated(rank, find_unused_parameters=True)), step_of, "sgd"),
    "hooked": (lambda rank: _hooked(replicated(rank)), step_of, "sgd"),
}


def _hooked(ddp: Any) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    ddp.register_comm_hook(None, allreduce_hook)
    return ddp


def all_cases(rank: int, size: int) -> dict[str, Any]:
    wanted, found = sys.argv[3:], {}
    for name, (build, make, optimizer) in WHOLE.items():
        if not wanted or name in wanted:
            eager, _ = train(rank, lambda: build(rank), make, None, OPTIMIZERS[optimizer])
            jit = functools.partial(thunder.jit, check_ranks=False) if name == "used_on_one_rank" else thunder.jit
            states, jitted = train(rank, lambda: build(rank), make, jit, OPTIMIZERS[optimizer])
            found[name] = report(eager, states, jitted)
    for name in BESIDE:
        if not wanted or name in wanted:
            found[name] = beside_an_eager_rank(rank, name)
    for name in OUTSIDE:
        if not wanted or name in wanted:
            found[name] = with_backward_outside(rank, name)
    return found


# The step from which on rank 1 runs eagerly; without thunder at all if it is None.
BESIDE: dict[str, int | None] = {"beside_from_the_start": 0, "beside_later": 4, "beside_without_thunder": None}


def beside_an_eager_rank(rank: int, name: str) -> dict[str, Any]:
    """Train on ranks of which one runs eagerly, with buffers and several buckets."""
    runs, first = [], BESIDE[name]
    for jits in (False, True):
        ddp = replicated(rank, bucket_cap_mb=0.0001)
        inner = step_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9))

        def step(x: torch.Tensor, eagerly: bool, inner: Any = inner) -> torch.Tensor:
            if eagerly:
                torch.manual_seed(0)  # no trace can express it
            return inner(x)

        if jits and not (first is None and rank == 1):
            step = thunder.jit(step, check_ranks=False)
        states: list[Any] = []
        for i in range(8):
            torch.manual_seed(10 * i + rank)
            eagerly = rank == 1 and first is not None and i >= first
            states.append([step(torch.randn(6, 5), eagerly).clone(), *[v.clone() for v in ddp.state_dict().values()]])
        runs.append(states)
    stats = getattr(step, "_stats", None)
    return {
        "equal": [all(torch.equal(a, b) for a, b in zip(one, two)) for one, two in zip(*runs)],
        "hits": stats and stats.cache_hits, "reason": stats and stats.partly_eager,
    }  # fmt: skip


def loss_of(ddp: Any) -> Callable[..., Any]:
    return lambda x, sync: ddp(x).square().mean()


def loss_without_sync(ddp: Any) -> Callable[..., Any]:
    def loss(x: torch.Tensor, sync: bool) -> torch.Tensor:
        with contextlib.nullcontext() if sync else ddp.no_sync():
            return ddp(x).square().mean()

    return loss


def loss_of_two(ddp: Any) -> Callable[..., Any]:
    """Call the module twice, so that one backward reduces the gradients of both calls."""
    return lambda x, sync: ddp(x).square().mean() + ddp(x * 2).mean()


def jitted_module(ddp: Any) -> Callable[..., Any]:
    return _with_stats(loss_of(run := thunder.jit(ddp)), run)


def _with_stats(fn: Any, jitted: Any) -> Any:
    fn._stats = jitted._stats
    return fn


# How to build the module, the loss, and how it is jitted: the function, or by the function itself.
OUTSIDE: dict[str, tuple[Callable[[int], Any], Callable[..., Any], Callable[..., Any] | None]] = {
    "outside": (replicated, loss_of, None),
    "outside_of_module": (replicated, loss_of, jitted_module),
    "outside_of_inner": (lambda rank: replicated(rank, jits_inside=True), loss_of, lambda ddp: loss_of(ddp)),
    "outside_no_sync_inside": (replicated, loss_without_sync, None),
    "outside_two_calls": (lambda rank: replicated(rank, broadcast_buffers=False), loss_of_two, None),
    "outside_small_buckets": (lambda rank: replicated(rank, bucket_cap_mb=0.0001), loss_of, None),
    "outside_bucket_views": (lambda rank: replicated(rank, gradient_as_bucket_view=True), loss_of, None),
    "outside_frozen_and_tied": (lambda rank: replicated(rank, model=Model(frozen=True, tied=True)), loss_of, None),
    "outside_hooked": (lambda rank: _hooked(replicated(rank)), loss_of, None),
    "outside_finds_unused": (
        lambda rank: replicated(rank, model=Model(unused=True), find_unused_parameters=True), loss_of, None
    ),
    "outside_eager_beside": (replicated, loss_of, None),
}  # fmt: skip


def with_backward_outside(rank: int, name: str) -> dict[str, Any]:
    """Train with `backward()` outside of the program, and with steps whose gradients wait for the next one."""
    build, make, jit = OUTSIDE[name]
    results, stats = [], None
    for jits in (False, True):
        ddp = build(rank)
        loss_fn: Any = make(ddp)
        if jits and not (name.endswith("eager_beside") and rank == 1):
            loss_fn = thunder.jit(make(ddp), check_ranks=not name.endswith("eager_beside")) if jit is None else jit(ddp)
            stats = getattr(loss_fn, "_stats", None)
        optimizer = torch.optim.SGD([p for p in ddp.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
        torch.manual_seed(100 + rank)
        states = []
        for i in range(2 * STEPS):
            sync = i % 3 != 1  # also a first step whose gradients wait for nothing
            with contextlib.nullcontext() if sync or make is loss_without_sync else ddp.no_sync():
                loss = loss_fn(torch.randn(6, 5), sync)
                if i % 3 == 0:
                    optimizer.zero_grad()  # between forward and backward
                loss.backward()
            if sync:
                optimizer.step()
            states.append([loss.detach().clone(), *[x.detach().clone() for x in ddp.state_dict().values()]])
        ddp.eval()
        with torch.no_grad():
            states.append([loss_fn(torch.ones(6, 5), True)])
        results.append(states)
    return {
        "equal": [all(torch.equal(a, b) for a, b in zip(one, two)) for one, two in zip(*results)],
        "misses": stats and stats.cache_misses, "reason": stats and stats.partly_eager,
    }  # fmt: skip


if __name__ == "__main__":
    main(all_cases, on_device=True)
