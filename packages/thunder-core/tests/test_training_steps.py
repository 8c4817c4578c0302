# SPDX-License-Identifier: Apache-2.0
"""Whole training steps, to the bit as in eager mode. `models/suite_training.py` has the same for 100 calls."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import training
from training import Make, check
from training_optimizers import BRANCHING, OPTIMIZERS, SCHEDULERS, USERS, allowed, with_scheduler
from training_programs import PARTLY_EAGER, PROGRAMS, scaled

import thunder


def adamw(params: Any) -> Any:
    return torch.optim.AdamW(params, lr=0.01)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers(make: Callable[..., Any]) -> None:
    check(training.with_optimizer(make), calls=5, programs=2)


@pytest.mark.parametrize("name", BRANCHING)
def test_optimizers_that_branch(name: str) -> None:
    make, programs = BRANCHING[name]
    check(training.with_optimizer(make), calls=9, programs=programs)


@pytest.mark.parametrize("cls", USERS, ids=lambda cls: cls.__name__)
def test_optimizers_of_users(cls: Any) -> None:
    check(training.with_optimizer(cls), calls=8, programs=USERS[cls])


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name: str, inside: bool) -> None:
    made = with_scheduler(SCHEDULERS[name][0], adamw, inside=inside)
    check(made, calls=24, **allowed(name, inside))


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_programs(make: Make) -> None:
    check(make, calls=12, programs=PROGRAMS[make])


@pytest.mark.parametrize("make", PARTLY_EAGER, ids=lambda make: make.__name__)
def test_partly_eager_programs(make: Make) -> None:
    """They are traced once, and the reason is in `explain`."""
    check(make, calls=4, reason=PARTLY_EAGER[make])


@pytest.mark.parametrize("name", ["Adam", "NAdam", "Adadelta", "RMSprop", "ASGD"])
def test_optimizers_refuse_capturable_on_a_cpu(name: str) -> None:
    """With eager mode's error: their code does not see that it is traced."""
    net = training.network()
    optimizer = getattr(torch.optim, name)(net.parameters(), capturable=True)

    def step(x: Any, y: Any) -> None:
        net(x).sum().backward()
        optimizer.step()

    with pytest.raises(AssertionError, match="If capturable=True"):
        thunder.jit(step)(*training.batch(0))


def test_overflow_skips_the_update() -> None:
    """Each branch of `GradScaler.step` is a path, and the scale is halved."""
    net = training.network()
    made = scaled(net)
    jitted = thunder.jit(made.step)
    scaler = made.kept[1]
    scales, changed = [], []
    for k in range(8):
        before = net[0].weight.detach().clone()
        jitted(*training.batch(k))
        scales.append(scaler.get_scale())
        changed.append(not torch.equal(before, net[0].weight))
    assert changed == [True, True, True, False] + [True] * 4
    assert scales == [1024.0, 1024.0, 2048.0, 1024.0, 1024.0, 1024.0, 2048.0, 2048.0]


# -- numerics ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_updates_against_float64(name: str, fused: bool) -> None:
    """Clipped and scaled gradients, and updates, are as far from float64 as float32 rounds."""
    found = []
    for dtype in (torch.float32, torch.float64):
        net = training.network().to(dtype)
        options = {"weight_decay": 0.1} | ({"momentum": 0.9} if name == "SGD" else {})
        optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.01, fused=fused, **options)

        def step(x: Any, y: Any, net: Any = net, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            (torch.nn.functional.mse_loss(net(x), y) * 1024).backward()
            torch._foreach_mul_([p.grad for p in net.parameters()], 1 / 1024)
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
            optimizer.step()
            return norm

        run = thunder.jit(step) if dtype is torch.float32 else step
        norms = [run(*[x.to(dtype) for x in training.batch(k)]) for k in range(6)]
        found.append([*norms, *[p.detach() for p in net.parameters()]])
    torch.testing.assert_close(found[0], [x.float() for x in found[1]], rtol=2e-5, atol=2e-6)
