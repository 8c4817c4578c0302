# SPDX-License-Identifier: Apache-2.0
"""LitGPT's model with small configurations of several architectures."""

from __future__ import annotations

from typing import Any

import torch
from litgpt.config import Config
from litgpt.model import GPT

from zoo.entry import Entry, Inputs

__all__ = ["MODELS"]

VOCABULARY = 64
SIZES = {
    "block_size": 32,
    "n_layer": 2,
    "n_embd": 32,
    "n_head": 4,
    "vocab_size": VOCABULARY,
    "padded_vocab_size": VOCABULARY,
    "intermediate_size": 48,
}


def tokens(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
    """Token numbers."""
    generator = torch.Generator().manual_seed(seed)
    return {"idx": torch.randint(VOCABULARY, (3, 9) if other else (2, 7), generator=generator)}


def named(name: str, **sizes: Any) -> Entry:
    """The model of that name, made small."""
    build = lambda: GPT(Config.from_name(name, **{**SIZES, **sizes}))  # noqa: E731
    return Entry(f"LitGPT {name}", "LitGPT", build, tokens, generate=("static",))


GROUPED = {"n_query_groups": 2, "head_size": 8}

MODELS: list[Entry] = [
    named("pythia-14m"),
    named("Llama-2-7b-hf", n_query_groups=4),
    named("Llama-3.2-1B", **GROUPED),
    named("Mistral-7B-v0.1", **GROUPED),
    named("Qwen3-0.6B", **GROUPED),
    named("Gemma-2-2b", **GROUPED),
    named("phi-2"),
    named("OLMo-2-1124-7B", n_query_groups=4),
]
