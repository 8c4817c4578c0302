# SPDX-License-Identifier: Apache-2.0
"""What all tests share: every trace is verified between passes, and random inputs are the same in every run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

os.environ.setdefault("THUNDER_VERIFY", "1")
# Errors of thunder that eager mode does not raise are raised. Otherwise calls would run eagerly and hide defects.
os.environ.setdefault("THUNDER_STRICT", "1")
# No test reads programs that another run has saved.
os.environ.setdefault("THUNDER_CACHE", "0")
# The tensors of tests are small: threads would only wait for each other, and sums come out in one order.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# `nox -s demo`, `nox -s surface` and `nox -s operators` are scripts that no wheel has.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))
# What several files of tests use: `from recording import traced`.
sys.path.append(str(Path(__file__).resolve().parent / "helpers"))

# Deadlines would measure the machine; derandomized, a failure is everybody's failure.
settings.register_profile(
    "thunder", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("thunder")


# Tests of programs that must be compiled. The other folders also test programs that run eagerly.
COMPILED = (
    "clang", "core", "execution", "executors", "extend", "models", "numpy", "passes", "tests", "torch", "transforms",
)  # fmt: skip


@pytest.fixture(autouse=True)
def compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where programs must be compiled, one that falls back to eager mode raises an error instead of a warning."""
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    if folder not in COMPILED:
        yield
        return
    from thunder.toolkit.testing import fallbacks_raise

    with fallbacks_raise():
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights and inputs are the same in each run, in whatever order the tests run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def classes_were_never_watched() -> None:
    """Python 3.13 lets a class be watched so often in a process; what a test sees is not for those before it to say."""
    hooks = sys.modules.get("thunder.capture.reads.hooks")
    if hooks is not None:
        hooks._installs.clear()
