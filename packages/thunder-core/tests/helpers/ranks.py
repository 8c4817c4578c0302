# SPDX-License-Identifier: Apache-2.0
"""The program that each rank of the tests of collectives runs.

Every case runs three times eagerly and three times jitted. The report contains for each case: both lists of results
and gradients, the cache hits, the compilations, the reason if the function is partly eager, and the collectives of the
last forward and backward program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from processes import DEVICE, main

import thunder
from thunder.core.symbol import OpTags

CASES: dict[str, Callable[[torch.Tensor], Any]] = {}
GRADIENTS: set[str] = set()
GROUPS: dict[str, Any] = {}


def case(fn: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """Register a case under the function's name."""
    CASES[fn.__name__] = fn
    return fn


def gradient_case(fn: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """Register a case whose argument requires grad."""
    GRADIENTS.add(fn.__name__)
    return case(fn)


def reduced(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x, "sum", dist.group.WORLD)


# -- functional collectives -------------------------------------------------------------------------------------------
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
def two_in_flight(x: torch.Tensor) -> torch.Tensor:
    name = dist.group.WORLD.group_name
    first = torch.ops._c10d_functional.all_reduce(x, "sum", name)
    second = torch.ops._c10d_functional.all_gather_into_tensor(x * 2, dist.get_world_size(), name)
    between = x.exp()
    torch.ops._c10d_functional.wait_tensor(second)
    return second.sum() + torch.ops._c10d_functional.wait_tensor(first) + between


@case
def result_in_flight(x: torch.Tensor) -> torch.Tensor:
    y = torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name)
    z = torch.ops._c10d_functional.all_reduce(x * 2, "sum", dist.group.WORLD.group_name)
    torch.ops._c10d_functional.wait_tensor(z)
    return y if torch.compiler.is_compiling() else torch.ops._c10d_functional.wait_tensor(y)


@case
def read_in_flight(x: torch.Tensor) -> torch.Tensor:
    y = torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name)
    shape = y.view(3, 1)  # shares the memory into which the result comes
    torch.ops._c10d_functional.wait_tensor(y)
    return shape * 1


@case
def coalesced(x: torch.Tensor) -> Any:
    sums = functional.all_reduce_coalesced([x, x * 2], "sum", dist.group.WORLD)
    every = functional.all_gather_into_tensor_coalesced([x[:, None], x[:2]], dist.group.WORLD)
    y, z = x * 3, x[1:] * 4
    dist.all_reduce_coalesced([y, z])
    return [*[y + 1 for y in sums], every[0] * 2, every[1], y, z]


@case
def rank_is_read(x: torch.Tensor) -> torch.Tensor:
    return x * dist.get_rank() + dist.get_world_size()


@case
def in_place_operator(x: torch.Tensor) -> torch.Tensor:
    y = torch.ops._c10d_functional.all_reduce_(x * 2, "sum", dist.group.WORLD.group_name)
    return torch.ops._c10d_functional.wait_tensor(y) + 1


@gradient_case
def gradient(x: torch.Tensor) -> torch.Tensor:
    return reduced(x * x) * (dist.get_rank() + 1)


@gradient_case
def gathered(x: torch.Tensor) -> torch.Tensor:
    every = functional.all_gather_tensor(x * x, 0, dist.group.WORLD)
    part = functional.reduce_scatter_tensor(torch.cat([x, x * 2]), "sum", 0, dist.group.WORLD)
    return (every * torch.arange(1.0, 7.0)).sum() * (dist.get_rank() + 1) + part


