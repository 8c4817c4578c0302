# SPDX-License-Identifier: Apache-2.0
"""The program that each rank of the tests of whole steps with `fully_shard` runs: steps, eagerly and jitted.

The report contains for each case: whether losses, gradients, parameters and the optimizer's state are equal to the bit
after each step, the compilations, the reason if the step is partly eager, and the collectives of the last program.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from processes import DEVICE, main
from ranks_sharded import ALL_HALF, HALF, JITTED, add_hooks, second_dimension, sharded
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.utils import clip_grad_norm_

import thunder

ADAMW = {"optimizer": torch.optim.AdamW, "lr": 0.01}
INSIDE = {"sync": "inside"}  # the step sets whether gradients are reduced
SGD = {"optimizer": torch.optim.SGD, "lr": 0.1, "momentum": 0.9}
# The options of the module, of the optimizer, and of the step.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "adamw_100_steps": ({}, ADAMW, {"clip": 0.1, "steps": 100}),
    "adamw_foreach": ({}, {**ADAMW, "foreach": True, "amsgrad": True}, {"clip": 0.1}),
    "adamw_fused": ({}, {**ADAMW, "fused": True}, {}),
    "adam_kept": (
        {"reshard_after_forward": False}, {**ADAMW, "optimizer": torch.optim.Adam},
        {"clip": 0.01, "norm": float("inf"), "zero_grad": "first"},
    ),
    "zeros": ({}, SGD, {"zero_grad": "zeros"}),
    "bfloat16": ({"mp_policy": HALF}, ADAMW, {"clip": 1.0, "parts": 2}),
    "frozen_and_tied": ({"frozen": True, "tied": True, "calls": 2, "checkpointed": True}, SGD, {"clip": 1.0}),
    "kept_in_part": ({"mp_policy": HALF, "frozen": True, "tied": True}, ADAMW, {"parts": 2, "clip": 1.0}),
    "no_sync": ({"frozen": True}, ADAMW, {"parts": 3, "sync": "inside", "clip": 1.0}),
    "no_sync_bfloat16": ({"mp_policy": HALF}, ADAMW, {"parts": 3, **INSIDE}),
    "no_sync_all_bfloat16": ({"mp_policy": ALL_HALF, "reshard_after_forward": False}, SGD, {"parts": 2, **INSIDE}),
    "no_sync_outside": ({"mp_policy": HALF}, SGD, {"sync": "outside"}),
    "no_sync_by_the_program": ({}, SGD, {"sync": "outside", "eagerly": 1}),
    "no_sync_by_torch": ({}, SGD, {"sync": "outside", "eagerly": 0}),
    "two_backwards": ({}, SGD, {"again": True}),
    "forward_after_update": ({}, SGD, {"twice": True}),
    "second_dimension": ({"shard_placement_fn": second_dimension}, ADAMW, {"clip": 0.1}),
    "units_checkpointed": ({"units_checkpointed": True}, SGD, {"parts": 2}),
    "resharding_by_hand": ({}, SGD, {"by_hand": True}),
    "unsharding_by_hand": ({}, SGD, {"unshards": True, "steps": 5}),
    "left_whole": ({}, SGD, {"leaves_whole": True}),
    "evaluated_between": ({}, SGD, {"evaluates": True}),
    "grouped": ({"grouped": True, "mp_policy": HALF}, ADAMW, {"parts": 2, **INSIDE}),
    "hooks": ({"after": add_hooks}, ADAMW, {"clip": 0.1}),
    "unused": ({"unused": True}, SGD, {}),
}  # fmt: skip
if len(sys.argv) > 1 and sys.argv[1] == "4":
    CASES["hybrid"] = {"hybrid": True}, ADAMW, {"clip": 0.1, "parts": 2, **INSIDE}


def random_case(seed: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return random options of a module, of an optimizer, and of a step."""
    choose = random.Random(seed)
    module: dict[str, Any] = {
        name: True for name in ("frozen", "tied", "checkpointed", "looks_ahead") if choose.random() < 0.4
    }
    module |= choose.choice(({}, {"grouped": True}, {"units_checkpointed": True}))
    module["calls"] = choose.choice((1, 1, 2))
    module |= choose.choice(({}, {"mp_policy": HALF}, {"mp_policy": ALL_HALF}))
    module |= choose.choice(({}, {"reshard_after_forward": True}, {"reshard_after_forward": False}))
    module |= choose.choice(({}, {}, {"shard_placement_fn": second_dimension}))
    module |= choose.choice(({}, {"before": add_hooks}, {"after": add_hooks}))
    step: dict[str, Any] = {"steps": 4, "zero_grad": choose.choice(("last", "first", "zeros"))}
    step |= choose.choice(({}, {"clip": 0.1}, {"clip": 0.01, "norm": float("inf")}))
    step |= choose.choice(({}, {"parts": 2}, {"parts": 3, **INSIDE}, {"sync": "outside"}))
    step |= choose.choice(({}, {}, {"evaluates": True}))
    return module, choose.choice((ADAMW, SGD, {**ADAMW, "foreach": True})), step


