# SPDX-License-Identifier: Apache-2.0
"""The program that each rank of the tests of two-dimensional parallelism runs: `fully_shard` over tensor parallelism.

The report contains for each case: whether losses, gradients and parameters after each step are equal to the bit, their
largest difference to eager mode, the compilations, the reason if the module is partly eager, and the collectives of
the last programs with the sizes of their groups.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from processes import DEVICE, main
from ranks_tp import Model, sequence_plan, tensor_plan
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.core.symbol import OpTags

STEPS = 3


class MLP(nn.Module):
    """A column-parallel and a row-parallel layer: eager mode sums nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12, bias=False), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


def mlp(mesh: Any) -> nn.Module:
    model = nn.Sequential(MLP(), nn.LayerNorm(8), MLP()).to(DEVICE)
    styles = {"up": ColwiseParallel, "down": RowwiseParallel}
    plan = {f"{i}.{name}": style() for i in (0, 2) for name, style in styles.items()}
    return parallelize_module(model, mesh, plan)


def mlps(mesh: Any) -> nn.Module:
    """Layers whose parameters are all DTensors, so that norms of all gradients can be taken."""
    styles = {"up": ColwiseParallel, "down": RowwiseParallel}
    plan = {f"{i}.{name}": style() for i in (0, 1) for name, style in styles.items()}
    return parallelize_module(nn.Sequential(MLP(), MLP()).to(DEVICE), mesh, plan)


def language_model(mesh: Any, sequence: bool = False) -> nn.Module:
    inner = sequence_plan() if sequence else tensor_plan()
    rows = Shard(1) if sequence else Replicate()
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=rows),
        **{f"block.{name}": style for name, style in inner.items()},
        "head": ColwiseParallel(input_layouts=rows, output_layouts=Replicate()),
    }
    return parallelize_module(Model().to(DEVICE), mesh, plan)


class Stack(nn.Sequential):
    """Layers, some of them in checkpointed regions."""

    checkpointed: frozenset[int] = frozenset()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self):
            y = checkpoint(layer, x, use_reentrant=False) if i in self.checkpointed else layer(x)
            x = x + y if i % 2 else y
        return x


def random_options(seed: int) -> dict[str, Any]:
    """Return a random stack of layers, with random plans of tensor parallelism and settings of `fully_shard`."""
    choose = random.Random(seed)
    kinds = [choose.choice(("mlp", "linear", "norm", "columns", "rows")) for _ in range(choose.randrange(2, 5))]
    plan: dict[str, Any] = {}
    for i, kind in enumerate(kinds):
        if kind == "mlp":
            plan |= {f"{i}.up": ColwiseParallel(), f"{i}.down": RowwiseParallel()}
        elif kind == "columns":
            plan[str(i)] = ColwiseParallel(output_layouts=Replicate())
        elif kind == "rows":
            plan[str(i)] = RowwiseParallel(input_layouts=Replicate())
    checkpointed = frozenset(i for i in range(len(kinds)) if choose.random() < 0.3)

    def make(mesh: Any) -> nn.Module:
        layers = {"mlp": MLP, "norm": lambda: nn.LayerNorm(8)}
        stack = Stack(*[layers.get(kind, lambda: nn.Linear(8, 8))() for kind in kinds]).to(DEVICE)
        stack.checkpointed = checkpointed
        return parallelize_module(stack, mesh, plan)

    options: dict[str, Any] = {"make": make, "dtype": torch.float64, "reshard_after_forward": choose.random() < 0.6}
    if choose.random() < 0.4:
        options["shard_placement_fn"] = lambda p: Shard(p.dim() - 1)
    if choose.random() < 0.3:
        options["frozen"] = choose.choice([f"{i}.weight" for i, k in enumerate(kinds) if k != "mlp"] or [""])
    return options


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
CASES: dict[str, dict[str, Any]] = {
    "mlp": {"make": mlp},
    "mlp_kept": {"make": mlp, "reshard_after_forward": False},
    "mlp_bfloat16": {"make": mlp, "mp_policy": HALF},
    "mlp_frozen": {"make": mlp, "frozen": "0.up.weight"},
    "mlp_accumulating": {"make": mlp, "mp_policy": HALF, "accumulating": True},
    "tensor": {"make": language_model, "dtype": torch.float64},
    "sequence": {"make": lambda mesh: language_model(mesh, sequence=True), "dtype": torch.float64},
}


