# SPDX-License-Identifier: Apache-2.0
"""The program that each rank of the tests of `fully_shard` runs: training, eagerly and jitted.

The report contains for each case: whether losses, gradients of shards and parameters after each step are equal to the
bit, the compilations, the reason if the module is partly eager, and the collectives of the last program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from processes import DEVICE, main
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import checkpoint

import thunder

STEPS = 3


class Block(nn.Module):
    """Layers whose rows cannot be divided evenly among two or four ranks."""

    def __init__(self, checkpointed: bool = False):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(6), nn.Linear(6, 9), nn.Linear(9, 6)
        self.checkpointed = checkpointed

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.gelu(self.first(self.norm(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (checkpoint(self.inner, x, use_reentrant=False) if self.checkpointed else self.inner(x))


class Model(nn.Module):
    """Blocks between two layers, which belong to the root."""

    def __init__(
        self,
        *,
        checkpointed: bool = False,
        units_checkpointed: bool = False,
        looks_ahead: bool = False,
        tied: bool = False,
        unused: bool = False,
        calls: int = 1,
        grouped: bool = False,
        skips: bool = False,
    ):
        super().__init__()
        self.start, self.end = nn.Linear(6, 6), nn.Linear(6, 6)
        self.blocks = nn.ModuleList(Block(checkpointed) for _ in range(2))
        self.calls, self.units_checkpointed = calls, units_checkpointed
        self.looks_ahead, self.grouped, self.skips = looks_ahead, grouped, skips
        if tied:
            self.end.weight = self.start.weight
        if unused:
            self.extra = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.start(x)
        if self.looks_ahead:
            with torch.no_grad():
                ahead = self.blocks[0](x)
            x = x + ahead
        for _ in range(self.calls):
            for block in self.blocks[: 1 if self.skips else None]:
                x = checkpoint(block, x, use_reentrant=False) if self.units_checkpointed else block(x)
        return self.end(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(self.blocks[1](self.start(x)).tanh())


def add_hooks(module: Any) -> None:
    """Add hooks to modules that change what passes through them, forward and backward."""
    one, two = module.blocks
    one.register_forward_pre_hook(lambda m, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True)
    one.register_forward_hook(lambda m, args, kwargs, out: out * 3 + args[0], with_kwargs=True)
    one.first.register_forward_hook(lambda m, args, out: out.tanh(), always_call=True)
    two.register_full_backward_hook(lambda m, given, arrived: (given[0] * 2,))
    two.second.register_full_backward_pre_hook(lambda m, arrived: (arrived[0] / 4,))
    module.end.register_forward_pre_hook(lambda m, args: (args[0].sin(),))


def prefetch(module: Any) -> None:
    """Set when torch gathers parameters before they are needed, which changes no numbers."""
    one, two = module.blocks
    module.set_modules_to_forward_prefetch([one, two])
    two.set_modules_to_backward_prefetch([one])
    one.set_unshard_in_backward(True)


def sharded(
    frozen: bool = False, dtype: torch.dtype = torch.float32, hybrid: bool = False, **options: Any
) -> nn.Module:
    of_model = ("checkpointed", "units_checkpointed", "looks_ahead", "tied", "unused", "calls", "grouped", "skips")
    model = {name: options.pop(name) for name in of_model if name in options}
    before, after = options.pop("before", None), options.pop("after", None)
    torch.manual_seed(0)
    module = Model(**model).to(DEVICE, dtype)
    if frozen:
        module.blocks[0].first.requires_grad_(False)
    if before is not None:
        before(module)
    sizes = (2, 2) if hybrid else (dist.get_world_size(),)
    mesh = init_device_mesh(DEVICE, sizes, mesh_dim_names=("replicas", "shards") if hybrid else ("shards",))
    factor, all_checkpointed = options.pop("factor", None), options.pop("all_checkpointed", False)
    units: list[Any] = [list(module.blocks)] if module.grouped else list(module.blocks)
    for unit in units:
        fully_shard(unit, mesh=mesh, **options)
    found = fully_shard(Checkpointed(module) if all_checkpointed else module, mesh=mesh, **options)
    if after is not None:
        after(found)
    if factor is not None:
        for inner in found.modules():
            if isinstance(inner, FSDPModule):
                inner.set_gradient_divide_factor(factor)
                inner.set_force_sum_reduction_for_comms(True)
    return found


class Checkpointed(nn.Module):
    """A model as one checkpointed region."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def second_dimension(p: torch.Tensor) -> Shard | None:
    """Shard matrices in their second dimension, if the ranks can share it evenly."""
    return Shard(1) if p.dim() == 2 and p.shape[1] % dist.get_world_size() == 0 else None


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
ALL_HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
CASES: dict[str, dict[str, Any]] = {
    "resharded": {},
    "kept": {"reshard_after_forward": False},
    "kept_in_part": {"mp_policy": HALF, "tied": True},
    "bfloat16": {"mp_policy": HALF},
    "bfloat16_reduced": {"mp_policy": ALL_HALF},
    "float16": {"dtype": torch.float16},
    "float64": {"dtype": torch.float64},
    "frozen": {"frozen": True},
    "tied": {"tied": True},
    "checkpointed": {"checkpointed": True},
    "called_twice": {"calls": 2},
    "called_without_gradients_first": {"looks_ahead": True},
    "accumulating": {},
    "accumulating_later": {},
    "accumulating_whole": {},  # eager mode keeps the parameters whole until gradients are reduced
    "accumulating_bfloat16": {"mp_policy": HALF, "frozen": True, "tied": True, "units_checkpointed": True},
    "accumulating_all_bfloat16": {"mp_policy": ALL_HALF, "reshard_after_forward": False},
    "flag_set_before_backward": {"mp_policy": HALF},
    "unsharded_by_hand": {},
    "units_checkpointed": {"units_checkpointed": True},
    "all_checkpointed": {"all_checkpointed": True},
    "second_dimension": {"shard_placement_fn": second_dimension},
    "grouped": {"grouped": True},
    "grouped_bfloat16": {"grouped": True, "mp_policy": HALF, "reshard_after_forward": False, "calls": 2},
    "grouped_in_part": {"grouped": True, "skips": True, "before": lambda m: m.blocks[1].requires_grad_(False)},
    "hooks_before": {"before": add_hooks},
    "hooks_after": {"after": add_hooks, "mp_policy": HALF},
    "prefetching": {"after": prefetch},
    "settings_change": {},
    "forward_method": {"after": lambda module: register_fsdp_forward_method(module, "encode")},
    "factor": {"factor": 3.0},
    "unused": {"unused": True},
    "retraces_alone": {},
    "offloaded": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
}
if len(sys.argv) > 1 and sys.argv[1] == "4":
    CASES["hybrid"] = {"hybrid": True}
    CASES["halves"] = {"reshard_after_forward": 2}


