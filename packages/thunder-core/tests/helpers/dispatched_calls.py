# SPDX-License-Identifier: Apache-2.0
"""Calls of torch's functions, for tests: a matrix to call them with, and what becomes of calls that no trace has."""

from __future__ import annotations

import re
from typing import Any

import torch

import thunder


def value(kind: torch.dtype) -> torch.Tensor:
    """A matrix of that type."""
    return (
        torch.linspace(0.1, 0.9, 9, dtype=torch.float64).reshape(3, 3).mul(1 if kind.is_floating_point else 5).to(kind)
    )


def left_to_python(f: Any, x: torch.Tensor, *, why: str) -> None:
    """Calls it twice, compares with eager, and asks why it is not compiled."""
    jitted = thunder.jit(f)
    for _ in range(2):
        torch.testing.assert_close(jitted(x), f(x))
    assert re.search(why, thunder.explain(jitted)), thunder.explain(jitted)