ADAMW: dict[str, Any] = {"optimizer": torch.optim.AdamW, "lr": 0.01, "eps": 1e-3}
# Whole steps: options of the module, and of the step. Without "dp" there is tensor parallelism only.
STEPS_OF: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "step_tensor": ({"make": mlps, "dp": False}, {**ADAMW, "clip": 0.1}),
    "step_tensor_foreach": ({"make": mlps, "dp": False}, {**ADAMW, "foreach": True, "clip": 0.1}),
    "step_sequence": (
        {"make": lambda mesh: language_model(mesh, sequence=True), "dtype": torch.float64, "dp": False}, ADAMW
    ),
    "step_2d": ({"make": mlps}, {**ADAMW, "clip": 0.1, "parts": 2}),
    "step_2d_foreach": ({"make": mlp, "reshard_after_forward": False}, {**ADAMW, "foreach": True}),
    "step_2d_bfloat16": ({"make": mlps, "mp_policy": HALF}, {"optimizer": torch.optim.SGD, "lr": 0.1, "momentum": 0.9}),
    "step_2d_sequence": (
        {"make": lambda mesh: language_model(mesh, sequence=True), "dtype": torch.float64}, {**ADAMW, "clip": 0.1}
    ),
}  # fmt: skip


def sharded(
    mesh: Any, make: Callable[[Any], nn.Module], dtype: Any = torch.float32, frozen: str = "", **options: Any
) -> Any:
    torch.manual_seed(0)
    shards = options.pop("dp", True)
    module = make(mesh["tp"]).to(dtype)
    if not shards:
        return module
    if frozen:
        module.get_parameter(frozen).requires_grad_(False)
    for child in module.children():
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh["dp"], **options)
    return fully_shard(module, mesh=mesh["dp"], **options)


def local(x: Any) -> Any:
    return None if x is None else getattr(x, "_local_tensor", x).detach().clone()


def train(
    module: Any, run: Any, optimizer: Any, mesh: Any, steps: int, seed: int = 0, accumulating: bool = False
) -> list[list[Any]]:
    """Train for some steps, and return losses, gradients and parameters after each of them."""
    generator = torch.Generator().manual_seed(seed + mesh["dp"].get_local_rank())  # ranks of "tp" have the same data
    states = []
    for i in range(steps):
        module.set_requires_gradient_sync(not accumulating or i % 2 == 1)
        first = next(module.parameters())
        if isinstance(module, Model):
            out = run(torch.randint(0, 8, (2, 4), generator=generator).to(DEVICE))
        else:
            out = run(torch.randn(3, 8, generator=generator).to(DEVICE, first.dtype))
        loss = out.square().mean()
        loss.backward()
        states.append([loss.detach().clone(), *[local(p.grad) for p in module.parameters()]])
        if not accumulating or i % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
        states[-1] += [local(p) for p in module.parameters()]
    return states


def whole_steps(name: str, mesh: Any) -> dict[str, Any]:
    """Run whole steps eagerly and jitted, with the gradients of several parts if the step has them."""
    runs = []
    for jit in (lambda f: f, thunder.jit):
        options, of_step = ({**x} for x in STEPS_OF[name])
        parts, clip = of_step.pop("parts", 1), of_step.pop("clip", None)
        module: Any = sharded(mesh, **options)
        optimizer = of_step.pop("optimizer")(module.parameters(), **of_step)

        def step(inputs: list[torch.Tensor], module: Any = module, optimizer: Any = optimizer) -> Any:
            for i, x in enumerate(inputs):
                if parts > 1:
                    module.set_requires_gradient_sync(i == parts - 1)
                loss = module(x).square().mean()
                loss.backward()
            norm = None if clip is None else nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach(), norm if norm is None else norm.full_tensor()

        run, states = jit(step), []
        generator = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
        for _ in range(8):  # a rounding of the norm does not show in each step
            if isinstance(module, Model):
                inputs = [torch.randint(0, 8, (2, 4), generator=generator).to(DEVICE) for _ in range(parts)]
            else:
                inputs = [torch.randn(3, 8, generator=generator).to(DEVICE) for _ in range(parts)]
            loss, norm = run(inputs)
            states.append([loss, norm, *[local(p) for p in module.parameters()]])
            states[-1] += [local(s["exp_avg"]) for s in optimizer.state.values() if "exp_avg" in s]
        runs.append(states)
    stats = thunder.compile_stats(run)
    return {
        "equal": all(
            (a is None and b is None) or torch.equal(a, b) for x, y in zip(*runs) for a, b in zip(x, y)
        ),
        "difference": differences(*runs), "misses": stats.cache_misses, "reason": stats.partly_eager,
    }  # fmt: skip


