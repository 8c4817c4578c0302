# SPDX-License-Identifier: Apache-2.0
"""A small LitGPT-like Llama: the model of the benchmarks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["Llama", "batch"]

HEADS, VOCABULARY = 4, 320


def heads_of(width: int) -> int:
    """Return the number of heads: at least four, with a head size of at most 128, as attention kernels require."""
    return max(HEADS, width // 128)


class RMSNorm(nn.Module):
    """Root mean square normalization, in float32."""

    def __init__(self, size: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.float()
        x = x * torch.rsqrt(torch.mean(x * x, dim=-1, keepdim=True) + self.eps)
        return x.to(dtype=dtype) * self.weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply rotary position embeddings."""
    half = x.size(-1) // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return ((x * cos) + (rotated * sin)).to(dtype=x.dtype)


class Attention(nn.Module):
    """Causal self-attention with one projection for queries, keys and values."""

    def __init__(self, width: int):
        super().__init__()
        self.heads = heads_of(width)
        self.size = width // self.heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, t, width = x.size()
        q, k, v = self.qkv(x).split((width, width, width), dim=-1)
        q = q.view(b, t, self.heads, self.size).transpose(1, 2)
        k = k.view(b, t, self.heads, self.size).transpose(1, 2)
        v = v.view(b, t, self.heads, self.size).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, width))


class MLP(nn.Module):
    """The gated feed-forward layer."""

    def __init__(self, width: int):
        super().__init__()
        self.fc_1 = nn.Linear(width, 3 * width, bias=False)
        self.fc_2 = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(F.silu(self.fc_1(x)) * self.fc_2(x))


class Block(nn.Module):
    """One layer."""

    def __init__(self, width: int):
        super().__init__()
        self.norm_1 = RMSNorm(width)
        self.attn = Attention(width)
        self.norm_2 = RMSNorm(width)
        self.mlp = MLP(width)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm_1(x), cos, sin)
        return x + self.mlp(self.norm_2(x))


class Llama(nn.Module):
    """A language model from token ids to logits."""

    def __init__(self, layers: int = 16, width: int = 128, length: int = 64):
        super().__init__()
        self.length = length
        self.wte = nn.Embedding(VOCABULARY, width)
        self.h = nn.ModuleList(Block(width) for _ in range(layers))
        self.ln_f = RMSNorm(width)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        size = width // heads_of(width)
        theta = 1.0 / (10000 ** (torch.arange(0, size, 2).float() / size))
        angles = torch.outer(torch.arange(length).float(), theta).repeat(1, 2)
        self.register_buffer("cos", torch.cos(angles), persistent=False)
        self.register_buffer("sin", torch.sin(angles), persistent=False)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        t = idx.size(1)
        if self.length < t:
            raise ValueError(f"a sequence of {t} tokens; at most {self.length} fit")
        cos, sin = self.cos[:t], self.sin[:t]
        x = self.wte(idx)
        for block in self.h:
            x = block(x, cos, sin)
        return self.lm_head(self.ln_f(x))


def batch(length: int = 32) -> torch.Tensor:
    """Return token ids of one sequence."""
    return torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
