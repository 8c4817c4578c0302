# SPDX-License-Identifier: Apache-2.0
"""vector-quantize-pytorch: quantizers of the README, in its order, with smaller codebooks."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("vector-quantize-pytorch", rank=3768, requires=["vector-quantize-pytorch==1.32.*"])


def _add(name: str, cls: str, shape: tuple[int, ...] = (1, 24, 16), **options: Any) -> None:
    def build() -> Any:
        import vector_quantize_pytorch as vq

        return getattr(vq, cls)(**options), lambda: (torch.randn(shape),)

    PROJECT.add(name, f"README, {name}", build)


_add("VectorQuantize", "VectorQuantize", dim=16, codebook_size=32, decay=0.8, commitment_weight=1.0)
_add("ResidualVQ", "ResidualVQ", dim=16, num_quantizers=3, codebook_size=32)
_add("ResidualVQ, stochastic", "ResidualVQ", dim=16, num_quantizers=3, codebook_size=32,
     stochastic_sample_codes=True, sample_codebook_temp=0.1, shared_codebook=True)  # fmt: skip
_add("kmeans init", "ResidualVQ", dim=16, num_quantizers=2, codebook_size=8, kmeans_init=True, kmeans_iters=3)
_add("lower codebook dimension", "VectorQuantize", dim=16, codebook_size=32, codebook_dim=4)
_add("cosine similarity", "VectorQuantize", dim=16, codebook_size=32, use_cosine_sim=True)
_add("expiring stale codes", "VectorQuantize", dim=16, codebook_size=32, threshold_ema_dead_code=2)
_add("orthogonal regularization", "VectorQuantize", (1, 16, 4, 4), dim=16, codebook_size=32,
     accept_image_fmap=True, orthogonal_reg_weight=10, orthogonal_reg_max_codes=16)  # fmt: skip
_add("multi-headed", "VectorQuantize", dim=16, codebook_dim=8, heads=2, separate_codebook_per_head=True,
     codebook_size=16, accept_image_fmap=False)  # fmt: skip
_add("random projection", "RandomProjectionQuantizer", dim=16, num_codebooks=4, codebook_dim=8, codebook_size=32)
_add("FSQ", "FSQ", (1, 24, 4), levels=[8, 5, 5, 5])
_add("LFQ", "LFQ", (1, 16, 4, 4), codebook_size=64, dim=16, entropy_loss_weight=0.1, diversity_gamma=1.0)
_add("SimVQ", "SimVQ", dim=16, codebook_size=32, rotation_trick=True)
