# SPDX-License-Identifier: Apache-2.0
"""In-place draws into memory that is not contiguous: each element gets the number that it gets in eager mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder

DRAWS = {
    "normal": lambda x: x.normal_(1, 2),
    "uniform": lambda x: x.uniform_(),
    "bernoulli": lambda x: x.bernoulli_(0.4),
    "exponential": lambda x: x.exponential_(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=list(DRAWS))
def test_draws_in_the_order_of_memory(draw: Any) -> None:
    """Of an input, and of what the program makes: transposed, with gaps, contiguous."""

    def inside(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        draw(y.mT)
        return draw(y[:, ::2]) + 1

    for program, make in (
        (draw, lambda: torch.zeros(6, 8).mT),
        (draw, lambda: torch.zeros(6, 16)[:, ::2]),
        (draw, lambda: torch.zeros(6, 8)),
        (inside, lambda: torch.zeros(6, 8)),
    ):
        jitted = thunder.jit(program)
        for _ in range(2):
            results = []
            for run in (program, jitted):
                torch.manual_seed(3)
                x = make()
                results.append((run(x), x))
            assert all(map(torch.equal, *results))
        assert thunder.cache_hits(jitted) == 1
