# SPDX-License-Identifier: Apache-2.0
"""In-place draws of random numbers into tensors that do not lie in order give the numbers of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thunder

TARGETS: list[Callable[[], torch.Tensor]] = [
    lambda: torch.zeros(3, 4).t(),
    lambda: torch.zeros(8, 9).t(),
    lambda: torch.zeros(40, 40)[::2, ::3],
    lambda: torch.zeros(2, 3, 8, 8).to(memory_format=torch.channels_last),
    lambda: torch.zeros(6, 7, 8).permute(2, 0, 1),
    lambda: torch.zeros(5, 5).t()[1:4],
    lambda: torch.zeros(6, 7),
]
DRAWS: list[Callable[[Any], Any]] = [
    lambda x: x.uniform_(),
    lambda x: x.normal_(2.0, 3.0),
    lambda x: x.exponential_(),
    lambda x: x.bernoulli_(0.3),
    lambda x: x.bernoulli_(torch.full(x.shape, 0.4)),
    lambda x: x.random_(3, 90),
    lambda x: x.geometric_(0.3),
    lambda x: x.cauchy_(),
    lambda x: x.log_normal_(),
    lambda x: nn.init.trunc_normal_(x),
    lambda x: nn.init.kaiming_normal_(x),
    lambda x: (x + 1).uniform_(),
    lambda x: torch.empty_like(x).normal_(),
    lambda x: x[1:].normal_(),
    lambda x: torch.rand_like(x),
    lambda x: torch.bernoulli(x + 0.5),
    lambda x: nn.functional.dropout(x + 1, 0.5),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_draws_into_strided_tensors(draw: Callable[[Any], Any]) -> None:
    """For each layout, twice: the second call is cached."""

    def fn(x: Any) -> Any:
        y = draw(x)
        return y * 1, x * 1

    for target in TARGETS:
        jitted = thunder.jit(fn)
        results = []
        for f in (fn, jitted):
            torch.manual_seed(5)
            calls = []
            for _ in range(2):
                x = target()
                calls.append((*f(x), x))
            results.append(calls)
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
        assert thunder.cache_hits(jitted) == 1


def test_draws_into_an_out_argument() -> None:
    """A target that is not contiguous is left to eager mode."""

    def fn(x: Any) -> Any:
        return torch.rand(x.shape, out=x) * 1

    found = []
    for f in (fn, thunder.jit(fn)):
        torch.manual_seed(5)
        found.append(torch.zeros(8, 9).t())
        f(found[-1])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
