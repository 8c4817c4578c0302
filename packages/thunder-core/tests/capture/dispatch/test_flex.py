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


@pytest.fixture(autouse=True, scope="module")
def _imported() -> None:
    """Run each function once in eager mode: a program that imports modules for the first time is not cached."""
    mask = flex.create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")
    flex.flex_attention(*qkv(128), score_mod=lambda score, b, h, q, k: score * 2, block_mask=mask)


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


# -- functions that take elements out of tensors around them ----------------------------------------------------------
def dense(q: Any, k: Any, v: Any, score_mod: Any = None, block_mask: Any = None) -> Any:
    """Flex attention of functions that take whole indices: torch's own has no gradients on the CPU."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    b, h, m, n = (torch.arange(size) for size in scores.shape)
    at = b[:, None, None, None], h[:, None, None], m[:, None], n
    if score_mod is not None:
        scores = score_mod(scores, *at)
    if block_mask is not None:
        scores = torch.where(block_mask.mask_mod(*at), scores, float("-inf"))
    weights = torch.where((scores == float("-inf")).all(-1, keepdim=True), 0.0, scores.softmax(-1))
    return torch.nan_to_num(weights) @ v


SLOPES = torch.rand(2, dtype=torch.float64)
DOCUMENTS = torch.tensor([[0] * 50 + [1] * 78])
NEAR = torch.randn(256, 2, dtype=torch.float64)


def alibi(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return score + SLOPES[h] * (n - m)


def near(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return score + NEAR[m - n + 128, h]


def causal(b: Any, h: Any, m: Any, n: Any) -> Any:
    return m >= n


def document(b: Any, h: Any, m: Any, n: Any) -> Any:
    return DOCUMENTS[b, m] == DOCUMENTS[b, n]


def nothing_first(b: Any, h: Any, m: Any, n: Any) -> Any:
    return (m > 3) & (DOCUMENTS[b, m] >= 0) & causal(b, h, m, n)


def block(mask: Any) -> Any:
    return flex.create_block_mask(mask, 1, None, 128, 128, device="cpu")


KNOWN = block(flex.and_masks(causal, document))

CALLS: dict[str, Any] = {
    "slopes": lambda attend, q, k, v: attend(q, k, v, score_mod=alibi),
    "a table": lambda attend, q, k, v: attend(q, k, v, score_mod=near),
    "documents": lambda attend, q, k, v: attend(q, k, v, block_mask=KNOWN),
    "both": lambda attend, q, k, v: attend(q, k, v, score_mod=alibi, block_mask=KNOWN),
    "a mask that is made inside": lambda attend, q, k, v: attend(q, k, v, block_mask=block(document)),
    "rows that see nothing": lambda attend, q, k, v: attend(q, k, v, block_mask=block(nothing_first)),
    "one after the other": lambda attend, q, k, v: attend(
        attend(q, k, v, score_mod=near), k, v, score_mod=alibi, block_mask=KNOWN
    ),
    "of what is computed": lambda attend, q, k, v: attend(
        q, k, v, score_mod=lambda s, b, h, m, n: s * torch.where(v[b, h, m, 0] > v[b, h, n, 0], 1.0, 0.5)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_that_index_tensors(name: str) -> None:
    """What they take out are inputs of the program, which gives the mathematics' gradients."""
    jf = thunder.jit(lambda q, k, v: CALLS[name](flex.flex_attention, q, k, v))
    for _ in range(3):
        given = qkv(128, requires_grad=True)
        out, wanted = jf(*given), CALLS[name](dense, *given)
        torch.testing.assert_close(out, wanted)
        torch.testing.assert_close(*[torch.autograd.grad(x.sin().sum(), given) for x in (out, wanted)])
        SLOPES.mul_(1.5)
        NEAR.add_(0.1)
        DOCUMENTS.copy_(torch.randint(3, (1, 128)).sort(-1).values)
    assert thunder.cache_misses(jf) == 1


def test_a_table_that_is_learnt() -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(2, 16, dtype=torch.float64))

        def score(self, score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
            return score + self.table[h, (m - n).abs().clamp(max=15)]

        def forward(self, q: Any, k: Any, v: Any, attend: Any) -> Any:
            return attend(q, k, v, score_mod=self.score)

    net = Attention()
    jnet = thunder.jit(net)
    for _ in range(2):
        given = qkv(requires_grad=True)
        out, wanted = jnet(*given, flex.flex_attention), net(*given, dense)
        torch.testing.assert_close(out, wanted)
        wrt = [net.table, *given]
        torch.testing.assert_close(*[torch.autograd.grad(x.sin().sum(), wrt) for x in (out, wanted)])
        with torch.no_grad():
            net.table.mul_(2)
    assert thunder.cache_misses(jnet) == 1
