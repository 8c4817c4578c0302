# SPDX-License-Identifier: Apache-2.0
"""The program that each rank of the tests of `check_ranks` runs: functions whose collectives differ between ranks."""

from __future__ import annotations

import datetime
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from processes import main

import thunder


def order(x: torch.Tensor) -> torch.Tensor:
    total, every = x + 1, torch.empty(6)
    if dist.get_rank() == 0:
        dist.all_reduce(total)
        dist.all_gather_into_tensor(every, x)
    else:
        dist.all_gather_into_tensor(every, x)
        dist.all_reduce(total)
    return total + every.sum()


def count(x: torch.Tensor) -> torch.Tensor:
    y = functional.all_reduce(x, "sum", dist.group.WORLD)
    return functional.all_reduce(y, "max", dist.group.WORLD) if dist.get_rank() == 0 else y


def gradient(x: torch.Tensor) -> torch.Tensor:
    y = functional.all_reduce(x * x, "sum", dist.group.WORLD)
    return y if dist.get_rank() == 0 else y.detach() * x


def eager_on_one(x: torch.Tensor) -> torch.Tensor:
    if dist.get_rank() == 1:
        torch.manual_seed(0)  # no trace can express it; this rank would then wait in a collective for the other one
        return x
    return functional.all_reduce(x, "sum", dist.group.WORLD)


def same(x: torch.Tensor, factor: int) -> torch.Tensor:
    rank = dist.get_rank()
    parts = [1, 2] if rank == 0 else [2, 1]
    y = functional.all_to_all_single(x, parts, parts, dist.group.WORLD)
    dist.send(y, 1 - rank) if rank == 0 else dist.recv(y, 1 - rank)
    return functional.all_reduce(y, "sum", dist.group.WORLD) * factor


def decided(x: torch.Tensor, group: Any) -> torch.Tensor:
    if x.sum() > 0:
        return functional.all_reduce(x, "sum", group)
    return functional.all_reduce(x, "sum", group) + functional.all_reduce(x.exp(), "sum", group)


def other_number(x: torch.Tensor, n: int, group: Any) -> torch.Tensor:
    y = functional.all_reduce(x, "sum", group)
    return functional.all_reduce(y, "sum", group) if n > 0 and dist.get_rank() == 1 else y


def eager_later(x: torch.Tensor, n: int) -> torch.Tensor:
    if n == 1 and dist.get_rank() == 1:
        torch.manual_seed(0)  # no trace can express it
    return functional.all_reduce(x, "sum", dist.group.WORLD) * 2


def reduced_condition(x: torch.Tensor) -> torch.Tensor:
    any_is_positive = (x.sum() > 0).float().reshape(1)
    dist.all_reduce(any_is_positive, dist.ReduceOp.MAX)
    return functional.all_reduce(x, "sum", dist.group.WORLD) if any_is_positive.item() else x


def error_of(fn: Any, *args: Any) -> str:
    try:
        fn(*args)
    except Exception as error:
        return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    return ""


def groups_of_one_second(count: int) -> list[Any]:
    """Create groups of all ranks with a short timeout, and connect them: NCCL would wait for the connection forever."""
    groups = [dist.new_group(timeout=datetime.timedelta(seconds=1)) for _ in range(count)]
    for group in groups:
        dist.all_reduce(torch.ones(1), group=group)
    return groups


def later_calls(rank: int) -> dict[str, Any]:
    """Differences that come up after the first call."""
    found: dict[str, Any] = {}
    x = torch.arange(1.0, 4.0)
    groups = groups_of_one_second(3)
    jitted = thunder.jit(decided, check_ranks=True)
    found["decided_alike"] = error_of(jitted, x, groups[0])
    found["decided"] = error_of(jitted, x * (1 if rank == 0 else -1), groups[0])
    jitted = thunder.jit(other_number, check_ranks=True)
    found["other_number"] = [error_of(jitted, x, n, groups[1]) for n in range(2)]
    jitted = thunder.jit(eager_later, check_ranks=True)
    found["eager_later"] = [jitted(x, n).tolist() for n in range(3)]
    jitted = thunder.jit(reduced_condition, check_ranks=True)
    found["reduced_condition"] = [jitted(x * (-1 if rank == 0 else sign)).tolist() for sign in (1, 1, -1)]
    if rank == 0:
        alone = thunder.jit(lambda x: functional.all_reduce(x, "sum", groups[2]), check_ranks=False)
        found["alone"] = error_of(alone, x)
    return found


def run(rank: int, size: int) -> Any:
    found: dict[str, Any] = {}
    x = torch.arange(3.0)
    for fn in (order, count):
        found[fn.__name__] = error_of(thunder.jit(fn, check_ranks=True), x)
    found["gradient"] = error_of(thunder.jit(gradient, check_ranks=True), x.clone().requires_grad_())
    found["eager_on_one"] = error_of(thunder.jit(eager_on_one, check_ranks=True), x)
    jitted = thunder.jit(same, check_ranks=True)
    jitted(x, 1)
    for i in range(3):  # rank 1 compiles again in each call, alone
        jitted(x, 1 if rank == 0 else 2 + i)
    found["misses"] = thunder.cache_misses(jitted)
    return {**found, **later_calls(rank)}


if __name__ == "__main__":
    main(run, on_device=True, blocking=True)