class Training:
    """A sharded module with an optimizer, and its step."""

    def __init__(self, name: str, jit: Callable[..., Any] = lambda step, **options: step):
        module, optimizer, self.options = random_case(int(name[6:])) if name.startswith("random") else CASES[name]
        self.module: Any = sharded(**module)
        optimizer = dict(optimizer)
        trained = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer = optimizer.pop("optimizer")(trained, **optimizer)
        self.jitted = jit(self.step, **JITTED.get(name, {}))
        self.generator = torch.Generator().manual_seed(dist.get_rank())

    def step(self, parts: list[torch.Tensor], update: bool) -> tuple[torch.Tensor, Any]:
        options, norm = self.options, None
        if options.get("zero_grad") == "first":
            self.optimizer.zero_grad()
        for i, x in enumerate(parts):
            if options.get("sync") == "inside":
                self.module.set_requires_gradient_sync(i == len(parts) - 1)
            if options.get("unshards"):
                self.module.blocks[1].unshard(async_op=True).wait()
                self.module.unshard()
                loss = self.module(x).square().mean() + self.module.start.bias.sum()
            else:
                loss = self.module(x).square().mean()
            loss.backward(retain_graph=bool(options.get("again")))
            if options.get("again"):
                loss.backward()
        if not update:
            return loss.detach(), norm
        if options.get("by_hand"):
            self.module.reshard()
        if options.get("leaves_whole"):
            self.module.blocks[0].unshard()
        if "clip" in options:
            norm = clip_grad_norm_(self.module.parameters(), options["clip"], options.get("norm", 2.0))
        self.optimizer.step()
        if options.get("twice"):
            with torch.no_grad():
                loss = loss + self.module(parts[0]).sum()
        if options.get("zero_grad") != "first":
            self.optimizer.zero_grad(set_to_none=options.get("zero_grad") != "zeros")
        return loss.detach(), norm

    def run(self, count: int | None = None) -> list[list[Any]]:
        """Run steps, and return the state after each."""
        states = []
        for i in range(self.options.get("steps", 4) if count is None else count):
            parts = [
                torch.randn(3, 6, generator=self.generator).to(DEVICE) for _ in range(self.options.get("parts", 1))
            ]
            update = True
            if self.options.get("sync") == "outside":
                update = i % 2 == 1
                self.module.set_requires_gradient_sync(update)
            result = (self.step if i % 2 == self.options.get("eagerly") else self.jitted)(parts, update)
            if self.options.get("evaluates") and i == 2:
                with torch.no_grad():
                    self.module(parts[0])  # leaves the parameters of the root whole
            if self.options.get("leaves_whole"):
                self.module.blocks[0].reshard()
            if self.options.get("twice"):
                self.module.reshard()  # in eager mode, a forward without gradients leaves the root's parameters whole
            states.append(_flat([*result, *self.state()]))
        return states

    def state(self) -> list[Any]:
        parameters = list(self.module.parameters())
        of_optimizer = [self.optimizer.state[p] for p in parameters if p in self.optimizer.state]
        values = [s[key] for s in of_optimizer for key in sorted(s)]
        return [*parameters, *[p.grad for p in parameters], *values]


def _flat(values: list[Any]) -> list[Any]:
    found = [x.full_tensor() if hasattr(x, "full_tensor") and x.dim() == 0 else x for x in values]
    found = [x.to_local() if hasattr(x, "to_local") else x for x in found]
    return [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in found]


def _equal(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(one, two)
    )


def _saved(training: Training) -> dict[str, Any]:
    module, optimizer = get_state_dict(training.module, training.optimizer)
    return {"module": module, "optimizer": optimizer}


def checkpoints(folder: str) -> dict[str, bool]:
    """Steps of either kind continue from a distributed checkpoint of the other kind."""
    found = {}
    for before, after in (("eager", "jitted"), ("jitted", "eager")):
        kinds: dict[str, Any] = {"eager": lambda step, **options: step, "jitted": thunder.jit}
        first, second = Training("adamw_foreach", kinds[before]), Training("adamw_foreach", kinds[after])
        first.run(2)
        second.run(1)
        dcp.save(_saved(first), checkpoint_id=f"{folder}/{before}")
        state = _saved(second)
        dcp.load(state, checkpoint_id=f"{folder}/{before}")
        set_state_dict(
            second.module, second.optimizer, model_state_dict=state["module"], optim_state_dict=state["optimizer"]
        )
        second.generator.set_state(first.generator.get_state())
        same = all(_equal(a, b) for a, b in zip(first.run(2), second.run(2)))
        found[f"{before}_to_{after}"] = same and isinstance(next(second.module.parameters()), nn.Parameter)
    return found


def all_cases(rank: int, size: int) -> dict[str, Any]:
    wanted, found = sys.argv[3:], {}
    if "all" in wanted:
        wanted = [*CASES, "checkpoints", *[name for name in wanted if name != "all"]]
    for name in wanted:
        if name == "checkpoints":
            continue
        training = Training(name, thunder.jit)
        eager, states = Training(name).run(), training.run()
        stats = training.jitted._stats
        found[name] = {
            "equal": [_equal(one, two) for one, two in zip(eager, states)], "misses": stats.cache_misses,
            "reason": stats.partly_eager, "collectives": _collectives(training.jitted),
        }  # fmt: skip
    if "checkpoints" in wanted:
        folder = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(folder)
        found["checkpoints"] = checkpoints(str(folder[0]))
    return found


def _collectives(jitted: Any) -> list[str]:
    if jitted._stats.partly_eager:
        return []
    names = ("gather_shards", "all_gather", "reduce_scatter", "all_reduce")
    return [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.name in names]


if __name__ == "__main__":
    main(all_cases)
