# SPDX-License-Identifier: Apache-2.0
"""What tests of primitives share: a primitive and a function of torch, with their gradients, on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder


@pytest.fixture
def as_eager_prims() -> Callable[..., None]:
    """Compares a function of primitives, jitted, with one of torch: results and gradients."""

    def check(ours: Callable[..., Any], theirs: Callable[..., Any], *inputs: torch.Tensor) -> None:
        found = []
        for fn in (thunder.jit(ours), theirs):
            leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
            out = fn(*leaves)
            weights = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).reshape(out.shape)
            grads = torch.autograd.grad(out, [x for x in leaves if x.requires_grad], weights, allow_unused=True)
            found.append([out.detach(), *(g if g is not None else torch.zeros(()) for g in grads)])
        torch.testing.assert_close(*found)

    return check