# Options of thunder.jit.
JITTED: dict[str, dict[str, Any]] = {"kept_in_part": {"kept_parameters": "auto"}}


def train(name: str, jit: Callable[..., Any] | None) -> tuple[list[list[Any]], Any, list[str]]:
    """Train for some steps. Return the state after each step, what was jitted, and the collectives of backward."""
    module: Any = sharded(**CASES[name])
    run = module if name != "forward_method" else module.encode
    run = run if jit is None else jit(run, **JITTED.get(name, {}))
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.01, eps=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    states = []
    for step in range(STEPS):
        if name == "unsharded_by_hand" and step == 1:
            module.unshard()
        if name == "settings_change":
            module.set_reshard_after_forward(step != 1)
        reduces = step % 2 == (name != "accumulating_later") or not name.startswith(("accumulating", "flag"))
        module.set_requires_gradient_sync(reduces and not name.startswith("flag"))
        rows = 3 + step * (name == "retraces_alone") * dist.get_rank()  # the last rank has other shapes in each step
        x = torch.randn(rows, 6, generator=generator).to(DEVICE, CASES[name].get("dtype", torch.float32))
        loss = run(x).square().mean()
        module.set_requires_gradient_sync(reduces)
        if name == "accumulating_whole":
            module.set_reshard_after_backward(reduces)
        loss.backward()
        state = [loss.detach().clone()]
        if reduces:
            state += [x if x is None else x.to_local().clone() for x in (p.grad for p in module.parameters())]
            optimizer.step()
            optimizer.zero_grad()
        if reduces or name != "accumulating_whole":
            state += [p.to_local().detach().clone() for p in module.parameters()]
        states.append(state)
    backward = [] if jit is None else _backward(run)
    with torch.no_grad():
        states.append([run(torch.ones(3, 6).to(DEVICE, CASES[name].get("dtype", torch.float32)))])
    return states, run, backward


def all_cases(rank: int, size: int) -> dict[str, Any]:
    wanted, found = sys.argv[3:], {}
    for name in CASES:
        if not wanted or name in wanted:
            (eager, *_), (states, jitted, backward) = train(name, None), train(name, thunder.jit)
            stats = jitted._stats
            found[name] = {
                "equal": [_equal(one, two) for one, two in zip(eager, states)], "misses": stats.cache_misses,
                "reason": stats.partly_eager,
                "backward": backward,
            }  # fmt: skip
    if not wanted:
        found["two_forwards_first"] = two_forwards_first()
    return found


def two_forwards_first() -> str:
    """Leave gradients to the next backward that its forward does not know. Return the error."""
    module: Any = sharded()
    run, losses, x = thunder.jit(module), [], torch.ones(3, 6).to(DEVICE)
    for reduces in (False, True):
        module.set_requires_gradient_sync(reduces)
        losses.append(run(x).sum())
    try:
        for reduces, loss in zip((False, True), losses):
            module.set_requires_gradient_sync(reduces)
            loss.backward()
    except RuntimeError as error:
        return str(error)
    return ""


def _backward(jitted: Any) -> list[str]:
    if jitted._stats.partly_eager:
        return []
    operations = thunder.last_backward_traces(jitted)[-1].bound_symbols
    return [op.sym.name for op in operations if op.sym.name in ("gather_shards", "all_gather", "reduce_scatter")]


def _equal(one: list[Any], two: list[Any]) -> bool:
    return all((a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in zip(one, two))


if __name__ == "__main__":
    main(all_cases)
