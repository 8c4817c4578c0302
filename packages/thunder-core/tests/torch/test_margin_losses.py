# SPDX-License-Identifier: Apache-2.0
"""Losses that ask for a margin: at the margin itself, with targets as numbers and as floats, and torch's words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder

SIGNS = torch.tensor([1, -1, 1, -1])


def test_pairs(as_eager: Any, randn: Any) -> None:
    """Targets of 1 and -1 in integers and in floats."""
    x, y = randn(4), randn(4)
    for target in (SIGNS, SIGNS.double()):
        as_eager(lambda x, t: F.soft_margin_loss(x, t), x, target)
        as_eager(lambda x, t: F.hinge_embedding_loss(x, t, 0.7), x, target)
        as_eager(lambda x, y, t: F.margin_ranking_loss(x, y, t, 0.3, reduction="none"), x, y, target)
        as_eager(lambda a, b, t: F.cosine_embedding_loss(a, b, t, 0.1), randn(4, 3), randn(4, 3), target)


def test_at_the_margin(as_eager: Any) -> None:
    """Where torch's gradient jumps, ours jumps to the same side."""
    x = torch.tensor([1.0, 1.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    as_eager(lambda x: F.hinge_embedding_loss(x, SIGNS, 1.0, reduction="sum"), x)
    as_eager(lambda x: F.margin_ranking_loss(x, x.flip(0), SIGNS, reduction="sum"), x)
    rows = torch.tensor([[1.0, 0.0, 2.0], [0.5, 1.5, 0.5]], dtype=torch.float64, requires_grad=True)
    for p in (1, 2):
        as_eager(lambda x: F.multi_margin_loss(x, torch.tensor([0, 2]), p, reduction="sum"), rows)
    as_eager(lambda x: F.triplet_margin_loss(x, x + 1, x - 1, margin=1e-3, reduction="sum"), rows)


def test_triplets(as_eager: Any, randn: Any) -> None:
    """Norms of several orders, the swap, and a distance of the user's own, which torch's Python is traced for."""
    triplet = randn(5, 4), randn(5, 4), randn(5, 4)
    for how in ({}, {"p": 1.0, "margin": 3.0}, {"swap": True, "reduction": "none"}, {"eps": 0.1, "reduction": "sum"}):
        as_eager(lambda a, p, n: F.triplet_margin_loss(a, p, n, **how), *triplet)

    def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a - b).abs().amax(-1)

    as_eager(lambda a, p, n: F.triplet_margin_with_distance_loss(a, p, n, distance_function=distance), *triplet)


def test_several_classes(as_eager: Any, randn: Any) -> None:
    """Labels of several classes at once; one class a row, weighted."""
    x, weight = randn(3, 4), torch.rand(4, dtype=torch.float64)
    labels = (torch.rand(3, 4) > 0.5).double()
    as_eager(lambda x: F.multilabel_soft_margin_loss(x, labels, weight), x)
    for reduction in ("mean", "none"):
        as_eager(lambda x: F.multi_margin_loss(x, torch.tensor([0, 3, 1]), 2, 0.5, weight, reduction=reduction), x)
    as_eager(lambda x: F.multi_margin_loss(x[0], torch.tensor(2)), x)


def test_errors() -> None:
    """torch's types and texts."""
    x = torch.ones(3, 4)
    for fn, error, message in (
        (lambda: F.cosine_embedding_loss(x, x, x), RuntimeError, "multi-target not supported"),
        (lambda: F.margin_ranking_loss(x[0], x[0], x), RuntimeError, "should have same dimension"),
        (lambda: F.multi_margin_loss(x, torch.zeros(3, dtype=torch.int64), 3), ValueError, "only p == 1 and p == 2"),
        (lambda: F.triplet_margin_loss(x, x, x[0]), RuntimeError, "to have the same number of dimensions"),
    ):
        for call in (fn, thunder.jit(fn)):
            with pytest.raises(error, match=message):
                call()
