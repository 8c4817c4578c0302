# SPDX-License-Identifier: Apache-2.0
"""Curated Transformers: encoders and decoders of the documentation, built from configurations."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("curated-transformers", rank=5570, requires=["curated-transformers==2.0.*"])


def _encoder(name: str) -> None:
    def build() -> Any:
        import curated_transformers.models as models
        from curated_transformers.layers import AttentionMask

        config = getattr(models, f"{name}Config")(
            hidden_width=16, n_hidden_layers=2, n_attention_heads=2, intermediate_width=32, n_pieces=64,
            embedding_width=16,
        )  # fmt: skip
        model = getattr(models, f"{name}Encoder")(config)

        def inputs() -> Any:
            return torch.randint(3, 64, (2, 7)), AttentionMask(torch.ones(2, 7).bool())

        return model, inputs

    PROJECT.add(f"{name}Encoder", f"documentation, {name}Encoder", build)


_encoder("BERT")
_encoder("RoBERTa")
_encoder("ALBERT")
