# SPDX-License-Identifier: Apache-2.0
"""Reductions that torch spells otherwise."""

from __future__ import annotations

import pytest
import torch

from thunder.runtime.kernels import reductions


@pytest.mark.parametrize("dims", [(0,), (2, 0), (0, 1, 2)], ids=str)
def test_products_over_several_dimensions(dims: tuple[int, ...]) -> None:
    """torch takes one at a time."""
    x = torch.randint(-3, 4, (2, 3, 4), dtype=torch.int32)
    expected = x
    for d in sorted(dims, reverse=True):
        expected = expected.prod(d, dtype=torch.int32)
    assert torch.equal(reductions.prod(x, dims), expected)
    assert reductions.sum(x, dims).dtype is torch.int32
