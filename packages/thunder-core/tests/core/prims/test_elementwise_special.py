# SPDX-License-Identifier: Apache-2.0
"""Gradients that nobody has written: they cost nothing until somebody asks."""

from __future__ import annotations

import pytest
import torch

import thunder


def test_only_who_asks_is_refused() -> None:
    """igamma's derivative by its first argument is not known, which the second does not feel."""
    jitted = thunder.jit(lambda a, b: torch.igamma(a, b))
    a, b = torch.tensor([1.5, 2.0]), torch.tensor([0.7, 3.0], requires_grad=True)
    expected = torch.autograd.grad(torch.igamma(a, b).sum(), b)[0]
    torch.testing.assert_close(torch.autograd.grad(jitted(a, b).sum(), b)[0], expected)
    out = jitted(a.requires_grad_(), b)
    with pytest.raises(NotImplementedError, match="derivative for 'igamma: input' is not implemented"):
        torch.autograd.grad(out.sum(), a)
