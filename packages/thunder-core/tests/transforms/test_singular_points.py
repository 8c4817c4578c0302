# SPDX-License-Identifier: Apache-2.0
"""Derivatives where an operation divides by zero: what the gradient leaves out, every other mode leaves out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "std": lambda x: (x * 0 + 1).std(correction=0),
    "std of one": lambda x: x[None].std(0, correction=0).sum(),
    "std_mean": lambda x: torch.std_mean(x[None], 0, correction=0)[0].sum(),
    "norm": lambda x: (x * 0).norm(),
    "norm of order 3": lambda x: torch.linalg.vector_norm(x - x, 3),
    "distance": lambda x: torch.dist(x, x),
    "largest": lambda x: torch.linalg.vector_norm(x - x, math.inf),
    "complex size": lambda x: torch.complex(x * 0, x * 0).abs().sum(),
    "complex sign": lambda x: torch.complex(x * 0, x * 0).sgn().real.sum(),
    "angle": lambda x: torch.complex(x * 0, x * 0).angle().sum(),
    "zero to the zero": lambda x: torch.pow(x * 0, x * 0).sum(),
    "zero to a power": lambda x: torch.pow(torch.zeros(3, dtype=x.dtype), x.abs()).sum(),
    "sinc": lambda x: torch.sinc(x * 0).sum(),
}

MODES: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda m, f: m.grad(f),
    "jacfwd": lambda m, f: m.jacfwd(f),
    "jvp": lambda m, f: lambda x: m.jvp(f, (x,), (x.cos(),))[1],
    "vmap of grad": lambda m, f: lambda x: m.vmap(m.grad(f))(torch.stack([x, x + 1])),
    "jacfwd of jacfwd": lambda m, f: m.jacfwd(m.jacfwd(f)),
    "hessian": lambda m, f: m.hessian(f),
    "grad of grad": lambda m, f: m.grad(lambda x: m.grad(f)(x).sum()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_torch(name: str) -> None:
    """Where torch's own derivative is a number."""
    x = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    compared = 0
    for wrap in MODES.values():
        expected = wrap(torch.func, FUNCTIONS[name])(x)
        if expected.isfinite().all():
            torch.testing.assert_close(wrap(thunder, FUNCTIONS[name])(x), expected, rtol=1e-10, atol=1e-12)
            compared += 1
    assert compared >= 3


def test_the_curvature_of_sinc() -> None:
    """At zero, where torch has NaN."""
    x = torch.tensor([0.0, 1e-200, 1e-3], dtype=torch.float64)
    found = thunder.grad(lambda x: thunder.grad(lambda x: torch.sinc(x).sum())(x).sum())(x)
    torch.testing.assert_close(found, torch.full_like(x, -(math.pi**2) / 3), rtol=1e-4, atol=0)
