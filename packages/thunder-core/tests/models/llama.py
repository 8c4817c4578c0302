# SPDX-License-Identifier: Apache-2.0
"""A small Llama: RMSNorm, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class LlamaConfig:
    """Its sizes."""

    vocab_size: int = 61
    n_layer: int = 2
    n_head: int = 4
    n_kv_head: int = 2
    n_embd: int = 32
    intermediate: int = 88
    block_size: int = 32
    rope_base: float = 10000.0
    norm_eps: float = 1e-5
    tied: bool = False
    own_norm: bool = True


class RMSNorm(nn.Module):
    """Written out, as Llama's authors do."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Divides by the root of the mean square."""
        kind = x.dtype
        x = x.to(torch.promote_types(kind, torch.float32))
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(kind)


def rope_tables(config: LlamaConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each position's angles."""
    size = config.n_embd // config.n_head
    theta = 1.0 / config.rope_base ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.outer(torch.arange(config.block_size, dtype=torch.float64), theta).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair of (first half, second half) by its angle."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos) + (torch.cat((-second, first), dim=-1) * sin)


class Attention(nn.Module):
    """Several query heads share a key and value head."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.config = config
        size = config.n_embd // config.n_head
        self.q_proj = nn.Linear(config.n_embd, config.n_head * size, bias=False)
        self.k_proj = nn.Linear(config.n_embd, config.n_kv_head * size, bias=False)
        self.v_proj = nn.Linear(config.n_embd, config.n_kv_head * size, bias=False)
        self.o_proj = nn.Linear(config.n_head * size, config.n_embd, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """Causal, or as the mask says."""
        B, T, _ = x.shape
        heads, groups = self.config.n_head, self.config.n_head // self.config.n_kv_head
        q, k, v = (
            p(x).unflatten(-1, (-1, x.shape[-1] // heads)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (t[:, :, None].expand(-1, -1, groups, -1, -1).reshape(B, heads, T, -1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.n_embd, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.n_embd, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Each position by itself."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward, each added to what came in."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        norm = RMSNorm if config.own_norm else nn.RMSNorm
        self.attention_norm = norm(config.n_embd, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = norm(config.n_embd, eps=config.norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """One layer."""
        x = x + self.attention(self.attention_norm(x), cos, sin, mask)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """Tokens to a dictionary of logits and, with labels, a loss."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.n_embd)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.norm = RMSNorm(config.n_embd, config.norm_eps)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight
        cos, sin = rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(
        self, tokens: Tensor, *, labels: Tensor | None = None, padding: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`padding` is true where there is a token."""
        T = tokens.shape[1]
        x = self.embed(tokens)
        cos, sin = (t[:T].to(x.dtype) for t in (self.cos, self.sin))
        mask = None
        if padding is not None:
            causal = torch.ones(T, T, dtype=torch.bool, device=tokens.device).tril()
            # Each position sees itself, so that no row of the mask is empty.
            mask = (causal & padding[:, None, None, :]) | torch.eye(T, dtype=torch.bool, device=tokens.device)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        logits = self.head(self.norm(x))
        if labels is None:
            return {"logits": logits}
        shifted, wanted = logits[:, :-1].float() if logits.dtype is torch.bfloat16 else logits[:, :-1], labels[:, 1:]
        loss = F.cross_entropy(shifted.reshape(-1, shifted.shape[-1]), wanted.reshape(-1), ignore_index=-100)
        return {"loss": loss, "logits": logits}
