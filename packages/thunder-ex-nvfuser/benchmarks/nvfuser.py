# SPDX-License-Identifier: Apache-2.0
"""Benchmark of nvFuser's fusions on a GPU, beside those of thunder-ex-triton, if installed, and eager.

    python benchmarks/nvfuser.py [--markdown FILE] [--models]

GPU time is the sum of the kernel times, by torch's profiler; TB/s is the minimal memory traffic of the operation over
that time. Host time is that of a call of a small fusion by itself. The model is a training step of nanoGPT: its time by
events and its number of kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.toolkit.benchmarking import by_events, by_kernels, in_turns, on_host, parser, report


class Row(NamedTuple):
    """One operation: its function, the shapes of its tensors, and how many of the first it has to read or write."""

    name: str
    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    forward: int
    backward: int


ROWS = (
    Row("RMSNorm 16384x4096", lambda x, w: F.rms_norm(x, w.shape, w), ((16384, 4096), (4096,)), 2, 3),
    Row("RMSNorm 8192x8192", lambda x, w: F.rms_norm(x, w.shape, w), ((8192, 8192), (8192,)), 2, 3),
    Row(
        "LayerNorm 16384x4096", lambda x, w, b: F.layer_norm(x, w.shape, w, b), ((16384, 4096), (4096,), (4096,)), 2, 3
    ),
    Row("softmax 8192x32768", lambda x: F.softmax(x, -1), ((8192, 32768),), 2, 3),
    Row("SwiGLU 8192x14336", lambda a, b: F.silu(a) * b, ((8192, 14336), (8192, 14336)), 3, 5),
    Row("GELU(x + b) 8192x14336", lambda x, b: F.gelu(x + b, approximate="tanh"), ((8192, 14336), (14336,)), 2, 3),
)


def contenders(fn: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Return the function as run by each contender."""
    out = {"nvfuser": thunder.jit(fn, executors=["nvfuser"]), "eager": fn}
    try:
        out["triton"] = thunder.jit(fn, executors=["triton"])
    except Exception as error:  # the wheel is not there
        print("without triton:", error)
    return out


def cell(row: Row, fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> str:
    """Measure forward and backward."""
    g = torch.randn_like(fn(*inputs))
    forward, first = by_kernels(lambda: fn(*inputs))
    whole, all_kernels = by_kernels(lambda: torch.autograd.grad(fn(*inputs), inputs, g))
    size = inputs[0].numel() * 2e-9
    texts = []
    for time_taken, tensors, n in (
        (forward, row.forward, first),
        (whole - forward, row.backward, all_kernels - first),
    ):
        texts.append(f"{time_taken:.3f} ms, {tensors * size / time_taken:.2f} TB/s, {n:.0f}")
    return " / ".join(texts)


def host_cost() -> str:
    """Measure the microseconds of a call of a small fusion: by itself, through thunder.jit, and in eager mode."""
    x, y = (torch.randn(64, 64, device="cuda") for _ in range(2))
    f = thunder.jit(lambda x, y: (x + y) * x, executors=["nvfuser"])
    f(x, y)
    fusion = thunder.examine.fusions(f)[0].fn
    found = {}
    for name, fn in (
        ("fusion", lambda: fusion(x, y)),
        ("thunder.jit", lambda: f(x, y)),
        ("eager", lambda: (x + y) * x),
    ):
        found[name] = min(on_host(fn, 200) for _ in range(5))
    return ", ".join(f"{name} {microseconds:.1f} µs" for name, microseconds in found.items())


class Block(nn.Module):
    """A layer of nanoGPT."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply attention and the feed-forward layer."""
        b, t, c = x.shape
        parts = self.qkv(self.norms[0](x)).split(c, 2)
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class GPT(nn.Module):
    """nanoGPT: 12 layers, 768 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50304, 768), nn.Embedding(256, 768)
        self.blocks = nn.ModuleList(Block(768, 12) for _ in range(12))
        self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 50304, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def model_rows() -> list[str]:
    """Measure a training step of each contender, interleaved."""
    tokens, labels = torch.randint(0, 50304, (2, 8, 256), device="cuda")
    steps: dict[str, Callable[[], Any]] = {}
    texts = {}
    for name in contenders(torch.sin):
        torch.manual_seed(0)
        model = GPT().cuda().to(torch.bfloat16)
        run = model if name == "eager" else thunder.jit(model, executors=[name])

        def step(run: Any = run, model: nn.Module = model) -> Any:
            model.zero_grad(set_to_none=True)
            loss = run(tokens, labels)
            loss.backward()
            return loss

        start = time.perf_counter()
        loss = step().item()
        texts[name] = f"first step {time.perf_counter() - start:.1f} s, loss {loss:.4f}"
        steps[name] = step
    # many short repetitions and the minimum: other work on the host slows some of them
    best = in_turns(steps, 30, partial(by_events, calls=3), min)
    rows = []
    for name, step in steps.items():
        busy, count = by_kernels(step)
        rows.append(
            f"| nanoGPT step | {name} | {best[name]:.2f} ms ({busy:.2f} in {count:.0f} kernels) | {texts[name]} |"
        )
    return rows


def main() -> None:
    """Run the benchmark and print its results."""
    arguments = parser(__doc__, repetitions=None)
    arguments.add_argument("--models", action="store_true")
    options = arguments.parse_args()
    lines: list[str] = []
    for row in ROWS:
        inputs = tuple(torch.randn(s, device="cuda", dtype=torch.bfloat16, requires_grad=True) for s in row.shapes)
        cells = {name: cell(row, fn, inputs) for name, fn in contenders(row.fn).items()}
        if not lines:
            lines = [f"| bfloat16, forward / backward | {' | '.join(cells)} |", f"|---|{'---|' * len(cells)}"]
        lines.append(f"| {row.name} | {' | '.join(cells.values())} |")
        print(lines[-1], flush=True)
        del inputs
    lines += ["", f"Host: {host_cost()}.", ""]
    if options.models:
        lines += ["| model | contender | step | |", "|---|---|---|---|", *model_rows()]
    text = "\n".join(lines)
    report(text, options)


if __name__ == "__main__":
    main()
