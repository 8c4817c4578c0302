# SPDX-License-Identifier: Apache-2.0
"""Processor time to compile a training step for Triton, by the number of layers: tracing, passes and the kernels' code.

    TRITON_INTERPRET=1 python benchmarks/compiling.py [--markdown FILE] [--repetitions 3]

The step of a transformer (forward, loss, backward and AdamW) is compiled once for each number of layers, and not run:
no kernel is compiled, and no GPU is needed. The last column is the time of a layer, which should not grow.
"""

from __future__ import annotations

import os
import platform
import time
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.examine.program import compile_call
from thunder.toolkit.benchmarking import parser, report, table

LAYERS = (6, 12, 24, 48, 96)
WIDTH, HEADS, LENGTH, VOCABULARY = 32, 4, 8, 61


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(heads)
        return x + self.down(F.gelu(self.up(self.second_norm(x))))


class Model(nn.Module):
    """A transformer and its loss."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(*[Layer() for _ in range(layers)])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.layers(self.embedding(ids))).flatten(0, 1), ids.flatten())


def seconds(layers: int) -> tuple[int, float]:
    """Return the number of parameters, and the processor time to compile a step whose optimizer has a state."""
    model = Model(layers)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    ids = torch.randint(0, VOCABULARY, (2, LENGTH))

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(ids)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step()
    start = time.process_time()
    compile_call(thunder.jit(step), (), {})
    return len([*model.parameters()]), time.process_time() - start


def main() -> None:
    """Print the table."""
    options = parser(__doc__).parse_args()
    seconds(1)  # imports
    rows = []
    for layers in LAYERS:
        found = [seconds(layers) for _ in range(options.repetitions)]
        best = min(t for _, t in found)
        rows.append([str(layers), str(found[0][0]), f"{best:.2f}", f"{best / layers * 1e3:.0f}"])
    text = table(["layers", "parameters", "seconds", "milliseconds for a layer"], rows)
    report(f"{text}\n\n{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}", options)


if __name__ == "__main__":
    main()
