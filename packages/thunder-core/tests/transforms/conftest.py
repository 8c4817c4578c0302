# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from played_graphs import Played


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Played:
    """Programs on the CPU are captured, with graphs that are played."""
    monkeypatch.setattr("thunder.transforms.cuda_graphs._GPU", "cpu")
    return Played(monkeypatch)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """Where programs are captured."""
    if torch.cuda.is_available():
        return "cuda"
    monkeypatch.setattr("thunder.transforms.cuda_graphs._GPU", "cpu")
    Played(monkeypatch)
    return "cpu"
