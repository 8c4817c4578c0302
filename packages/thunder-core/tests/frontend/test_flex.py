# SPDX-License-Identifier: Apache-2.0
"""`flex_attention` in programs: traced as its mathematics, with the functions of scores and masks that it is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder

flex = pytest.importorskip("torch.nn.attention.flex_attention")


def qkv(length: int = 8, **options: Any) -> list[torch.Tensor]:
    return [torch.randn(1, 2, length, 16, dtype=torch.float64, **options) for _ in range(3)]


def test_functions_of_scores() -> None:
    slope = torch.tensor(0.5, dtype=torch.float64)

    def causal(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.where(q >= k, score - slope * (q - k), float("-inf"))

    jf = thunder.jit(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=causal))
    for _ in range(2):
        given = qkv()
        torch.testing.assert_close(jf(*given), flex.flex_attention(*given, score_mod=causal))
        slope += 1.0  # an input
    torch.testing.assert_close(jf(*given), flex.flex_attention(*given, score_mod=causal))
    assert thunder.cache_misses(jf) == 1


@pytest.mark.parametrize("inside", [False, True])
def test_masks(inside: bool) -> None:
    def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    def mask() -> Any:
        return flex.create_block_mask(causal, 1, 1, 128, 128, device="cpu")

    known = mask()

    def f(q: Any, k: Any, v: Any) -> Any:
        return flex.flex_attention(q, k, v, block_mask=mask() if inside else known)

    jf = thunder.jit(f)
    for _ in range(2):
        given = qkv(128)
        torch.testing.assert_close(jf(*given), f(*given))
    assert thunder.cache_misses(jf) == 1
