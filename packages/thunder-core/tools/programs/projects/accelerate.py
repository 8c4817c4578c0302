# SPDX-License-Identifier: Apache-2.0
"""Accelerate: the README's training loop with a prepared model."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("accelerate", rank=833, requires=["accelerate==1.15.*"])


def _prepared() -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    # In float64, because Adam amplifies the rounding errors of gradients that are zero (those of the biases of keys).
    model = torch.nn.Transformer(16, 2, 1, 1, 32, batch_first=True, dtype=torch.float64)
    return accelerator, *accelerator.prepare(model, torch.optim.Adam(model.parameters()))


@PROJECT.program("prepared model", "README, a PyTorch training loop")
def _model() -> Any:
    _, model, _ = _prepared()
    return model, lambda: (torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 4, 16, dtype=torch.float64))


@PROJECT.program("training step", "README, a PyTorch training loop")
def _step() -> Any:
    accelerator, model, optimizer = _prepared()

    def step(source: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(source, targets), targets)
        accelerator.backward(loss)
        optimizer.step()
        return loss.detach()

    return step, lambda: (torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 4, 16, dtype=torch.float64)), model


@PROJECT.program("bf16", "documentation, mixed precision", trains=True)
def _bf16() -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = accelerator.prepare(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)))
    return model, lambda: (torch.randn(4, 8),)
