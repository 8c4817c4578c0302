# SPDX-License-Identifier: Apache-2.0
"""Writes to DTensors in a program, as in eager mode. The first of two ranks runs alone: nothing here communicates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import thunder
from thunder.torch.private import fake_store

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a torch without torch.distributed")


@pytest.fixture(autouse=True)
def _first_of_two() -> Iterator[None]:
    dist.init_process_group("fake", store=fake_store(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def sharded(rows: int, seed: int) -> Any:
    """A DTensor whose rows are shared among two ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    local = torch.randn((rows + 1) // 2, 2, generator=torch.Generator().manual_seed(seed))
    mesh = init_device_mesh("cpu", (2,))
    return DTensor.from_local(local, mesh, [Shard(0)], shape=torch.Size((rows, 2)), stride=(2, 1))


def through_detach(x: Any, y: Any) -> Any:
    x.detach().add_(y)
    return x.neg()


def local_is_seen(x: Any, y: Any) -> Any:
    x.to_local().mul_(3)
    return x + y


def of_local(x: Any, y: Any) -> Any:
    a = y.to_local() * 2
    z = type(x).from_local(a, x.device_mesh, x.placements, shape=x.shape, stride=x.stride())
    a.add_(1)
    return z.mul_(x)


def written_result(x: Any, y: Any) -> Any:
    z = x * 2
    z.add_(1)
    z += y
    return z, z.detach()


def fills(x: Any, y: Any) -> Any:
    z = torch.zeros_like(x)
    z.fill_(2.0)
    x.copy_(y)
    y.zero_()
    return z


def sums(x: Any, y: Any) -> Any:
    return x.mul_(2).sum(1), torch.linalg.vector_norm(y, dim=1)


def numbers(x: Any, y: Any) -> Any:
    scale = torch.tensor(0.5)
    return x.mul_(scale).lerp_(y, 0.25).addcdiv_(y, y.abs().add_(1), value=-0.5)


def lists(x: Any, y: Any) -> Any:
    torch._foreach_add_([x, y], [y, x], alpha=2)
    torch._foreach_mul_([x, y], 0.5)
    return torch._foreach_sqrt(torch._foreach_abs([x, y]))


def kept(x: Any, y: Any) -> Any:
    """The result shares the memory of an argument."""
    x.add_(y)
    return x.detach()


PROGRAMS = (through_detach, local_is_seen, written_result, fills, sums, numbers, lists, kept)


def _locals(values: Any) -> list[torch.Tensor]:
    found = values if isinstance(values, (tuple, list)) else [values]
    return [x._local_tensor.clone() for x in found]


@pytest.mark.parametrize("rows", [4, 3])
@pytest.mark.parametrize("program", PROGRAMS)
def test_writes(program: Callable[..., Any], rows: int) -> None:
    jitted = thunder.jit(program)
    one, two = ([sharded(rows, 0), sharded(rows, 1)] for _ in range(2))
    for _ in range(3):
        eager, ours = program(*one), jitted(*two)
        for a, b in zip([*_locals(eager), *_locals(one)], [*_locals(ours), *_locals(two)]):
            assert torch.equal(a, b)
    first = ours[0] if isinstance(ours, (tuple, list)) else ours
    assert first.shape[0] == rows and first.placements == one[0].placements
    assert thunder.cache_misses(jitted) == 1 and thunder.cache_hits(jitted) == 2, thunder.explain(jitted)


def test_a_local_tensor_that_becomes_a_dtensor() -> None:
    jitted = thunder.jit(of_local)
    for seed in range(3):
        one, two = ([sharded(4, seed), sharded(4, 1)] for _ in range(2))
        for a, b in zip(_locals([of_local(*one), *one]), _locals([jitted(*two), *two])):
            assert torch.equal(a, b)
    assert thunder.cache_hits(jitted) == 2


def test_a_result_shares_the_memory_of_an_argument() -> None:
    x, y = sharded(3, 0), sharded(3, 1)
    result = thunder.jit(kept)(x, y)
    assert result._local_tensor.data_ptr() == x._local_tensor.data_ptr()


def test_even_and_uneven_shards_are_different_programs() -> None:
    """Three and four rows have parts of the same shape on this rank."""
    jitted = thunder.jit(numbers)
    assert [tuple(jitted(sharded(n, 0), sharded(n, 1)).shape) for n in (4, 3, 4)] == [(4, 2), (3, 2), (4, 2)]
    assert thunder.cache_misses(jitted) == 2


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda x, y: x.redistribute(placements=[torch.distributed.tensor.Replicate()]), "unevenly"),
        (lambda x, y: x.softmax(0), "unevenly"),
        (lambda x, y: x.mean(0), "unevenly"),
        (lambda x, y: x.unsqueeze(0).view(1, 3, 2), "unevenly"),
    ],
)
def test_what_needs_equal_parts_runs_eagerly(program: Callable[..., Any], reason: str) -> None:
    jitted = thunder.jit(program)
    found = jitted(sharded(3, 0), sharded(3, 1))
    assert found.shape == program(sharded(3, 0), sharded(3, 1)).shape
    assert reason in (jitted._stats.partly_eager or str(jitted._stats.uncacheable))


def test_writes_to_dtensors_that_require_grad() -> None:
    """An optimizer's updates of parameters: the tensors stay leaves, and their versions count as in eager mode."""

    @torch.no_grad()
    def scaled(x: Any) -> Any:
        return x.mul_(2)

    jitted, x, y = thunder.jit(scaled), sharded(4, 0).requires_grad_(), sharded(4, 0).requires_grad_()
    for _ in range(3):
        assert jitted(x) is x and scaled(y) is y
        assert torch.equal(x.to_local(), y.to_local()) and x.requires_grad and x.is_leaf
        assert x._version == y._version
    assert thunder.cache_hits(jitted) == 2
