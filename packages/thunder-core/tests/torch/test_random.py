# SPDX-License-Identifier: Apache-2.0
"""Random numbers by every one of torch's names are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder

CALLS = {
    "sizes": lambda x: (
        torch.rand(3), torch.rand((2, 2)), torch.randn(2, 3, dtype=torch.float64), torch.rand(size=(2,)),
    ),
    "integers": lambda x: (
        torch.randint(5, (3,)), torch.randint(2, 7, (3,), dtype=torch.int32), torch.randint(high=4, size=(2,)),
        torch.randint(low=1, high=4, size=(2,)), torch.randint_like(x, 5), torch.randint_like(x, 2, 9),
        torch.randperm(5),
    ),
    "like": lambda x: (torch.rand_like(x), torch.randn_like(x, dtype=torch.float64)),
    "normal": lambda x: (
        torch.normal(x, 1.0), torch.normal(0.0, x), torch.normal(x, x), torch.normal(1.0, 2.0, (3,)),
        torch.normal(mean=x),
    ),
    "by probability": lambda x: (
        torch.bernoulli(x), torch.bernoulli(x, 0.2), x.bernoulli(), torch.multinomial(x, 2), torch.poisson(x),
    ),
    "filled": lambda x: (
        x.clone().uniform_(-1, 2), x.clone().normal_(1, 2), x.clone().exponential_(2.0), x.clone().geometric_(0.3),
        x.clone().cauchy_(), x.clone().log_normal_(), torch.empty(3).uniform_(),
    ),
    "filled with whole numbers": lambda x: (
        x.clone().random_(), x.clone().random_(5), x.clone().random_(2, 9), torch.empty(4, dtype=torch.int64).random_(),
    ),
    "filled by probability": lambda x: (
        x.clone().bernoulli_(), x.clone().bernoulli_(0.3), x.clone().bernoulli_(torch.full((3, 4), 0.5)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_values(name: str, requires_grad: bool) -> None:
    """Twice in a row, and whether they require grad."""
    call: Any = CALLS[name]
    x = torch.linspace(0.1, 0.9, 12).reshape(3, 4).requires_grad_(requires_grad)
    torch.manual_seed(4)
    expected = call(x), call(x)
    jitted = thunder.jit(call)
    torch.manual_seed(4)
    for results in zip((jitted(x), jitted(x)), expected):
        for ours, theirs in zip(*results):
            assert ours.dtype is theirs.dtype and torch.equal(ours, theirs)
            assert ours.requires_grad is theirs.requires_grad
