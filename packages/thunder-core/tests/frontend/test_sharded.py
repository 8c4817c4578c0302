# SPDX-License-Identifier: Apache-2.0
"""Models whose parameters torch.distributed replicates or shards, on one process: as eager, first calls included."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import thunder

pytestmark = [
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="a torch without gloo"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()  # what holds the group is gone before it: a reducer that ends later waits for the group's thread
    dist.destroy_process_group()


class Block(nn.Module):
    """Two layers around an activation, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds what the layers make of it."""
        return x + self.inner(x)


def replicated(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    for block in model.children():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def sharded_in_one(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


def parallel(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan: Any = {"0.inner.0": ColwiseParallel(), "0.inner.2": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (1,)), plan)


def whole(x: Any) -> Any:
    """The tensor that a sharded one is a part of."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


@pytest.mark.parametrize("called_by", ["thunder.jit of the model", "a jitted function"])
@pytest.mark.parametrize("share", [replicated, sharded, sharded_in_one, parallel])
def test_steps_of_training(share: Callable[[nn.Module], nn.Module], called_by: str) -> None:
    """Outputs and gradients, from the very first call on."""
    torch.manual_seed(0)
    plain = nn.Sequential(Block(), Block())
    model = share(copy.deepcopy(plain))
    run = thunder.jit(model) if called_by == "thunder.jit of the model" else thunder.jit(lambda x: model(x) * 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, plain)]
    for step in range(3):
        x = torch.randn(3, 4)
        found, expected = run(x), plain(x)
        torch.testing.assert_close(whole(found), expected)
        found.square().sum().backward()
        expected.square().sum().backward()
        for a, b in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(whole(a.grad).reshape(b.shape), b.grad, msg=f"step {step}")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def of_jitted_blocks(share: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    """Return a function that shares a model whose blocks are jitted."""

    def shared(model: nn.Module) -> nn.Module:
        return share(nn.Sequential(*[thunder.jit(block) for block in model.children()]))

    return shared


def a_jitted_model(share: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    """Return a function that shares a jitted model."""
    return lambda model: share(thunder.jit(model))


def sharded_whole(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


@pytest.mark.parametrize("jitted", [of_jitted_blocks, a_jitted_model])
@pytest.mark.parametrize("share", [replicated, sharded, sharded_whole, sharded_in_one, parallel])
def test_jitted_modules_are_shared(share: Callable[[nn.Module], nn.Module], jitted: Any) -> None:
    """Modules that are jitted before they are replicated or sharded are trained as in eager mode."""
    torch.manual_seed(0)
    plain = nn.Sequential(Block(), Block())
    model = jitted(share)(copy.deepcopy(plain))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, plain)]
    for step in range(3):
        x = torch.randn(3, 4)
        found, expected = model(x), plain(x)
        torch.testing.assert_close(whole(found), expected)
        found.square().sum().backward()
        expected.square().sum().backward()
        for a, b in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(whole(a.grad).reshape(b.shape), b.grad, msg=f"step {step}")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def test_a_sharded_jitted_module_keeps_its_interface() -> None:
    """The methods that FSDP adds work, and the class of the model changes with the class of its jitted module."""
    from torch.distributed.fsdp import FSDPModule

    block = Block()
    jitted = thunder.jit(block)
    found = sharded_whole(jitted)
    assert found is jitted
    assert isinstance(jitted, FSDPModule) and isinstance(block, FSDPModule) and isinstance(jitted, Block)
    jitted.set_requires_gradient_sync(True)
    jitted(torch.ones(2, 4)).sum().backward()
    jitted.reshard()
    assert jitted.inner[0].weight.grad is not None
    jitted.unshard()


class Heads(nn.Module):
    """Two results that depend on different parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both results."""
        return self.a(x), self.b(x)


@pytest.mark.parametrize("inside", [True, False])
def test_results_that_are_differentiated_one_by_one(inside: bool) -> None:
    """DDP reduces a bucket when the gradients of both results have arrived, as in eager mode."""

    def reductions(jit: Callable[[Any], Any]) -> list[int]:
        torch.manual_seed(0)
        ddp = replicated(jit(Heads()) if inside else Heads())
        reduced: list[int] = []

        def hook(state: Any, bucket: Any) -> Any:
            reduced.append(bucket.buffer().numel())
            done: Any = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        hook.__annotations__ = {}  # DDP accepts hooks without annotations
        ddp.register_comm_hook(None, hook)  # type: ignore[operator]
        run = ddp if inside else jit(ddp)
        counts = []
        for _ in range(3):
            a, b = run(torch.ones(2, 4))
            a.sum().backward()
            counts.append(len(reduced))
            b.sum().backward()
            counts.append(len(reduced))
        return counts

    assert reductions(thunder.jit) == reductions(lambda f: f)
