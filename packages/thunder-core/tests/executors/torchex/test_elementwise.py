# SPDX-License-Identifier: Apache-2.0
"""Primitives of two operands take a number for either, whether or not torch's function does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import thunder
from thunder.core import prims
from thunder.core.symbol import Symbol

FLOATS = (
    "add sub mul div fmod remainder floor_divide pow atan2 hypot copysign nextafter maximum minimum igamma igammac "
    "zeta eq ne lt le gt ge"
)
INTEGERS = "add sub mul div fmod remainder floor_divide maximum minimum gcd bitwise_and bitwise_or bitwise_xor eq lt"
CASES = [
    *[pytest.param(getattr(prims, name), torch.tensor([1.5, 2.0, 3.5]), 2.5, id=name) for name in FLOATS.split()],
    *[pytest.param(getattr(prims, n), torch.tensor([7, -2, 3]), 2, id=f"{n} of integers") for n in INTEGERS.split()],
    pytest.param(prims.maximum, torch.tensor([True, False]), True, id="maximum of truth values"),
    pytest.param(prims.bitwise_left_shift, torch.tensor([1, 2, 3]), 2, id="bitwise_left_shift"),
]


@pytest.mark.parametrize(("sym", "x", "number"), CASES)
def test_numbers(sym: Symbol, x: torch.Tensor, number: float) -> None:
    """The same as a tensor of that number gives."""
    filled = torch.full_like(x, number)
    expected = sym(x, filled)
    assert expected.dtype is sym(x, number).dtype
    assert torch.equal(sym(x, number), expected)
    assert torch.equal(sym(number, x), sym(filled, x))


def test_quotients_of_integers() -> None:
    """Towards zero."""
    x, y = torch.tensor([7, -7, 7, -7]), torch.tensor([2, 2, -2, -2])
    assert prims.div(x, y).tolist() == [3, -3, -3, 3]
    assert prims.floor_divide(x, y).tolist() == [3, -4, -4, 3]


def test_numpy_numbers() -> None:
    """What derives from Python's numbers is one of them."""
    x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    found = thunder.jit(lambda x: x * np.float64(0.5) + True)(x)
    assert found.dtype is torch.bfloat16 and found.tolist() == [1.5, 2.0]
