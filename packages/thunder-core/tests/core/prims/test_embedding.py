# SPDX-License-Identifier: Apache-2.0
"""The embedding's gradient is adjoint to it, padding and frequencies included."""

from __future__ import annotations

import pytest
import torch

import thunder
from thunder.core import prims

NUMBERS = torch.tensor([[0, 2, 2], [4, 2, 0]])


@pytest.mark.parametrize("padding_idx", [-1, 2])
@pytest.mark.parametrize("scale", [False, True], ids=["plain", "by-frequency"])
def test_the_gradient_of_the_gradient(padding_idx: int, scale: bool) -> None:
    """It is linear in `g`: its own gradient is its transpose. (torch forgets the frequencies here.)"""
    g = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    v = torch.randn(5, 4, dtype=torch.float64)
    out = thunder.jit(lambda g: prims.embedding_backward(g, NUMBERS, 5, padding_idx, scale))(g)
    (found,) = torch.autograd.grad(out, g, v)
    torch.testing.assert_close((found * g).sum(), (out * v).sum())


def test_numbers_of_the_wrong_type() -> None:
    """torch's words."""
    with pytest.raises(RuntimeError, match="to have one of the following scalar types: Long, Int"):
        prims.embedding(torch.ones(5, 4), NUMBERS.short())
