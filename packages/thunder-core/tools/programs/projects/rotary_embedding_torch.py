# SPDX-License-Identifier: Apache-2.0
"""rotary-embedding-torch: the README's examples."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("rotary-embedding-torch", rank=5374, requires=["rotary-embedding-torch==0.9.*"])


def _qk(length: int = 8) -> Any:
    return torch.randn(1, 2, length, 8, requires_grad=True), torch.randn(1, 2, 8, 8)


@PROJECT.program("rotate queries or keys", "README, usage")
def _usage() -> Any:
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=8)
    return (lambda q, k: (rotary.rotate_queries_or_keys(q), rotary.rotate_queries_or_keys(k))), _qk, rotary


@PROJECT.program("key value cache", "README, inference with key-value cache")
def _cache() -> Any:
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=8)
    return rotary.rotate_queries_with_cached_keys, lambda: _qk(1), rotary


@PROJECT.program("axial", "README, axial rotary embeddings")
def _axial() -> Any:
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

    emb = RotaryEmbedding(dim=4, freqs_for="pixel", max_freq=16)

    def rotate(q: Any, k: Any) -> Any:
        freqs = emb.get_axial_freqs(4, 4, 4)
        return apply_rotary_emb(freqs, q), apply_rotary_emb(freqs, k)

    return rotate, lambda: tuple(torch.randn(1, 4, 4, 4, 12) for _ in range(2)), emb


@PROJECT.program("xPos", "README, length extrapolatable rotary embeddings")
def _xpos() -> Any:
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=8, use_xpos=True)
    return rotary.rotate_queries_and_keys, _qk, rotary