@gradient_case
def in_other_dimensions(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() * torch.arange(1.0, 5.0)[:, None]
    every = functional.all_gather_tensor(y, 1, dist.group.WORLD)
    part = functional.reduce_scatter_tensor(every.exp(), "sum", 1, dist.group.WORLD)
    return (every.cos().sum(1)[:3] + part.sum()) * (dist.get_rank() + 1)


@gradient_case
def exchanged(x: torch.Tensor) -> torch.Tensor:
    rank = dist.get_rank()
    sent = [1, 2] if rank == 0 else [2, 1]
    received = [1, 2] if rank == 0 else [2, 1]
    y = functional.all_to_all_single(x * x, received, sent, dist.group.WORLD)
    return y * (rank + 1)


@gradient_case
def permuted(x: torch.Tensor) -> torch.Tensor:
    return functional.permute_tensor(x * x, [1, 0], dist.group.WORLD) * (dist.get_rank() + 1)


@gradient_case
def with_own_autograd(x: torch.Tensor) -> torch.Tensor:
    every = functional.all_gather_tensor_autograd(x.sin(), 0, dist.group.WORLD)
    part = functional.reduce_scatter_tensor_autograd(every * every, "sum", 0, dist.group.WORLD)
    return functional.all_to_all_single_autograd(torch.cat([part, part])[:4], None, None, dist.group.WORLD)


@gradient_case
def second_derivative(x: torch.Tensor) -> torch.Tensor:
    (g,) = torch.autograd.grad(reduced(x * x * x).sum(), x, create_graph=True)
    return g * g


class Reduce(torch.autograd.Function):
    """The sum over all ranks, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return reduced(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return reduced(g)


@gradient_case
def autograd_function(x: torch.Tensor) -> torch.Tensor:
    return Reduce.apply(x * x) * 2


@gradient_case
def checkpointed(x: torch.Tensor) -> torch.Tensor:
    def part(x: torch.Tensor) -> torch.Tensor:
        return reduced(x.sin()).exp()

    return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False) * 2


# -- torch.distributed.nn ---------------------------------------------------------------------------------------------
@gradient_case
def nn_all_reduce(x: torch.Tensor) -> torch.Tensor:
    return differentiable.all_reduce(x * x) + 1


@gradient_case
def nn_all_gather(x: torch.Tensor) -> torch.Tensor:
    one, two = differentiable.all_gather(x * x)
    return one * 2 + two * (dist.get_rank() + 1)


@gradient_case
def nn_reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    return differentiable.reduce_scatter(torch.empty(3), [x * x, x * 3])


@gradient_case
def nn_broadcast(x: torch.Tensor) -> torch.Tensor:
    return differentiable.broadcast(x * x, 1) * (dist.get_rank() + 1)


@gradient_case
def nn_reduce(x: torch.Tensor) -> torch.Tensor:
    return differentiable.reduce(x * x, 0) * (1 - dist.get_rank())


@gradient_case
def nn_all_to_all(x: torch.Tensor) -> torch.Tensor:
    y = torch.cat([x * x, x])
    return differentiable.all_to_all_single(torch.empty(6), y) * (dist.get_rank() + 1)


# -- in place ---------------------------------------------------------------------------------------------------------
@case
def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y


@case
def input_in_place(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return x + 1


@case
def a_view_in_place(x: torch.Tensor) -> torch.Tensor:
    y = torch.stack([x, x * 2])
    dist.all_reduce(y[1])
    return y


@case
def asynchronous(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y, async_op=True).wait()
    return y


@case
def several_at_once(x: torch.Tensor) -> torch.Tensor:
    y, every = x * 2, torch.empty(6)
    one = dist.all_reduce(y, async_op=True)
    two = dist.all_gather_into_tensor(every, x * 3, async_op=True)
    between = x.exp()
    two.wait()
    one.wait()
    return torch.cat([y, every, between])


@case
def not_waited_for(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(torch.ones(2), async_op=True)
    return x * 2


@case
def read_before_wait(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    (y + 1).sum()
    work.wait()
    return y


@case
def written_before_wait(x: torch.Tensor) -> torch.Tensor:
    y, every = x * 2, torch.empty(6)
    work = dist.all_gather_into_tensor(every, y, async_op=True)
    every[2] = 3.0
    work.wait()
    return y


@case
def slices_at_once(x: torch.Tensor) -> torch.Tensor:
    y = torch.stack([x, x * 2, x * 3])
    works = [dist.all_reduce(y[i], async_op=True) for i in range(2)]
    last = y[2].exp()  # this slice is not in flight
    for work in works:
        work.wait()
    return y + last


@case
def work_class(x: torch.Tensor) -> torch.Tensor:
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return x * isinstance(work, dist.Work)


@case
def channels_last(x: torch.Tensor) -> torch.Tensor:
    y = torch.outer(x, x + 1).reshape(1, 3, 3, 1).to(memory_format=torch.channels_last)
    dist.all_reduce(y)
    return y.flatten()


@case
def one_column(x: torch.Tensor) -> torch.Tensor:
    y = torch.outer(x, x + 1)
    dist.all_reduce(y[:, 1])
    return y.flatten()


@case
def new_group(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y, group=dist.new_group([0, 1]))
    return y


@case
def lists(x: torch.Tensor) -> Any:
    every = [torch.empty(3), torch.empty(3)]
    dist.all_gather(every, x)
    part = torch.empty(3)
    dist.reduce_scatter(part, [x, x * 2])
    return [*every, part]


@case
def into_tensors(x: torch.Tensor) -> torch.Tensor:
    every, part = torch.empty(6), torch.empty(3)
    dist.all_gather_into_tensor(every, x)
    dist.reduce_scatter_tensor(part, every * 2, dist.ReduceOp.SUM)
    return torch.cat([every, part])


@case
def from_one_rank(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.broadcast(y, 1)
    z = x + 1
    dist.reduce(z, 0)
    return y + z * (1 - dist.get_rank())


@case
def uneven_parts(x: torch.Tensor) -> torch.Tensor:
    rank = dist.get_rank()
    out = torch.empty(2 if rank == 0 else 4)
    dist.all_to_all_single(out, x, [1, 1] if rank == 0 else [2, 2], [1, 2])
    return out * 2


@case
def other_dtypes(x: torch.Tensor) -> Any:
    whole, imaginary = x.long(), x * 1j
    dist.all_reduce(whole)
    dist.all_reduce(imaginary)
    return [whole, torch.view_as_real(imaginary)]


@case
def through_one_rank(x: torch.Tensor) -> Any:
    is_root, y = dist.get_rank() == 0, torch.empty(3)
    every = [torch.empty(3), torch.empty(3)] if is_root else None
    dist.gather(x * 2, every, 0)
    dist.scatter(y, None if every is None else [every[1], every[0] + every[1]], 0)
    return [y, *(every or ())]


@case
def barrier(x: torch.Tensor) -> torch.Tensor:
    dist.barrier()
    return x * 2


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
def exchanged_pairwise(x: torch.Tensor) -> torch.Tensor:
    other, y = 1 - dist.get_rank(), torch.empty(3)
    operations = [dist.P2POp(dist.isend, x * 2, other), dist.P2POp(dist.irecv, y, other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return y


@case
def in_a_group(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y, group=GROUPS["alone"])
    return y + functional.all_reduce(x, "sum", GROUPS["both"])


@case
def gathered_objects(x: torch.Tensor) -> torch.Tensor:
    found: list[Any] = [None, None]
    dist.all_gather_object(found, dist.get_rank())
    return x * len(found)


# -- in other transforms ----------------------------------------------------------------------------------------------
@case
def decided(x: torch.Tensor) -> torch.Tensor:
    y = reduced(x)
    return y * 2 if y.sum() > 15 else y - 1


@case
def batched(x: torch.Tensor) -> torch.Tensor:
    def one(x: torch.Tensor) -> torch.Tensor:
        y = torch.ops._c10d_functional.all_gather_into_tensor(x, 2, dist.group.WORLD.group_name)
        return torch.ops._c10d_functional.wait_tensor(y)

    if not torch.compiler.is_compiling():  # torch has no batching rule
        return torch.stack([one(row) for row in torch.stack([x, x * 2])])
    return torch.vmap(one)(torch.stack([x, x * 2]))


class Block(torch.nn.Module):
    """Two layers with a collective between them, which autograd does not see."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two = (torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU()) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.one(x)
        dist.all_reduce(h.data)
        return self.two(h)


def run(fn: Callable[..., Any], name: str, rank: int) -> list[Any]:
    """Return the results of three calls, with gradients, or the error."""
    found: list[Any] = []
    for i in range(3):
        x = torch.arange(1.0, 4.0) * (rank + 1) + i
        if name in ("in_other_dimensions", "with_own_autograd"):
            x = torch.stack([x, x * 2, x * 3, x * 4]) if name == "in_other_dimensions" else x
        x.requires_grad_(name in GRADIENTS)
        try:
            y = fn(x)
            grads = []
            if name in GRADIENTS and y.requires_grad:
                grads = torch.autograd.grad((y * torch.arange(1.0, y.numel() + 1).reshape(y.shape)).sum(), x)
            found.append([v.tolist() for v in (*(y if isinstance(y, list) else [y]), *grads)])
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
            print(f"rank {rank}, {name}: {found[-1]}", file=sys.stderr, flush=True)  # seen if the other rank waits
        dist.barrier()
    return found


def collectives(jitted: Any) -> list[str]:
    """Return the names of the collectives of the last programs."""
    if jitted._stats.partly_eager or not jitted._stats.cache_hits:
        return []
    traces = [thunder.last_traces(jitted), thunder.last_backward_traces(jitted)]
    return [op.sym.name for t in traces if t for op in t[-1].bound_symbols if OpTags.COLLECTIVE in op.sym.tags]


def all_cases(rank: int, size: int) -> dict[str, Any]:
    GROUPS.update(both=dist.new_group([1, 0]), alone=[dist.new_group([r]) for r in range(size)][rank])
    CASES["module"] = Block().to(DEVICE)  # here, where the rank has its own GPU
    report = {}
    for name, fn in CASES.items():
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        jitted = thunder.jit(fn)
        print(f"rank {rank} starts {name}", file=sys.stderr, flush=True)
        eager = run(fn, name, rank)
        found = run(jitted, name, rank)
        stats = jitted._stats
        inner = [] if stats.per_module is None else [p._stats.cache_hits for p in stats.per_module.programs]
        report[name] = {
            "eager": eager, "jitted": found, "hits": stats.cache_hits, "misses": stats.cache_misses,
            "reason": stats.partly_eager, "inner_hits": inner,
            "collectives": collectives(jitted),
        }  # fmt: skip
    return report


if __name__ == "__main__":
    main(all_cases, on_device=True)
