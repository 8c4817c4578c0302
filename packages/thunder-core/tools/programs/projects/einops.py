# SPDX-License-Identifier: Apache-2.0
"""einops: the README's examples, and layers in torch models as its documentation shows."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("einops", rank=880, requires=["einops==0.8.*"])


@PROJECT.program("rearrange, reduce, repeat", "README, API")
def _three() -> Any:
    from einops import rearrange, reduce, repeat

    def three(x: Any) -> Any:
        return rearrange(x, "t b c -> b c t"), reduce(x, "t b c -> b c", "max"), repeat(x, "t b c -> t b c k", k=2)

    return three, lambda: (torch.randn(4, 3, 5, requires_grad=True),)


@PROJECT.program("pack and unpack", "README, API")
def _pack() -> Any:
    from einops import pack, unpack

    def packed(cls: Any, x: Any) -> Any:
        both, shapes = pack([cls, x], "b * c")
        return unpack(both.sin(), shapes, "b * c")

    return packed, lambda: (torch.randn(2, 8, requires_grad=True), torch.randn(2, 5, 8))


@PROJECT.program("einsum", "README, API")
def _einsum() -> Any:
    from einops import einsum

    return (lambda a, b: einsum(a, b, "batch t1 head c, batch t2 head c -> batch head t1 t2")), lambda: (
        torch.randn(2, 4, 2, 8, requires_grad=True),
        torch.randn(2, 5, 2, 8),
    )


@PROJECT.program("layers", "README, layers in a Sequential")
def _layers() -> Any:
    from einops.layers.torch import Rearrange
    from torch.nn import Conv2d, Linear, MaxPool2d, ReLU, Sequential

    model = Sequential(
        Conv2d(3, 6, kernel_size=5), MaxPool2d(kernel_size=2), Conv2d(6, 16, kernel_size=5), MaxPool2d(kernel_size=2),
        Rearrange("b c h w -> b (c h w)"), Linear(16 * 5 * 5, 120), ReLU(), Linear(120, 10),
    )  # fmt: skip
    return model, lambda: (torch.randn(2, 3, 32, 32),)


@PROJECT.program("EinMix", "documentation, EinMix and a tour of MLPs")
def _einmix() -> Any:
    from einops.layers.torch import EinMix

    class Mixer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = EinMix("b c (h h1) (w w1) -> b (h w) c1", "c1 c h1 w1", "c1", c=3, c1=16, h1=8, w1=8)
            self.mix = EinMix("b t c -> b t1 c", "t1 t", "t1", t=16, t1=16)

        def forward(self, x: Any) -> Any:
            x = self.patch(x)
            return x + self.mix(x.relu())

    return Mixer(), lambda: (torch.randn(2, 3, 32, 32),)


@PROJECT.program("Reduce layer", "documentation, layers")
def _reduce() -> Any:
    from einops.layers.torch import Reduce

    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), Reduce("b c (h 2) (w 2) -> b c h w", "max"),
                               Reduce("b c h w -> b c", "mean")), lambda: (torch.randn(2, 3, 10, 10),)  # fmt: skip


@PROJECT.program("attention", "documentation, writing better code with pytorch and einops")
def _attention() -> Any:
    from einops import rearrange

    class MultiHeadAttention(torch.nn.Module):
        def __init__(self, heads: int, width: int) -> None:
            super().__init__()
            self.heads = heads
            self.qs, self.ks, self.vs = (torch.nn.Linear(width, width) for _ in range(3))
            self.fc = torch.nn.Linear(width, width)

        def forward(self, q: Any, k: Any, v: Any) -> Any:
            q = rearrange(self.qs(q), "b l (head k) -> head b l k", head=self.heads)
            k = rearrange(self.ks(k), "b t (head k) -> head b t k", head=self.heads)
            v = rearrange(self.vs(v), "b t (head v) -> head b t v", head=self.heads)
            attention = torch.softmax(torch.einsum("hblk,hbtk->hblt", [q, k]) / k.shape[-1] ** 0.5, dim=3)
            output = rearrange(torch.einsum("hblt,hbtv->hblv", [attention, v]), "head b l v -> b l (head v)")
            return self.fc(output), attention

    return MultiHeadAttention(2, 16), lambda: tuple(torch.randn(2, 5, 16) for _ in range(3))
