# SPDX-License-Identifier: Apache-2.0
"""The program that each rank of the tests of tensor parallelism runs.

The report contains for each case: the largest differences to one device in float64, and to eager DTensors; whether
placements are as in eager mode; cache hits; reasons for eager calls; and the collectives of the last program.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from processes import DEVICE, main
from ranks import collectives
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import thunder


class Attention(nn.Module):
    """Causal attention; each rank has some of the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16, bias=False) for _ in range(3))
        self.out = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, 4)).transpose(1, 2) for w in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(16), nn.LayerNorm(16)
        self.attention, self.mlp = Attention(), SwiGLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """A language model of one block."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block, self.head = nn.Embedding(8, 16), Block(), nn.Linear(16, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embedding(tokens)))


COLUMNS = ("attention.q", "attention.k", "attention.v", "mlp.up", "mlp.gate")
TENSOR = {**dict.fromkeys(COLUMNS, ColwiseParallel), "attention.out": RowwiseParallel, "mlp.down": RowwiseParallel}


def tensor_plan(prefix: str = "") -> dict[str, Any]:
    return {prefix + name: style() for name, style in TENSOR.items()}


def sequence_plan() -> dict[str, Any]:
    gathered = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    return {
        **tensor_plan(),
        "norm1": SequenceParallel(),
        "norm2": SequenceParallel(),
        "attention": PrepareModuleInput(**gathered),
        "mlp": PrepareModuleInput(**gathered),
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }


def whole(x: Any) -> Any:
    return x.full_tensor() if isinstance(x, DTensor) else x


def difference(a: Any, b: Any) -> float:
    return float((whole(a).detach().double() - whole(b).detach().double()).abs().max())


def compare(model: nn.Module, plan: dict[str, Any], mesh: Any, x: torch.Tensor, shard: Callable[[Any], Any]) -> Any:
    """Run forward and backward on one device in float64, with eager DTensors, and jitted."""
    model = model.to(DEVICE)
    single = copy.deepcopy(model).double()
    alone = x.double().requires_grad_() if x.is_floating_point() else x
    expected = single(alone)
    (expected * expected.detach().cos()).sum().backward()
    runs = []
    for jits in (False, True):
        parallel = parallelize_module(copy.deepcopy(model), mesh, plan)
        run = thunder.jit(parallel) if jits else parallel
        for _ in range(2):
            parallel.zero_grad()
            given = shard(x.detach()).clone()
            if given.is_floating_point():
                given.requires_grad_()
            out = run(given)
            (out * out.detach().cos()).sum().backward()
        runs.append((out, given.grad, dict(parallel.named_parameters())))
    (out, grad, parameters), (found, found_grad, found_parameters) = runs
    statistics = thunder.compile_stats(run)
    return {
        "single": max(
            difference(found, shard(expected)),
            0.0 if grad is None else difference(found_grad, shard(alone.grad)),
            *[difference(p.grad, q.grad) for p, q in zip(found_parameters.values(), single.parameters())],
        ),
        "eager": max(
            difference(found, out),
            0.0 if grad is None else difference(found_grad, grad),
            *[difference(p.grad, q.grad) for p, q in zip(found_parameters.values(), parameters.values())],
        ),
        "gradients": {
            name: [str(getattr(p.grad, "placements", None)), str(getattr(parameters[name].grad, "placements", None))]
            for name, p in found_parameters.items()
        },
        "hits": thunder.cache_hits(run),
        "eager_calls": [str(e.reason) for e in statistics.events.of("fallback")],
        "collectives": collectives(run),
    }


# -- random programs --------------------------------------------------------------------------------------------------
UNARY: list[Callable[[Any], Any]] = [
    torch.sin, torch.neg, lambda x: x * 2, lambda x: x + 1, lambda x: 3 / (x * x + 1), lambda x: x.transpose(0, 1),
    lambda x: x.sum(0, keepdim=True).expand(4, 4), lambda x: x.mean(1, keepdim=True) + x, lambda x: x.softmax(1),
    lambda x: x.reshape(2, 2, 4).transpose(1, 2).reshape(4, 4), lambda x: x.flatten().view(4, 4), lambda x: x.t(),
    lambda x: F.layer_norm(x, (4,)), lambda x: torch.cat(x.chunk(2, 1), 1), lambda x: x[:, 1:2] + x, lambda x: x.tanh(),
    lambda x: x.unsqueeze(0).squeeze(0), lambda x: x.cumsum(1), lambda x: x.sum() * x, lambda x: x.to(torch.float64),
    lambda x: x.var(1, keepdim=True) * x,
]  # fmt: skip
BINARY: list[Callable[[Any, Any], Any]] = [
    torch.add, torch.mul, torch.matmul, torch.sub, lambda a, b: F.linear(a, b), lambda a, b: F.linear(a, b, b[0]),
    lambda a, b: torch.einsum("ij,jk->ik", a, b), lambda a, b: torch.where(a > 0, a, b), torch.maximum,
    lambda a, b: torch.stack([a, b]).sum(0), lambda a, b: torch.bmm(a[None], b[None])[0], lambda a, b: a + b[0],
]  # fmt: skip


def random_program(seed: int) -> Callable[..., Any]:
    """Return a random program of two matrices that calls a few operations."""

    choose = random.Random(seed)
    steps: list[Any] = []
    for count in range(2, 7):
        arity = choose.choice((1, 2))
        operation = choose.choice(UNARY if arity == 1 else BINARY)
        steps.append((operation, tuple(choose.randrange(count) for _ in range(arity))))

    def program(a: Any, b: Any) -> Any:
        values = [a, b]
        for operation, operands in steps:
            values.append(operation(*[values[i] for i in operands]))
        return values[-1]

    return program


def random_case(seed: int, mesh: Any) -> Any:
    """Compare a random program on DTensors of random layouts with one device."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    single = [torch.randn(4, 4, dtype=torch.float64).to(DEVICE).requires_grad_() for _ in range(2)]
    dims = [[Replicate(), Shard(0), Shard(1)] for _ in range(mesh.ndim)]
    placements = []
    for _ in single:
        placed = [choose.choice(d) for d in dims]
        placements.append(placed if len(set(placed)) == len(placed) else [Replicate(), *placed[1:]])
    program = random_program(seed)
    expected = program(*single)
    weight = torch.sin(torch.arange(expected.numel(), dtype=torch.float64, device=DEVICE)).view(expected.shape)
    (expected * weight).sum().backward()
    given = [distribute_tensor(x.detach(), mesh, p).requires_grad_() for x, p in zip(single, placements)]

    def distributed(a: Any, b: Any) -> Any:
        return program(a, b).full_tensor()

    run = thunder.jit(distributed)
    try:
        found = run(*given)
    except RuntimeError as error:  # it ran eagerly, and eager DTensors do not support it
        return {"difference": 0.0, "eager_calls": [str(error)]}
    (found * weight).sum().backward()
    gradients = [
        0.0 if x.grad is None and y.grad is None else difference(x.grad, y.grad) for x, y in zip(given, single)
    ]
    return {
        "difference": max(difference(found, expected), *gradients),
        "eager_calls": [str(e.reason) for e in thunder.compile_stats(run).events.of("fallback")],
    }