def optimizer_of(module: nn.Module) -> Any:
    return torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.01, eps=1e-3)


def differences(one: Any, two: Any) -> float:
    pairs = [(a, b) for x, y in zip(one, two) for a, b in zip(x, y)]
    assert all((a is None) == (b is None) for a, b in pairs)
    return max(0.0, *[float((a.double() - b.double()).abs().max()) for a, b in pairs if a is not None and a.numel()])


def case(options: dict[str, Any], mesh: Any) -> dict[str, Any]:
    runs, options = [], dict(options)
    accumulating = options.pop("accumulating", False)
    for jit in (lambda f: f, thunder.jit):
        module: Any = sharded(mesh, **options)
        run = jit(module)
        runs.append(train(module, run, optimizer_of(module), mesh, STEPS, accumulating=accumulating))
    stats = thunder.compile_stats(run)
    traces = [] if stats.partly_eager else [thunder.last_traces(run)[-1], thunder.last_backward_traces(run)[-1]]
    collectives = [[op for op in t.bound_symbols if OpTags.COLLECTIVE in op.sym.tags] for t in traces]
    tp = mesh["tp"].get_group().group_name
    named = [
        ["tp " * (op.args[-1].name == tp) + op.sym.name for op in found if op.sym.name != "wait"]
        for found in collectives
    ]
    return {
        "equal": all(
            (a is None and b is None) or torch.equal(a, b) for x, y in zip(*runs) for a, b in zip(x, y)
        ),
        "difference": differences(*runs), "misses": stats.cache_misses, "reason": stats.partly_eager,
        "collectives": named,
    }  # fmt: skip


def checkpoints(mesh: Any, folder: Path) -> dict[str, float]:
    """Train eagerly, save, go on jitted, and the other way round. Return the differences to eager training."""
    options = CASES["tensor"]
    found = {}
    for name, first, second in (("to_jitted", False, True), ("from_jitted", True, False)):
        module = sharded(mesh, **options)
        optimizer = optimizer_of(module)
        train(module, thunder.jit(module) if first else module, optimizer, mesh, 2)
        dcp.save({"model": module.state_dict()}, checkpoint_id=str(folder / name))
        other = sharded(mesh, **options)
        run = thunder.jit(other) if second else other
        train(other, run, optimizer_of(other), mesh, 1)  # it has other values, and is compiled, before it loads
        state = other.state_dict()
        dcp.load({"model": state}, checkpoint_id=str(folder / name))
        other.load_state_dict(state)
        plain = sharded(mesh, **options)
        plain.load_state_dict(module.state_dict())
        runs = [train(m, r, optimizer_of(m), mesh, 2, seed=7) for m, r in ((other, run), (plain, plain))]
        found[name] = differences(*runs)
        if second:
            assert thunder.compile_stats(run).partly_eager is None
    return found


def all_cases(rank: int, size: int) -> dict[str, Any]:
    sizes = (2, 2) if size == 4 else (1, 2)
    mesh = init_device_mesh(DEVICE, sizes, mesh_dim_names=("dp", "tp"))
    wanted = sys.argv[3:]
    report: dict[str, Any] = {name: case(o, mesh) for name, o in CASES.items() if not wanted or name in wanted}
    report |= {name: whole_steps(name, mesh) for name in STEPS_OF if not wanted or name in wanted}
    report |= {name: case(random_options(int(name[6:])), mesh) for name in wanted if name.startswith("random")}
    if not wanted or "checkpoints" in wanted:
        folders = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(folders)
        report["checkpoints"] = checkpoints(mesh, Path(str(folders[0])))
    return report


if __name__ == "__main__":
    main(all_cases)
