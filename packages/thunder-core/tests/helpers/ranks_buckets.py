# SPDX-License-Identifier: Apache-2.0
"""The program that each rank of the tests of merged collectives runs.

The report contains for each case: whether all results are equal to those of eager mode to the bit, the collectives of
the program as written and of the program with buckets, those of ranks with other budgets of memory, and the errors of
ranks that merge otherwise.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from processes import main
from ranks_differ import error_of, groups_of_one_second
from torch.distributed import distributed_c10d

import thunder
from thunder.core.symbol import OpTags
from thunder.frontend import compiler, rank_agreement


def hand_written(model: torch.nn.Module, **options: Any) -> Any:
    """Return a step that averages gradients one by one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(dist.get_world_size())
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return thunder.jit(step, **options) if options else step


def data_parallel(model: torch.nn.Module, **options: Any) -> Any:
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0002)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = ddp(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return thunder.jit(step, **options) if options else step


def sharded(x: torch.Tensor, *shards: torch.Tensor) -> torch.Tensor:
    """Gather each weight, as SimpleFSDP does."""
    for shard in shards:
        x = torch.tanh(x @ functional.all_gather_tensor(shard, 0, dist.group.WORLD))
    return x


def scattered(x: torch.Tensor, *shards: torch.Tensor) -> torch.Tensor:
    """Scatter gradients, and reduce two tensors of different shapes."""
    parts = [functional.reduce_scatter_tensor(s * i, "sum", 0, dist.group.WORLD) for i, s in enumerate(shards, 1)]
    total, whole = (functional.all_reduce(each, "sum", dist.group.WORLD) for each in (x.sum(), x * 2))
    return torch.cat([*parts, total.expand(1, 4), whole])


def needs_it_on_one(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Rank 1 cannot merge the two."""
    y = functional.all_reduce(x, "sum", group)
    return functional.all_reduce(x.exp() if dist.get_rank() == 0 else y.exp(), "sum", group) + y


def eager_second(x: torch.Tensor, group: Any) -> torch.Tensor:
    if dist.get_rank() == 1:
        torch.manual_seed(0)  # no trace can express it
    y, z = (functional.all_reduce(x * i, "sum", group) for i in range(1, 3))
    return y + z


def eager_first(x: torch.Tensor, group: Any) -> torch.Tensor:
    return eager_second(x, group)


def training(build: Any, rank: int, **options: Any) -> list[Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)])
    step = build(model, **options)
    torch.manual_seed(rank)
    losses = [step(torch.randn(3, 4)) for _ in range(4)]
    return [*losses, *copy.deepcopy(list(model.parameters())), step]


def functions(fn: Any, rank: int, **options: Any) -> list[Any]:
    torch.manual_seed(rank)
    step = thunder.jit(fn, **options) if options else fn
    x, shards = torch.randn(3, 4), [torch.randn(2, 4, requires_grad=fn is sharded) for _ in range(3)]
    y = step(x, *shards)
    grads = torch.autograd.grad(y.square().sum(), shards) if fn is sharded else []
    return [y, *grads, step]


CASES: dict[str, Any] = {
    "hand_written": lambda **o: training(hand_written, **o),
    "data_parallel": lambda **o: training(data_parallel, **o),
    "sharded": lambda **o: functions(sharded, **o),
    "scattered": lambda **o: functions(scattered, **o),
}


def starts_of(jitted: Any) -> list[str]:
    """Return the names of the collectives of the last forward and backward program."""
    traces = [thunder.last_traces(jitted), thunder.last_backward_traces(jitted)]
    operations = [op for trace in traces if trace for op in trace[-1].bound_symbols]
    return [op.sym.name for op in operations if OpTags.COLLECTIVE in op.sym.tags and op.sym.name != "wait"]


def run(rank: int, size: int) -> Any:
    found: dict[str, Any] = {}
    for name, build in CASES.items():
        *expected, _ = build(rank=rank)
        *plain, before = build(rank=rank, bucketing="never")
        *merged, after = build(rank=rank, bucketing="exact")
        equal = [all(torch.equal(x, y) for x, y in zip(expected, other)) for other in (plain, merged)]
        found[name] = {
            "equal": equal, "before": starts_of(before), "after": starts_of(after), "reason": after._stats.partly_eager
        }  # fmt: skip
    return {**found, "budgets": budgets(rank), **differences(rank)}


def summed(x: torch.Tensor) -> torch.Tensor:
    """Reduce eight tensors of a kilobyte, of which four are alive at the same time."""
    total = x
    for i in range(1, 9):
        total = total + functional.all_reduce(torch.sin(x * i), "sum", dist.group.WORLD)
    return total


def budgets(rank: int) -> dict[str, Any]:
    """The rank with less memory compiles first, so that the other one takes its limit."""
    x = torch.linspace(rank, 1, 256)
    memory = (4 << 10, 1 << 30)[rank]
    jitted = thunder.jit(summed, bucketing="exact", overlap_memory=memory, check_ranks=False)
    if rank == 1:
        distributed_c10d._get_default_store().wait(
            [f"{rank_agreement.Function('thunder.jit(summed)', '0.0').key}/merges"]
        )
    equal = torch.equal(jitted(x), summed(x))
    return {"equal": equal, "after": starts_of(jitted), "explained": str(thunder.explain(jitted))}


def differences(rank: int) -> dict[str, Any]:
    """Ranks that merge otherwise, and a rank that runs a function eagerly after or before the other merges."""
    rank_agreement.timeout_of_group = lambda: 1.0  # type: ignore[assignment]
    x, found = torch.ones(3) * (rank + 1), {}
    groups = groups_of_one_second(2)
    store, follow = distributed_c10d._get_default_store(), rank_agreement.follow_eager_ranks

    def follow_and_tell(function: Any, members: Any) -> Any:
        reason = follow(function, members)
        store.set(f"has a program/{function.title}", "")  # from now on it does not follow a rank in this call
        return reason

    compiler.follow_eager_ranks = follow_and_tell  # type: ignore[assignment]
    for fn, group, second in zip((needs_it_on_one, eager_second, eager_first), [*groups, dist.group.WORLD], (1, 1, 0)):
        jitted = thunder.jit(fn, bucketing="exact", check_ranks=False)
        if rank == second and fn is eager_second:
            store.wait([f"has a program/thunder.jit({fn.__name__})"])
        elif rank == second and fn is eager_first:
            store.wait([f"{rank_agreement.Function(f'thunder.jit({fn.__name__})', '0.0').key}/merges"])
        found[fn.__name__] = error_of(lambda: found.update(sum=jitted(x, group).tolist()))
    return found


if __name__ == "__main__":
    main(run, on_device=True, blocking=True)
