# SPDX-License-Identifier: Apache-2.0
"""Models of torch's own attention modules, with masks of every kind, and a mixture of experts written by hand."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import Entry, Inputs

__all__ = ["MODELS"]


class Positions(nn.Module):
    """Sines and cosines, as in the tutorial of torch."""

    def __init__(self, width: int, longest: int = 32):
        super().__init__()
        position = torch.arange(longest).unsqueeze(1)
        rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(1, longest, width)
        table[0, :, 0::2] = torch.sin(position * rates)
        table[0, :, 1::2] = torch.cos(position * rates)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[:, : x.size(1)]


class Encoder(nn.Module):
    """`nn.TransformerEncoder`, whose eval mode takes torch's fast path where it may."""

    def __init__(self, **options: Any):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
        self.positions = Positions(8)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8), enable_nested_tensor=False)

    def forward(self, x: Tensor, mask: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        return self.encoder(self.positions(x), mask=mask, src_key_padding_mask=padding)


class Translator(nn.Module):
    """`nn.Transformer`."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(13, 8)
        self.core = nn.Transformer(8, 2, 1, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
        self.out = nn.Linear(8, 13)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=self.out.weight.dtype)
        padding = source == 0
        x, y = self.words(source) * math.sqrt(8), self.words(target) * math.sqrt(8)
        masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        return self.out(self.core(x, y, tgt_mask=causal, tgt_is_causal=True, **masks))


class Heads(nn.Module):
    """`nn.MultiheadAttention` in its several forms."""

    def __init__(self, **options: Any):
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        self.kdim, self.vdim = options.get("kdim", 8), options.get("vdim", 8)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Any:
        k, v = x[..., : self.kdim], x[..., : self.vdim]
        weighted = self.attend(x, k, v, key_padding_mask=padding, average_attn_weights=False)
        plain = self.attend(x, k, v, need_weights=False)[0]
        return weighted, plain


class Experts(nn.Module):
    """Each token goes to its two best experts: dense dispatch, with the loss that balances them."""

    def __init__(self, number: int = 4):
        super().__init__()
        self.number = number
        self.route = nn.Linear(8, number, bias=False)
        self.up = nn.Parameter(torch.randn(number, 8, 16) * 0.2)
        self.down = nn.Parameter(torch.randn(number, 16, 8) * 0.2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        flat = x.reshape(-1, x.shape[-1])
        weights = self.route(flat).softmax(-1)
        best, index = weights.topk(2, dim=-1)
        best = best / best.sum(-1, keepdim=True)
        chosen = torch.zeros_like(weights).scatter(-1, index, best)
        hidden = F.silu(torch.einsum("td,edh->eth", flat, self.up))
        each = torch.einsum("eth,ehd->etd", hidden, self.down)
        out = torch.einsum("etd,te->td", each, chosen).view_as(x)
        load = F.one_hot(index, self.number).to(x.dtype).mean((0, 1))
        return {"out": out, "balance": self.number * (load * weights.mean(0)).sum()}


class Dispatched(nn.Module):
    """Tokens are sorted by expert into slots of a fixed capacity; those that find none pass by."""

    def __init__(self, number: int = 3, capacity: int = 4):
        super().__init__()
        self.number, self.capacity = number, capacity
        self.route = nn.Linear(8, number)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(number))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weight, index = self.route(flat).softmax(-1).max(-1)
        mask = F.one_hot(index, self.number)
        place = (mask.cumsum(0) - 1).gather(1, index[:, None])[:, 0]
        fits = place < self.capacity
        slot = torch.where(fits, index * self.capacity + place, self.number * self.capacity)
        slots = flat.new_zeros(self.number * self.capacity + 1, flat.shape[-1]).index_copy(0, slot, flat)
        parts = slots[:-1].chunk(self.number)
        done = torch.cat([*(expert(part) for expert, part in zip(self.experts, parts)), slots[-1:]])
        return (done[slot] * weight[:, None] * fits[:, None] + flat).view_as(x)


def vectors(masks: tuple[str, ...] = ()) -> Any:
    """Sequences of vectors, and masks."""

    def inputs(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        batch, length = (3, 7) if other else (2, 6)
        given: Inputs = {"x": torch.randn(batch, length, 8, generator=generator, dtype=dtype)}
        if "padding" in masks:
            given["padding"] = torch.arange(length)[None] >= torch.tensor([length - 2, length, length])[:batch, None]
        if "mask" in masks:
            given["mask"] = torch.ones(length, length, dtype=torch.bool).triu(1)
        return given

    return inputs


def sentences(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
    """Two texts of words."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(1, 13, (2, 6 if other else 5), generator=generator)
    source[1, 3:] = 0
    return {"source": source, "target": torch.randint(0, 13, (2, 4), generator=generator)}


BOTH = ("padding", "mask")

MODELS: list[Entry] = [
    Entry("TransformerEncoder", "attention", lambda: Encoder(activation="gelu"), vectors()),
    Entry("TransformerEncoder, masked", "attention", Encoder, vectors(BOTH)),
    Entry("TransformerEncoder, norm first", "attention", lambda: Encoder(norm_first=True), vectors(("mask",))),
    Entry("Transformer", "attention", Translator, sentences),
    Entry("MultiheadAttention", "attention", Heads, vectors(("padding",))),
    Entry("MultiheadAttention, other keys", "attention", lambda: Heads(kdim=6, vdim=4), vectors()),
    Entry(
        "MultiheadAttention, biased", "attention",
        lambda: Heads(add_bias_kv=True, add_zero_attn=True, dropout=0.2), vectors(("padding",)),
    ),
    Entry("mixture of experts, dense", "attention", Experts, vectors()),
    Entry("mixture of experts, slots", "attention", Dispatched, vectors()),
]  # fmt: skip
