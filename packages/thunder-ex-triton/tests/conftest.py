# SPDX-License-Identifier: Apache-2.0
"""Without a GPU the kernels are interpreted, on CPU tensors. Triton reads the variable when a kernel is declared."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from thunder.toolkit.testing import fallbacks_raise

os.environ.setdefault("THUNDER_VERIFY", "1")
os.environ.setdefault("THUNDER_STRICT", "1")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile(
    "thunder", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("thunder")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights and inputs are the same in each run, in whatever order the tests run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    """A program that falls back to eager mode raises an error instead of a warning."""
    with fallbacks_raise():
        yield
