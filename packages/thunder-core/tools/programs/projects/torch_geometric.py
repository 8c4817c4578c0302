# SPDX-License-Identifier: Apache-2.0
"""PyTorch Geometric: the README's models, and the layers of the cheat sheet that need no compiled extension.

The layers are the first thirty of the documentation's list of convolutional layers that take node features and edges.
"""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("torch-geometric", rank=2721, requires=["torch-geometric==2.8.*"])


def _graph(nodes: int = 8, edges: int = 20) -> Any:
    return torch.randn(nodes, 16), torch.randint(0, nodes, (2, edges))


@PROJECT.program("GCN", "README, quick tour")
def _gcn() -> Any:
    from torch_geometric.nn import GCNConv

    class GCN(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = GCNConv(16, 8)
            self.conv2 = GCNConv(8, 4)

        def forward(self, x: Any, edge_index: Any) -> Any:
            x = self.conv1(x, edge_index).relu()
            return self.conv2(x, edge_index)

    return GCN(), _graph


@PROJECT.program("EdgeConv", "README, create your own GNN layer")
def _edge() -> Any:
    from torch_geometric.nn import MessagePassing

    class EdgeConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr="max")
            self.mlp = torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.propagate(edge_index, x=x)

        def message(self, x_j: Any, x_i: Any) -> Any:
            return self.mlp(torch.cat([x_i, x_j - x_i], dim=-1))

    return EdgeConv(), _graph


@PROJECT.program("training", "introduction by example, learning methods on graphs", trains=True)
def _training() -> Any:
    from torch_geometric.nn import GCN

    model = GCN(16, 8, 2, 4, dropout=0.5)

    def step(x: Any, edge_index: Any, y: Any) -> Any:
        return torch.nn.functional.nll_loss(torch.log_softmax(model(x, edge_index), dim=1), y)

    return step, lambda: (*_graph(), torch.randint(0, 4, (8,))), model


@PROJECT.program("graph classification", "colab notebook 3, graph classification")
def _classify() -> Any:
    from torch_geometric.nn import GraphConv, global_mean_pool

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = GraphConv(16, 8), GraphConv(8, 8)
            self.lin = torch.nn.Linear(8, 2)

        def forward(self, x: Any, edge_index: Any, batch: Any) -> Any:
            x = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
            return self.lin(torch.nn.functional.dropout(global_mean_pool(x, batch), p=0.5, training=self.training))

    return Net(), lambda: (*_graph(), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2]))


def _conv(name: str, *args: Any, **options: Any) -> None:
    def build() -> Any:
        import torch_geometric.nn as nn

        made = [each() if callable(each) else each for each in args]
        return getattr(nn, name)(*made, **options), _graph

    PROJECT.add(name, f"documentation, torch_geometric.nn.{name}", build)


def _mlp(width: int = 16) -> Any:
    return lambda: torch.nn.Sequential(torch.nn.Linear(width, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))


_conv("GCNConv", 16, 8)
_conv("ChebConv", 16, 8, 3)
_conv("SAGEConv", 16, 8)
_conv("GraphConv", 16, 8)
_conv("GatedGraphConv", 16, 2)
_conv("ResGatedGraphConv", 16, 8)
_conv("GATConv", 16, 4, 2)
_conv("GATv2Conv", 16, 4, 2)
_conv("TransformerConv", 16, 4, 2)
_conv("AGNNConv")
_conv("TAGConv", 16, 8)
_conv("GINConv", _mlp())
_conv("ARMAConv", 16, 8)
_conv("SGConv", 16, 8, 2)
_conv("SSGConv", 16, 8, 0.1)
_conv("APPNP", 3, 0.1)
_conv("MFConv", 16, 8)
_conv("LEConv", 16, 8)
_conv("ClusterGCNConv", 16, 8)
_conv("GENConv", 16, 8)
_conv("SuperGATConv", 16, 4, 2)
_conv("EGConv", 16, 8)
_conv("GeneralConv", 16, 8)
_conv("FiLMConv", 16, 8)
_conv("FeaStConv", 16, 8)
_conv("LGConv")
_conv("PNAConv", 16, 8, ["mean", "max"], ["identity", "amplification"], lambda: torch.tensor([1, 3, 2, 1, 1]))
_conv("MixHopConv", 16, 8)
