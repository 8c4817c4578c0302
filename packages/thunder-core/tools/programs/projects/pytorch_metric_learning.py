# SPDX-License-Identifier: Apache-2.0
"""PyTorch Metric Learning: the README's loss and miner, and losses of the documentation's list, in its order."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("pytorch-metric-learning", rank=2494, requires=["pytorch-metric-learning==2.9.*"])


def _inputs() -> Any:
    return torch.randn(12, 8, requires_grad=True), torch.arange(12) % 3


def _loss(name: str, **options: Any) -> None:
    def build() -> Any:
        from pytorch_metric_learning import losses

        return getattr(losses, name)(**options), _inputs

    PROJECT.add(name, f"documentation, losses.{name}", build, trains=True)


@PROJECT.program("miner and loss", "README, using losses and miners in your training loop", trains=True)
def _mined() -> Any:
    from pytorch_metric_learning import losses, miners

    miner, loss = miners.MultiSimilarityMiner(), losses.TripletMarginLoss()
    return (lambda embeddings, labels: loss(embeddings, labels, miner(embeddings, labels))), _inputs


_loss("AngularLoss")
_loss("ArcFaceLoss", num_classes=3, embedding_size=8)
_loss("CircleLoss")
_loss("ContrastiveLoss")
_loss("CosFaceLoss", num_classes=3, embedding_size=8)
_loss("FastAPLoss")
_loss("LiftedStructureLoss")
_loss("MultiSimilarityLoss")
_loss("NTXentLoss")
_loss("ProxyAnchorLoss", num_classes=3, embedding_size=8)
_loss("SupConLoss")
_loss("TripletMarginLoss")
