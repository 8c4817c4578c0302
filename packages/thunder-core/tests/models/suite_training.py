# SPDX-License-Identifier: Apache-2.0
"""Training steps of 100 calls under `thunder.jit`: optimizers, schedulers, programs. `nox -s models` runs this."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import training
from training import Make, check
from training_optimizers import BRANCHING, OPTIMIZERS, SCHEDULERS, USERS, allowed, with_scheduler
from training_programs import PROGRAMS

CALLS = 100


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("optimizer", ["SGD, momentum", "AdamW, foreach=False", "Adam, fused"])
def test_schedulers(optimizer: str, name: str, inside: bool) -> None:
    made = with_scheduler(SCHEDULERS[name][0], OPTIMIZERS[optimizer], inside=inside)
    check(made, calls=CALLS, **allowed(name, inside))


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer: str, inside: bool) -> None:
    made = with_scheduler(SCHEDULERS["CosineAnnealingLR"][0], OPTIMIZERS[optimizer], inside=inside)
    check(made, calls=CALLS, **allowed("CosineAnnealingLR", inside))


@pytest.mark.parametrize("name", BRANCHING)
def test_optimizers_that_branch(name: str) -> None:
    make, programs = BRANCHING[name]
    check(training.with_optimizer(make), calls=CALLS, programs=programs)


@pytest.mark.parametrize("cls", USERS, ids=lambda cls: cls.__name__)
def test_optimizers_of_users(cls: Any) -> None:
    check(training.with_optimizer(cls), calls=CALLS, programs=USERS[cls])


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_programs(make: Make) -> None:
    check(make, calls=CALLS, programs=PROGRAMS[make])
