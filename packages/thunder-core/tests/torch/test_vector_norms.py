# SPDX-License-Identifier: Apache-2.0
"""Norms: gradients at zero and at infinities, orders of all kinds, and torch's refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import thunder

ORDERS = [0, 0.5, 1, 1.5, 2, 3, math.inf, -math.inf, -1]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0], [0.0, 2.0, -2.0], [1.0, -3.0, 3.0]], ids=str)
def test_gradients_where_it_has_a_corner(as_eager: Any, order: float, values: list[float]) -> None:
    """No gradient at zero, shared ones among equals."""
    x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    as_eager(lambda x: torch.linalg.vector_norm(x, order), x)
    as_eager(lambda x: torch.norm(x.reshape(3, 1), order, dim=0), x)


@pytest.mark.parametrize("order", [1, 2, 3, math.inf])
def test_complex_numbers(as_eager: Any, order: float) -> None:
    """The norm of their sizes."""
    x = torch.tensor([1 + 1j, 0, 2 - 3j], dtype=torch.complex128, requires_grad=True)
    as_eager(lambda x: torch.linalg.vector_norm(x, order), x)


def test_the_names_it_goes_by(as_eager: Any, randn: Any) -> None:
    """torch.norm, the method, "fro", dimensions by name, another type."""
    x = randn(3, 4)
    as_eager(lambda x: x.norm(), x)
    as_eager(lambda x: x.norm(1, -1, True), x)
    as_eager(lambda x: torch.norm(x, "fro", (0, 1)), x)
    as_eager(lambda x: torch.norm(x, p=None, dim=0), x)
    as_eager(lambda x: torch.norm(x.float(), dtype=torch.float64), x)
    as_eager(lambda x, y: torch.dist(x, y, 3), x, randn(4))


def test_what_torch_refuses() -> None:
    """Integers, types that would narrow, norms of nothing."""
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="Expected a floating point or complex tensor as input"):
        thunder.jit(torch.linalg.vector_norm)(torch.ones(2, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="without narrowing"):
        thunder.jit(lambda x: torch.linalg.vector_norm(x.double(), dtype=torch.float32))(x)
    with pytest.raises(RuntimeError, match="inf norm on an empty tensor"):
        thunder.jit(lambda x: torch.linalg.vector_norm(x, math.inf))(x[:0])


def test_the_nuclear_norm() -> None:
    """It is torch's matrix norm, with torch's gradient."""
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    jitted = thunder.jit(lambda x: torch.norm(x, "nuc"))
    torch.testing.assert_close(jitted(x), torch.norm(x, "nuc"))
    ours, theirs = (torch.autograd.grad(f(x), x) for f in (jitted, lambda x: torch.norm(x, "nuc")))
    torch.testing.assert_close(ours, theirs)
    assert thunder.cache_hits(jitted) == 1
