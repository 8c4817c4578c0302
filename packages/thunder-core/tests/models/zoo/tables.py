# SPDX-License-Identifier: Apache-2.0
"""Models of tables and graphs: embedding bags, scatters, message passing, point clouds."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import Entry, Inputs

__all__ = ["MODELS"]


class DLRM(nn.Module):
    """Bags of categories beside numbers, and all their products."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(7 + i, 4, mode=mode) for i, mode in enumerate(("sum", "mean", "sum")))
        self.bottom = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(4 + 6, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())

    def forward(self, x: Tensor, categories: Tensor, offsets: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        dense = self.bottom(x)
        sparse = [bag(index, offset) for bag, index, offset in zip(self.bags, categories, offsets)]
        stacked = torch.stack([dense, *sparse], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, offset=-1)
        p = self.top(torch.cat([dense, products[:, rows, columns]], 1)).squeeze(1)
        return {"loss": F.binary_cross_entropy(p, wanted), "p": p}


def clicks(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
    """Numbers, bags and what was clicked."""
    generator = torch.Generator().manual_seed(seed)
    rows = 4 if other else 3
    starts = torch.tensor([0, 2, 3, 5])[:rows]
    return {
        "x": torch.randn(rows, 5, generator=generator, dtype=dtype),
        "categories": torch.randint(7, (3, 7), generator=generator),
        "offsets": starts.expand(3, -1).contiguous(),
        "wanted": torch.randint(2, (rows,), generator=generator).to(dtype),
    }


class GraphNet(nn.Module):
    """A graph convolution by `index_add`, attention over edges by `scatter_reduce`, and a sum for each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 8)
        self.score = nn.Linear(16, 1)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor, graphs: int) -> Tensor:
        source, target = edges
        nodes = x.shape[0]
        degree = x.new_zeros(nodes).index_add_(0, target, torch.ones_like(target, dtype=x.dtype)).clamp_(min=1)
        weight = (degree[source] * degree[target]).rsqrt()
        h = self.first(x)
        h = F.relu(self.norm(torch.zeros_like(h).index_add(0, target, h[source] * weight[:, None])))
        h = self.second(h)
        raw = F.leaky_relu(self.score(torch.cat([h[source], h[target]], -1)).squeeze(-1), 0.2)
        highest = raw.new_full((nodes,), -1e30).scatter_reduce(0, target, raw, "amax", include_self=True)
        share = (raw - highest[target]).exp()
        total = share.new_zeros(nodes).scatter_add(0, target, share)
        share = share / (total[target] + 1e-16)
        h = h + torch.zeros_like(h).scatter_add_(0, target[:, None].expand(-1, 8), share[:, None] * h[source])
        return self.out(h.new_zeros(graphs, 8).index_add_(0, graph, h))


def molecules(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
    """Two graphs, or three."""
    generator = torch.Generator().manual_seed(seed)
    nodes, graphs = (8, 3) if other else (6, 2)
    return {
        "x": torch.randn(nodes, 4, generator=generator, dtype=dtype),
        "edges": torch.randint(nodes, (2, 3 * nodes), generator=generator),
        "graph": torch.arange(nodes) % graphs,
        "graphs": graphs,
    }


class PointNet(nn.Module):
    """Neighbours by distance, edge features, and the most of each."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Conv2d(6, 8, 1), nn.BatchNorm2d(8), nn.LeakyReLU(0.2))
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch, dims, points = x.shape
        distance = -torch.cdist(x.transpose(1, 2), x.transpose(1, 2))
        index = distance.topk(k=4, dim=-1)[1]
        index = (index + torch.arange(batch, device=x.device).view(-1, 1, 1) * points).view(-1)
        near = x.transpose(2, 1).reshape(batch * points, -1)[index, :].view(batch, points, 4, dims)
        own = x.transpose(2, 1)[:, :, None, :].repeat(1, 1, 4, 1)
        feature = self.edge(torch.cat((near - own, own), dim=3).permute(0, 3, 1, 2)).max(dim=-1, keepdim=False)[0]
        pooled = torch.cat([F.adaptive_max_pool1d(feature, 1), F.adaptive_avg_pool1d(feature, 1)], 1)
        return self.out(pooled.squeeze(-1))


def clouds(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
    """Points in space."""
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(2, 3, 9 if other else 7, generator=generator, dtype=dtype)}


class TabularMixer(nn.Module):
    """Categories and numbers as tokens, mixed both ways; buckets and a learnt temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 6)
        self.rows, self.columns = nn.Linear(5, 5), nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GLU(-1))
        self.scale = nn.Parameter(torch.tensor(0.0))
        self.register_buffer("edges", torch.linspace(-1, 1, 4))

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        buckets = torch.bucketize(x, self.edges) + 7
        tokens = self.words(torch.cat([kinds, buckets], 1))
        tokens = tokens + F.mish(self.rows(tokens.mT)).mT
        return F.log_softmax(self.columns(tokens).flatten(1) / self.scale.exp(), -1)


def records(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
    """Rows of a table."""
    generator = torch.Generator().manual_seed(seed)
    rows = 4 if other else 3
    return {
        "x": torch.randn(rows, 3, generator=generator, dtype=dtype),
        "kinds": torch.randint(7, (rows, 2), generator=generator),
    }


MODELS: list[Entry] = [
    Entry("DLRM", "tables and graphs", DLRM, clicks),
    Entry("graph network", "tables and graphs", GraphNet, molecules),
    Entry("point cloud network", "tables and graphs", PointNet, clouds),
    Entry("tabular mixer", "tables and graphs", TabularMixer, records),
]
