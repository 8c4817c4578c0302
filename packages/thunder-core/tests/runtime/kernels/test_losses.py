# SPDX-License-Identifier: Apache-2.0
"""torch's kernels of losses: which shapes go to which, and when they are left alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.runtime.kernels import losses


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 5, 3), (2, 5, 3, 2), (2, 5, 1, 3, 2), (0, 5, 3)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_negative_log_likelihood(shape: tuple[int, ...], reduction: str) -> None:
    """One kernel for rows, one for images, into which everything else is folded."""
    x = torch.randn(shape, requires_grad=True)
    target = torch.randint(0, 5, shape[:1] * (len(shape) > 1) + shape[2:])
    expected = F.nll_loss(x, target, reduction=reduction, ignore_index=1)
    out, total = losses.nll_loss_forward(x.detach(), target, None, reduction, 1)
    torch.testing.assert_close(out, expected.detach(), equal_nan=True)
    assert total.eq(0) if reduction == "none" else total.eq((target != 1).sum())
    grad = torch.ones_like(out)
    (theirs,) = torch.autograd.grad(expected, x, grad)
    ours = losses.nll_loss_backward(grad, x.detach(), target, None, reduction, 1, total)
    torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_kernels_for_tensors_that_are_alike() -> None:
    """A loss of two types is differentiated step by step."""
    for other, expected in ((torch.float32, True), (torch.float64, False)):
        jitted = thunder.jit(lambda x, y: F.mse_loss(x, y))
        jitted(torch.ones(3, requires_grad=True), torch.zeros(3, dtype=other))
        names = [b.sym.name for b in thunder.last_backward_traces(jitted)[-1].bound_symbols]
        assert ("mse_loss_backward" in names) is expected
