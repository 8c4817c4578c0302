# SPDX-License-Identifier: Apache-2.0
"""Sentence Transformers: modules and losses of the documentation."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("sentence-transformers", rank=810, requires=["sentence-transformers==6.2.*", "transformers==5.23.*"])


def _pooling(mode: str) -> None:
    def build() -> Any:
        from sentence_transformers.models import Pooling

        pooling = Pooling(8, pooling_mode=mode)

        def inputs() -> Any:
            mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
            return ({"token_embeddings": torch.randn(2, 5, 8, requires_grad=True), "attention_mask": mask},)

        return pooling, inputs

    PROJECT.add(f"Pooling, {mode}", "documentation, models.Pooling", build)


for _mode in ("mean", "max", "cls"):
    _pooling(_mode)


@PROJECT.program("Dense and Normalize", "documentation, creating custom models")
def _dense() -> Any:
    from sentence_transformers.models import Dense, Normalize

    model = torch.nn.Sequential(Dense(8, 4), Normalize())
    return model, lambda: ({"sentence_embedding": torch.randn(3, 8)},)


@PROJECT.program("util.cos_sim", "documentation, semantic textual similarity")
def _cos_sim() -> Any:
    from sentence_transformers import util

    return util.cos_sim, lambda: (torch.randn(3, 8, requires_grad=True), torch.randn(4, 8))


@PROJECT.program("util.semantic_search", "documentation, semantic search")
def _search() -> Any:
    from sentence_transformers import util

    return (lambda q, c: util.semantic_search(q, c, top_k=2)), lambda: (torch.randn(3, 8), torch.randn(6, 8))
