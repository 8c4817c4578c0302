# SPDX-License-Identifier: Apache-2.0
"""Functions of scores and masks for tests of flex attention, and attention that materializes the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Functions:
    """Functions that capture tensors, for `heads` heads and sequences of a length up to 256."""

    def __init__(self, heads: int, dtype: torch.dtype = torch.float64):
        generator = torch.Generator().manual_seed(heads)
        self.slopes = torch.rand(heads, dtype=dtype, generator=generator)
        self.table = torch.randn(512, heads, dtype=dtype, generator=generator)
        self.documents = torch.randint(3, (1, 256), generator=generator).sort(-1).values

    @property
    def learnt(self) -> dict[str, torch.Tensor]:
        """The captured tensors that have gradients."""
        return {"alibi": self.slopes, "relative": self.table}

    # -- scores -------------------------------------------------------------------------------------------------------
    def none(self) -> None:
        return None

    def alibi(self) -> Callable[..., Any]:
        return lambda score, b, h, m, n: score + self.slopes[h] * (n - m)

    def relative(self) -> Callable[..., Any]:
        return lambda score, b, h, m, n: score + self.table[m - n + 256, h]

    def softcap(self) -> Callable[..., Any]:
        return lambda score, b, h, m, n: 5.0 * torch.tanh(score / 5.0)

    def causal_score(self) -> Callable[..., Any]:
        return lambda score, b, h, m, n: torch.where(m >= n, score, float("-inf"))

    def of_positions(self) -> Callable[..., Any]:
        return lambda score, b, h, m, n: (m - n).abs() * -0.1

    # -- masks --------------------------------------------------------------------------------------------------------
    def causal(self) -> Callable[..., Any]:
        return lambda b, h, m, n: m >= n

    def window(self) -> Callable[..., Any]:
        return lambda b, h, m, n: (m - n < 5) & (m >= n)

    def document(self) -> Callable[..., Any]:
        return lambda b, h, m, n: self.documents[0, m] == self.documents[0, n]

    def by_head(self) -> Callable[..., Any]:
        return lambda b, h, m, n: (m + h) % 3 != n % 3

    def empty_rows(self) -> Callable[..., Any]:
        return lambda b, h, m, n: (m > 3) & (m >= n)


SCORES = ("none", "alibi", "relative", "softcap", "causal_score", "of_positions")
MASKS = ("none", "causal", "window", "document", "by_head", "empty_rows")


def dense(
    q: Any, k: Any, v: Any, score_mod: Any = None, mask_mod: Any = None, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention and the logsumexp of each row: torch's own has no gradient on the CPU."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    b, h, m, n = (torch.arange(size) for size in scores.shape)
    at = b[:, None, None, None], h[:, None, None], m[:, None], n
    if score_mod is not None:
        scores = score_mod(scores, *at).expand(scores.shape).to(scores.dtype)
    if mask_mod is not None:
        scores = torch.where(mask_mod(*at), scores, float("-inf"))
    empty = (scores == float("-inf")).all(-1, keepdim=True)
    weights = torch.where(empty, 0.0, torch.where(empty, 0.0, scores).softmax(-1))
    return weights @ v, torch.where(empty, float("-inf"), torch.where(empty, 0.0, scores).logsumexp(-1, True))[..., 0]
