# SPDX-License-Identifier: Apache-2.0
"""The noise of dropout: zeros and ones, one for each element or channel, drawn like torch's own."""

from __future__ import annotations

import pytest
import torch

from thunder.core import prims


def test_noise() -> None:
    """Its values, shape, share and the numbers that it takes from the generator."""
    x = torch.empty(50, 40)
    torch.manual_seed(1)
    noise = prims.dropout_noise(x, 0.3, False)
    torch.manual_seed(1)
    assert torch.equal(noise, torch.empty_like(x).bernoulli_(0.7))
    assert set(noise.unique().tolist()) == {0.0, 1.0}
    assert abs(noise.mean() - 0.7) < 0.05
    assert prims.dropout_noise(torch.empty(2, 3, 4, 5, dtype=torch.bfloat16), 0.3, True).shape == (2, 3, 1, 1)


def test_the_fused_kernel() -> None:
    """What it keeps is scaled up."""
    x = torch.randn(50, 40)
    out, mask = prims.native_dropout(x, 0.5)
    assert mask.dtype is torch.bool
    assert torch.equal(out, x * mask * 2)


def test_probabilities() -> None:
    """Between 0 and 1."""
    for prim in (
        lambda: prims.dropout_noise(torch.ones(2), 1.5, False),
        lambda: prims.native_dropout(torch.ones(2), -1),
    ):
        with pytest.raises(RuntimeError, match="has to be between 0 and 1"):
            prim()
