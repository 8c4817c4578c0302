# SPDX-License-Identifier: Apache-2.0
"""Kernels of losses, called as torch's functions call them, with the reduction as a number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder

nn = torch._C._nn


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize(
    ("kernel", "options"),
    [(nn.mse_loss, ()), (nn.l1_loss, ()), (nn.smooth_l1_loss, (0.5,)), (nn.huber_loss, (0.5,))],
    ids=["mse", "l1", "smooth_l1", "huber"],
)
def test_numbers_for_reductions(as_eager: Any, randn: Any, kernel: Any, options: Any, reduction: int) -> None:
    """None, mean, sum; the backward pass is one operation."""
    jitted = as_eager(lambda x, y: kernel(x, y, reduction, *options), randn(3, 4), randn(3, 4))
    names = [b.sym.name for b in thunder.last_backward_traces(jitted)[-1].bound_symbols]
    assert any(name.endswith("_loss_backward") for name in names) or kernel is nn.l1_loss


def test_integers() -> None:
    """torch has no square loss of integers, and rounds nothing silently."""
    x = torch.ones(3, dtype=torch.int64)
    with pytest.raises(NotImplementedError, match="\"mse_cpu\" not implemented for 'Long'"):
        thunder.jit(lambda x: nn.mse_loss(x, x, 1))(x)
