# SPDX-License-Identifier: Apache-2.0
"""The predictions of `thunder.examine.memory` against a GPU's allocator: training steps and inference.

    python packages/thunder-core/benchmarks/memory.py [--rows TEXT] [--markdown FILE] [--json FILE]

A step is forward, a loss and backward; both numbers are the peak beyond the memory in use before. Programs run with the
torch executor alone, and with the installed executors. Internal allocations of libraries (workspaces of cuBLAS and
cuDNN) are not predicted; they are made in earlier calls, except what some kernels allocate in each call.

The exit status says whether all predictions are within 5 %.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import measuring
import torch
from measuring import Bar, Report, Row
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import thunder

COLUMNS = ("step, measured", "predicted", "inference, measured", "predicted for it")
OFF = 0.05


class Block(nn.Module):
    """A transformer block of width 1024."""

    def __init__(self, width: int = 1024, heads: int = 16):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer."""
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.first(x)).split(c, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Checkpointed(nn.Sequential):
    """Blocks that are recomputed in backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply all blocks."""
        for block in self:
            x = checkpoint(block, x, use_reentrant=False)
        return x


class Classifier(nn.Module):
    """Embedding, linear layer and cross-entropy."""

    def __init__(self, classes: int, width: int, bias: bool = False):
        super().__init__()
        self.embedding, self.head = nn.Embedding(classes, width), nn.Linear(width, classes, bias=bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return F.cross_entropy(self.head(self.embedding(tokens)).flatten(0, -2), tokens.flatten())


def pointwise() -> nn.Module:
    """Return linear layers with GELUs."""
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.GELU())))


def convolutions() -> nn.Module:
    """Return convolutions, batch norms and pooling."""
    layers: list[nn.Module] = []
    for given, made in ((3, 64), (64, 64), (64, 128)):
        layers += [nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128 * 64 * 64, 10))


class Program(NamedTuple):
    """A model to run, its input, and how to run it."""

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    classes: int = 0
    autocast: bool = False
    executors: tuple[str, ...] = ("torch", "")


def blocks(kind: Callable[..., nn.Module] = nn.Sequential) -> nn.Module:
    """Return three blocks."""
    return kind(*(Block() for _ in range(3)))


TOKENS = (8, 1024)
PROGRAMS = (
    Program("6 x (linear 2048, GELU), 8192 rows, float32", pointwise, (8192, 2048)),
    Program("convolutions, batch norms, pooling, 64 x 3 x 128 x 128", convolutions, (64, 3, 128, 128)),
    Program("3 transformer blocks, width 1024, 8 x 1024, bfloat16", blocks, (*TOKENS, 1024), torch.bfloat16),
    Program("the same, checkpointed", functools.partial(blocks, Checkpointed), (*TOKENS, 1024), torch.bfloat16),
    Program("the same, float32 under autocast", blocks, (*TOKENS, 1024), autocast=True),
    Program("the same, float32", blocks, (*TOKENS, 1024)),
    *[
        Program(
            f"embedding, linear {width}{' with bias' if bias else ''}, cross-entropy of {classes:,} classes, {kind}",
            functools.partial(Classifier, classes, width, bias), shape, getattr(torch, kind), classes,
        )
        for classes, width, bias, shape, kind in (
            (32000, 512, False, TOKENS, "bfloat16"), (128256, 2048, False, TOKENS, "bfloat16"),
            (50257, 768, True, TOKENS, "float16"), (32000, 512, True, (4, 1024), "float32"),
        )
    ],
)  # fmt: skip


def measured(run: Callable[[], Any]) -> float:
    """Measure the peak of a call, in bytes, after compilation and with newly allocated gradients."""
    for _ in range(3):
        run()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated() - before)


def predicted(fn: Any) -> float:
    """Return the predicted peak of the last call."""
    report = thunder.examine.memory(fn, keep_outputs=False)
    return float(report.peak - report.inputs)


def numbers(program: Program, executors: str) -> list[float]:
    """Return the four numbers of a program, in bytes."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = program.model().to(program.dtype)
        x = torch.randint(0, program.classes, program.shape) if program.classes else torch.randn(program.shape)
    x = x if program.classes else x.to(program.dtype)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        return out if not out.ndim else out.square().mean()

    named = [executors] if executors else None
    loss, forward = thunder.jit(loss_of, executors=named), thunder.jit(model, executors=named)

    def cast() -> Any:
        return torch.autocast("cuda", torch.bfloat16) if program.autocast else contextlib.nullcontext()

    def step() -> None:
        with cast():
            out = loss(x)
        out.backward()
        model.zero_grad()

    def infer() -> None:
        with torch.no_grad(), cast():
            forward(x)

    found = [measured(step), predicted(loss)]
    return [*found, measured(infer), predicted(forward)]


def main() -> None:
    """Measure the requested rows."""
    parser = measuring.parser((__doc__ or "").partition("\n")[0])
    given = parser.parse_args()
    report = Report("memory", __file__, [*COLUMNS])
    for program in PROGRAMS:
        for executors in program.executors:
            name = f"{program.name}, {'torch executor' if executors else 'defaults'}"
            if given.rows not in name:
                continue
            found = numbers(program, executors)
            cells = {what: f"{n / 2**20:.1f} MiB" for what, n in zip(COLUMNS, found)}
            bars = [
                Bar(f"{what} off", abs(p / m - 1), OFF)
                for what, m, p in (("step", *found[:2]), ("inference", *found[2:]))
            ]
            report.add(Row(name, cells, tuple(bars), dict(zip(COLUMNS, found))))
            gc.collect()
            torch.cuda.empty_cache()
    report.finish(given)


if __name__ == "__main__":
    main()