def loss_case(
    mesh: Any, placed: list[Any], shape: tuple[int, ...], weighted: bool = False, ignores: bool = True,
    target_placed: list[Any] | None = None, autocast: bool = False, dtype: Any = torch.float32, **options: Any,
) -> Any:  # fmt: skip
    """Compare cross-entropy of logits with sharded classes with eager `loss_parallel`, and with one device."""
    torch.manual_seed(0)
    logits = torch.randn(shape, dtype=dtype).to(DEVICE)
    target = torch.randint(0, 8, (*shape[:1], *shape[2:])).to(DEVICE)
    if ignores:
        target.view(-1)[:2] = options.get("ignore_index", -100)
    weight = torch.rand(8, dtype=dtype).to(DEVICE) if weighted else None

    def loss(x: Any, t: Any, w: Any) -> Any:
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=autocast), loss_parallel():
            return F.cross_entropy(x * 2, t, w, **options)

    x = logits.detach().requires_grad_()
    F.cross_entropy(x.float() * 2 if autocast else x * 2, target, weight, **options).sum().backward()
    found, jitted = [], thunder.jit(loss)
    for fn in (loss, jitted, jitted):
        y = distribute_tensor(logits, mesh, placed).requires_grad_()
        try:
            out = fn(y, target if target_placed is None else distribute_tensor(target, mesh, target_placed), weight)
            with loss_parallel():
                out.full_tensor().sum().backward()
        except (NotImplementedError, RuntimeError) as error:  # eager mode has fewer cases
            assert fn is loss, error
            continue
        found.append((out.to_local().detach(), y.grad.to_local(), str(out.dtype)))
    return {
        "difference": difference(y.grad, x.grad),
        "equal": all(torch.equal(a, b) for a, b in zip(found[0][:2], found[-1][:2])),
        "dtype": found[-1][2],
        "collectives": collectives(fn),
        "eager_calls": [str(e.reason) for e in thunder.compile_stats(fn).events.of("fallback")],
    }


