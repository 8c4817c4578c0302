# SPDX-License-Identifier: Apache-2.0
"""Optimizers in jitted programs: their state, their groups, and gradients that are clipped."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backward_steps import check, gradients, same, update
from training import batch, network

import thunder


def states(optimizer: Any) -> list[Any]:
    """Return the tensors of an optimizer's state, and the numbers."""
    found = optimizer.state_dict()
    return [found["param_groups"], *[list(x.items()) for x in found["state"].values()]]


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True, maximize=True),
    "AdamW, lr in a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1)),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True, amsgrad=True),
    "SGD, foreach": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True, momentum=0.9),
    "RMSprop, foreach": lambda p: torch.optim.RMSprop(p, foreach=True, momentum=0.1),
    "two groups": lambda p: torch.optim.AdamW([{"params": [*p][:2], "lr": 0.2}, {"params": [*p][2:]}], lr=0.1),
    "NAdam": torch.optim.NAdam,
    "Adamax": torch.optim.Adamax,
    "Adadelta": torch.optim.Adadelta,
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "Rprop": torch.optim.Rprop,
}  # fmt: skip


def train(make: Callable[..., Any], jit: Callable[..., Any], *, calls: int = 5, set_to_none: bool = True) -> Any:
    """Return the jitted step, and what all calls leave: results, gradients, parameters and states."""
    net = network()
    optimizer = make([*net.parameters()])
    found: list[Any] = []

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = jit(step)
    objects: list[Any] = []
    for k in range(calls):
        found.append([run(*batch(k)), gradients(net), [p.detach().clone() for p in net.parameters()]])
        now = [x for s in optimizer.state.values() for x in s.values()]
        assert not objects or all(a is b for a, b in zip(objects, now) if isinstance(a, torch.Tensor))
        objects = now
    found.append(states(optimizer))
    return run, found


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers(make: Callable[..., Any]) -> None:
    """The first call creates the state, the second finds gradients and state, and later calls are cache hits.

    Parameters, gradients and the state are eager mode's to the bit, and state tensors stay the same objects.
    """
    _, expected = train(make, lambda f: f)
    step, found = train(make, lambda f: thunder.jit(f, fullgraph=True))
    assert same(found, expected)
    assert thunder.cache_misses(step) == 2 and thunder.cache_hits(step) == 3


def test_optimizer_with_gradients_that_stay() -> None:
    _, expected = train(OPTIMIZERS["AdamW"], lambda f: f, set_to_none=False)
    step, found = train(OPTIMIZERS["AdamW"], lambda f: thunder.jit(f, fullgraph=True), set_to_none=False)
    assert same(found, expected) and thunder.cache_misses(step) == 2


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("clip", ["norm", "largest", "value"])
def test_gradients_are_clipped(clip: str, foreach: Any) -> None:
    def make(net: Any) -> Any:
        params = [*net.parameters()]

        def step(x: Any, y: Any) -> Any:
            net.zero_grad(set_to_none=True)
            F.mse_loss(net(x), y).backward()
            if clip == "value":
                torch.nn.utils.clip_grad_value_(params, 0.05, foreach=foreach)
                norm = None
            else:
                kind = 2.0 if clip == "norm" else float("inf")
                norm = torch.nn.utils.clip_grad_norm_(params, 0.1, norm_type=kind, foreach=foreach)
            update(net)
            return norm

        return step

    check(make, programs=2)


def test_a_state_dict_is_loaded() -> None:
    """And parameters are replaced in the groups: the state belongs to other objects, or other tensors."""
    found: list[Any] = []
    for jit in (lambda f: f, thunder.jit):
        net = network()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

        def step(x: Any, y: Any, net: Any = net, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()

        jitted = jit(step)
        for k in range(3):
            jitted(*batch(k))
        saved = torch.utils._pytree.tree_map(
            lambda x: x.clone() if isinstance(x, torch.Tensor) else x, optimizer.state_dict()
        )
        for k in range(2):
            jitted(*batch(k))
        optimizer.load_state_dict(saved)
        for k in range(2):
            jitted(*batch(k))
        net[0].weight.requires_grad_(False)
        jitted(*batch(0))
        found.append([states(optimizer), gradients(net), [p.detach() for p in net.parameters()]])
    assert same(found[1], found[0])
    assert "partly eager" not in thunder.explain(jitted)
