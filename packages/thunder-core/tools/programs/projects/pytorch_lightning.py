# SPDX-License-Identifier: Apache-2.0
"""PyTorch Lightning: the README's autoencoder, its training step and its forward, and a Trainer's loop."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("pytorch-lightning", rank=1337, requires=["pytorch-lightning==2.6.*"])


def _autoencoder() -> Any:
    import pytorch_lightning as pl

    class LitAutoEncoder(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
            self.decoder = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 64))

        def forward(self, x: Any) -> Any:
            return self.encoder(x)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, _ = batch
            x = x.view(x.size(0), -1)
            loss = torch.nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    return LitAutoEncoder()


@PROJECT.program("forward", "README, define a LightningModule")
def _forward() -> Any:
    return _autoencoder(), lambda: (torch.randn(4, 64),)


@PROJECT.program("training_step", "README, define a LightningModule", trains=True)
def _training_step() -> Any:
    lit = _autoencoder()
    lit.log = lambda *args, **kwargs: None  # `log` needs a Trainer
    return lit.training_step, lambda: ((torch.randn(4, 8, 8), torch.zeros(4)), 0), lit


@PROJECT.program("manual optimization", "documentation, manual optimization")
def _manual() -> Any:
    lit = _autoencoder()
    optimizer = lit.configure_optimizers()

    def step(x: Any) -> Any:
        loss = torch.nn.functional.mse_loss(lit.decoder(lit(x)), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, lambda: (torch.randn(4, 64),), lit