def losses(meshes: dict[str, Any]) -> dict[str, Any]:
    line, square = meshes["line"], meshes.get("square")
    found = {
        f"{reduction}{shape}": loss_case(line, [Shard(1)], shape, reduction=reduction, ignores=len(shape) == 2)
        for shape in ((6, 8), (4, 8, 2))
        for reduction in ("mean", "sum", "none")
    }
    found["weighted"] = loss_case(line, [Shard(1)], (6, 8), weighted=True, ignores=False)
    found["weighted_ignored"] = loss_case(line, [Shard(1)], (6, 8), weighted=True, ignore_index=3)
    found["autocast"] = loss_case(line, [Shard(1)], (6, 8), autocast=True, dtype=torch.bfloat16)
    if square is not None:
        rows = {"placed": [Shard(0), Shard(1)], "target_placed": [Shard(0), Replicate()]}
        for reduction in ("mean", "sum", "none"):
            found[f"{reduction} of sharded rows"] = loss_case(square, shape=(4, 8), reduction=reduction, **rows)
        columns = {"placed": [Shard(1), Shard(2)], "target_placed": [Replicate(), Shard(1)]}
        found["last dimension"] = loss_case(square, shape=(3, 8, 4), reduction="sum", **columns)
    return found


def run(rank: int, size: int) -> Any:
    meshes = {"line": init_device_mesh(DEVICE, (size,))}
    if size == 4:
        meshes["square"] = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("a", "b"))
    report: dict[str, Any] = {}
    torch.manual_seed(0)
    x, line = torch.randn(2, 4, 16).to(DEVICE), meshes["line"]
    report["tensor"] = compare(Block(), tensor_plan(), line, x, lambda y: y)
    report["sequence"] = compare(Block(), sequence_plan(), line, x, lambda y: y.chunk(size, 1)[rank])
    plan = {
        "embedding": ColwiseParallel(output_layouts=Replicate()),
        **tensor_plan("block."),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    report["model"] = compare(Model(), plan, line, torch.randint(0, 8, (2, 4)).to(DEVICE), lambda y: y)
    mesh = meshes["square" if size == 4 else "line"]  # two ranks in each dimension
    report["losses"] = losses(meshes)
    report["random"] = {str(seed): random_case(seed, mesh) for seed in range(30)}
    return report


if __name__ == "__main__":
    main(run)
