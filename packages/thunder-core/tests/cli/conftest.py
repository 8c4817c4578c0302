# SPDX-License-Identifier: Apache-2.0
"""A file of a user, with programs that commands examine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = """
import torch
import thunder


class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).tanh()


class Sized(torch.nn.Module):
    def __init__(self, n):
        super().__init__()


def f(x, scale=2.0):
    return (x * scale).sin()


def f_inputs():
    return {"x": torch.ones(2, 2), "scale": 3.0}


def constant():
    return torch.ones(3) + 1


def anything(*args, **kwargs):
    return args, kwargs


def raises(x):
    raise ValueError("wrong input")


jitted = thunder.jit(f)
number = 3


def example_inputs():
    return (torch.randn(3, 4),)
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the path of the file."""
    path = tmp_path / "user_programs.py"
    path.write_text(PROGRAMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield str(path)
    sys.modules.pop("user_programs", None)
