# SPDX-License-Identifier: Apache-2.0
"""Training steps for tests, compared with eager mode to the bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import thunder


class Training(NamedTuple):
    """A step, and what it leaves: `kept` have a `state_dict`. `between(k)` runs eagerly after call `k`."""

    step: Callable[..., Any]
    kept: tuple[Any, ...] = ()
    between: Callable[[int], None] = lambda k: None


Make = Callable[[nn.Module], Training]


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def batch(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(k)
    return torch.randn(6, 4, generator=g), torch.randn(6, 1, generator=g)


# -- comparison -------------------------------------------------------------------------------------------------------
def copied(x: Any) -> Any:
    """Return a structure with copies of its tensors, without their graphs."""
    if isinstance(x, torch.Tensor):
        return x.detach().clone()
    if isinstance(x, dict):
        return [(copied(k), copied(v)) for k, v in x.items()]
    return [copied(i) for i in x] if isinstance(x, (tuple, list)) else x


def same(found: Any, expected: Any) -> bool:
    """Compare to the bit; NaN equals NaN."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, torch.Tensor):
        alike = (found.dtype, found.stride()) == (expected.dtype, expected.stride())
        return alike and torch.equal(found.nan_to_num(), expected.nan_to_num())
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected) or (found != found and expected != expected)


def trained(make: Make, jit: Callable[..., Any], calls: int) -> tuple[Any, list[Any], list[bool]]:
    """Return the jitted step, what each call left, and whether its objects are those of the call before."""
    net = network()
    training = make(net)
    step = jit(training.step)
    left, kept = [], []
    objects: list[Any] = []
    for k in range(calls):
        result = copied(step(*batch(k)))
        gradients = [p.grad for p in net.parameters()]
        left.append([result, *map(copied, (list(net.parameters()), gradients))])
        left[-1] += [copied(x.state_dict()) for x in training.kept]
        training.between(k)
        tensors = [*net.parameters()]
        for x in training.kept:
            if isinstance(x, torch.optim.Optimizer):
                tensors += [v for s in x.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        kept.append([id(x) for x in tensors[: len(objects)]] == [id(x) for x in objects])
        objects = tensors
    return step, left, kept


def check(
    make: Make,
    *,
    calls: int,
    programs: int | None = None,
    eager: int = 0,
    reason: str | None = None,
) -> Any:
    """Compare a training step with eager mode, call by call, and the number of programs with the one allowed.

    At most `eager` calls run eagerly because a new path is not worth a program. A step for a `reason` is partly eager,
    and traced once.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, expected, kept = trained(make, lambda f: f, calls)
        jitted, found, kept_too = trained(make, thunder.jit, calls)
    for k, (a, b) in enumerate(zip(found, expected)):
        assert same(a, b), f"call {k}"
    assert kept_too == kept
    why = thunder.explain(jitted)
    if reason is not None:
        assert reason in why and thunder.cache_misses(jitted) == 1, why
    elif programs is not None:
        assert thunder.cache_misses(jitted) <= programs, why
        assert thunder.cache_misses(jitted) + thunder.cache_hits(jitted) >= calls - eager, why
    return jitted


def with_optimizer(make: Callable[[Iterable[Any]], Any], **options: Any) -> Make:
    def training(net: nn.Module) -> Training:
        optimizer = make(net.parameters())

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad(**options)
            loss = F.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return Training(step, (optimizer,))

    return training
