# SPDX-License-Identifier: Apache-2.0
"""A small Llama-like language model in plain PyTorch: `nox -s demo` compiles it.

It does not depend on thunder.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """The sizes of a model."""

    layers: int = 6
    width: int = 256
    heads: int = 8
    length: int = 128
    vocabulary: int = 1024


class RMSNorm(nn.Module):
    """Root mean square normalization."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embeddings to queries or keys."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(nn.Module):
    """Causal self-attention with rotary embeddings and all heads in one projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class SwiGLU(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, 3 * config.width, bias=False)
        self.up = nn.Linear(config.width, 3 * config.width, bias=False)
        self.down = nn.Linear(3 * config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and SwiGLU, each on normalized input and with a residual connection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(config.width)
        self.attention = Attention(config)
        self.norm_2 = RMSNorm(config.width)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        x = x + self.attention(self.norm_1(x), cos, sin)
        return x + self.mlp(self.norm_2(x))


class Llama(nn.Module):
    """Embedding, blocks, a final norm, and an output layer with the embedding's weight."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        size = config.width // config.heads
        frequencies = 10_000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(config.length), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.apply(self._initialize)

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the logits of each token, or the loss if `targets` are given."""
        x = self.tokens(idx)
        cos, sin = self.cos[: idx.shape[1]], self.sin[: idx.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = F.linear(self.norm(x), self.tokens.weight)
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
