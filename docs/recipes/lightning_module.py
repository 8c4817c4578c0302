# SPDX-License-Identifier: Apache-2.0
"""Trains a `LightningModule` with Lightning's `Trainer`; only the line with `thunder.jit` is about thunder.

Needs `pip install lightning`. The text is a copy of some pages of the documentation. Takes less than a minute on a CPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning
import torch
from torch import nn
from torch.nn import functional as F

import thunder

TEXT = Path(__file__).resolve().parent / "text" / "pages.txt"


class NextByte(lightning.LightningModule):
    """Predicts the next byte from the eight bytes before it."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.network = nn.Sequential(
            nn.Embedding(256, 16), nn.Flatten(1), nn.Linear(8 * 16, width), nn.GELU(), nn.Linear(width, 256)
        )
        self.network = thunder.jit(self.network)  # parameters, state_dict and checkpoints stay as they are
        self.losses: list[float] = []

    def training_step(self, batch: tuple[torch.Tensor], index: int) -> torch.Tensor:
        (text,) = batch
        loss = F.cross_entropy(self.network(text[:, :8]), text[:, 8])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main(arguments: list[str] | None = None) -> list[float]:
    """Run the recipe; returns the loss of each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args(arguments)

    lightning.seed_everything(0)
    text = torch.tensor(list(TEXT.read_bytes()))
    excerpts = torch.utils.data.TensorDataset(text[: len(text) // 9 * 9].reshape(-1, 9))
    loader = torch.utils.data.DataLoader(excerpts, batch_size=64, shuffle=True)
    model = NextByte()
    trainer = lightning.Trainer(
        max_steps=options.steps, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, loader)
    print(thunder.explain(model.network))
    print(f"loss {model.losses[0]:.2f} -> {sum(model.losses[-20:]) / 20:.2f}")
    return model.losses


if __name__ == "__main__":
    main()
