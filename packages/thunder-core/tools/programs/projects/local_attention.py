# SPDX-License-Identifier: Apache-2.0
"""local-attention: the README's examples."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("local-attention", rank=7501, requires=["local-attention==1.11.*"])


@PROJECT.program("LocalAttention", "README, usage")
def _attention() -> Any:
    from local_attention import LocalAttention

    attn = LocalAttention(dim=8, window_size=8, causal=True, look_backward=1, look_forward=0, dropout=0.1)

    def inputs() -> Any:
        return {**{name: torch.randn(2, 4, 32, 8) for name in "qkv"}, "mask": torch.ones(2, 32).bool()}

    return attn, inputs


@PROJECT.program("shared queries and keys", "README, shared query / key space")
def _shared() -> Any:
    from local_attention import LocalAttention

    attn = LocalAttention(dim=8, window_size=8, shared_qk=True, causal=True)
    return attn, lambda: tuple(torch.randn(2, 4, 32, 8) for _ in range(3))


@PROJECT.program("autopad", "README, padding")
def _autopad() -> Any:
    from local_attention import LocalAttention

    attn = LocalAttention(dim=8, window_size=8, causal=True, autopad=True)
    return attn, lambda: tuple(torch.randn(2, 4, 29, 8) for _ in range(3))


@PROJECT.program("LocalTransformer", "README, local attention transformer", trains=True)
def _transformer() -> Any:
    from local_attention import LocalTransformer

    model = LocalTransformer(num_tokens=32, dim=16, depth=2, max_seq_len=64, causal=True, local_attn_window_size=8)
    return (lambda x: model(x, return_loss=True)), lambda: (torch.randint(0, 32, (1, 40)),), model
