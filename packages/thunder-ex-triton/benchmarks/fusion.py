# SPDX-License-Identifier: Apache-2.0
"""Benchmark of fusions on a GPU: thunder with this wheel, eager, torch.compile and, if installed, Liger.

    python benchmarks/fusion.py [--markdown FILE] [--only ROW] [--models]

GPU time is the sum of the kernel times, by torch's profiler, so that it does not include launch overhead; TB/s is the
minimal memory traffic of the operation over that time. Model rows are whole training steps, timed by events, with
interleaved contenders, and with the number of kernels and the peak memory.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.toolkit.benchmarking import by_events, by_kernels, parser, report


class Row(NamedTuple):
    """One operation: its function, the shapes of its tensors (those that require gradients first), tensors moved."""

    name: str
    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    forward: int  # the tensors of the first shape that forward has to read or write
    backward: int


def rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """Apply rotary embedding to queries and keys."""

    def turned(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), -1)

    return q * cos + turned(q) * sin, k * cos + turned(k) * sin


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Apply a hundred pointwise operations."""
    for i in range(33):
        x = (x * 1.01 + y).clamp(-4, 4) if i % 2 else torch.sigmoid(x) - y * 0.5
    return x


def residual_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    """Apply a residual connection and the norm after it."""
    h = x + r
    return F.rms_norm(h, w.shape, w), h


def residual_dropout_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    """Apply dropout, a residual connection and the norm after it."""
    h = r + F.dropout(x, 0.1)
    return F.rms_norm(h, w.shape, w), h


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Normalize over the last dimension."""
    return F.layer_norm(x, w.shape, w, b)


ROWS = (
    Row("RMSNorm 16384x4096", lambda x, w: F.rms_norm(x, w.shape, w), ((16384, 4096), (4096,)), 2, 3),
    Row("RMSNorm 8192x8192", lambda x, w: F.rms_norm(x, w.shape, w), ((8192, 8192), (8192,)), 2, 3),
    Row("LayerNorm 16384x4096", layer_norm, ((16384, 4096), (4096,), (4096,)), 2, 3),
    Row("LayerNorm 8192x8192", layer_norm, ((8192, 8192), (8192,), (8192,)), 2, 3),
    Row("softmax 8192x32768", lambda x: F.softmax(x, -1), ((8192, 32768),), 2, 3),
    Row("SwiGLU 8192x14336", lambda a, b: F.silu(a) * b, ((8192, 14336), (8192, 14336)), 3, 5),
    Row("residual + RMSNorm 16384x4096", residual_norm, ((16384, 4096), (16384, 4096), (4096,)), 4, 4),
    Row(
        "residual + dropout + RMSNorm 16384x4096", residual_dropout_norm, ((16384, 4096), (16384, 4096), (4096,)), 4, 5
    ),
    Row("rotary q, k 2x32x4096x128", rope, ((2, 32, 4096, 128), (2, 32, 4096, 128)), 4, 4),
    Row("GELU(x + b) 8192x14336", lambda x, b: F.gelu(x + b, approximate="tanh"), ((8192, 14336), (14336,)), 2, 3),
    Row("100 pointwise operations 8192x8192", chain, ((8192, 8192), (8192, 8192)), 3, 4),
)  # fmt: skip


def liger() -> dict[str, Callable[..., Any]]:
    """Return Liger's functions for the rows, by the prefix of their names."""
    try:
        from liger_kernel.transformers import functional as lf
    except ImportError:
        return {}
    return {
        "RMSNorm": lambda x, w: lf.liger_rms_norm(x, w, 1e-6, in_place=False),
        "LayerNorm": lambda x, w, b: lf.liger_layer_norm(x, w, b, 1e-5),
        "softmax": lf.liger_softmax,
        "SwiGLU": lf.liger_swiglu,
        "residual + RMSNorm": lambda x, r, w: lf.liger_fused_add_rms_norm(x, r, w, 1e-6, in_place=False),
        "rotary": lambda q, k, cos, sin: lf.liger_rope(q, k, cos[None], sin[None]),
    }


def measured(fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...], leaves: tuple[torch.Tensor, ...]) -> Any:
    """Return the milliseconds and the number of kernels, forward and backward."""
    outputs = fn(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    gradients = [torch.randn_like(o) for o in outputs]

    def both() -> None:
        out = fn(*inputs)
        torch.autograd.grad(out if isinstance(out, tuple) else (out,), leaves, gradients)

    forward, first = by_kernels(lambda: fn(*inputs))
    whole, kernels = by_kernels(both)
    return forward, first, whole - forward, kernels - first


def row_text(row: Row, repetitions: int) -> list[str]:
    """Return one line of the table."""
    inputs = tuple(torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in row.shapes)
    leaves = tuple(x.requires_grad_() for x in inputs)
    if row.name.startswith("rotary"):
        inputs += tuple(torch.randn(4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    size = inputs[0].numel() * 2
    torch._dynamo.reset()
    contenders: dict[str, Any] = {
        "thunder": thunder.jit(row.fn),
        "torch.compile": torch.compile(row.fn, dynamic=False),
        "eager": row.fn,
    }
    peer = liger()
    if peer:
        contenders["Liger"] = next((fn for name, fn in peer.items() if row.name.startswith(name)), None)
    cells = [row.name]
    for name, fn in contenders.items():
        if fn is None:
            cells += ["—", "—"]
            continue
        try:
            found = [measured(fn, inputs, leaves) for _ in range(repetitions)]
        except Exception as error:
            print(f"{row.name}: {name} cannot run: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            cells += ["-", "-"]
            continue
        f, n, b, m = (statistics.median(x) for x in zip(*found))
        cells += [
            f"{f:.3f} ms, {row.forward * size / f / 1e9:.2f} TB/s, {n:.0f}",
            f"{b:.3f} ms, {row.backward * size / b / 1e9:.2f} TB/s, {m:.0f}",
        ]
    return cells


# -- models ------------------------------------------------------------------------------------------------------------
class Attention(nn.Module):
    """Grouped-query attention with rotary embedding."""

    def __init__(self, width: int, heads: int, groups: int):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * groups) * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Compute attention of a batch."""
        b, t, _ = x.shape
        q, k, v = self.qkv(x).split([n * self.size for n in (self.heads, self.groups, self.groups)], -1)
        q, k, v = (y.view(b, t, -1, self.size).transpose(1, 2) for y in (q, k, v))
        q, k = rope(q, k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.groups)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    """A layer of Llama."""

    def __init__(self, width: int, heads: int, groups: int, inner: int):
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, groups)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Return one layer."""
        x = x + self.attention(self.first(x), cos, sin)
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """A small Llama with its loss."""

    def __init__(self, layers: int, width: int, heads: int, groups: int, inner: int, classes: int, length: int):
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(Block(width, heads, groups, inner) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, classes, bias=False)
        angles = torch.outer(torch.arange(length), 1e4 ** -torch.linspace(0, 1, width // heads // 2)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class GPTBlock(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one layer."""
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.first(x)).split(c, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class GPT(nn.Module):
    """A nanoGPT with its loss."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, classes: int = 50304, length: int = 256):
        super().__init__()
        self.tokens, self.places = nn.Embedding(classes, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class Contender:
    """A model, and the compiler that runs it."""

    def __init__(self, name: str, make: Callable[[], nn.Module], tokens: torch.Tensor):
        torch.manual_seed(0)
        torch._dynamo.reset()
        before = torch.cuda.memory_allocated()
        self.model = make().cuda().bfloat16()
        self.tokens = tokens
        self.run: Callable[..., Any] = self.model
        if name != "eager":
            self.run = thunder.jit(self.model) if name == "thunder" else torch.compile(self.model, dynamic=False)
        begin = time.perf_counter()
        self.loss = self.step().item()
        self.first = time.perf_counter() - begin
        for _ in range(3):
            self.step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.step()
        torch.cuda.synchronize()
        self.memory = (torch.cuda.max_memory_allocated() - before) / 2**30
        self.model.zero_grad(set_to_none=True)
        self.times: list[float] = []

    def step(self) -> Any:
        """Run a training step without its optimizer."""
        self.model.zero_grad(set_to_none=True)
        loss = self.run(self.tokens, self.tokens)
        loss.backward()
        return loss

    def timed(self, steps: int) -> None:
        """Measure a step and record its milliseconds."""
        self.step()
        self.times.append(by_events(self.step, steps))
        self.model.zero_grad(set_to_none=True)

    def cells(self) -> list[str]:
        """Return time, kernels and memory of a step; the loss and the first step's time."""
        gpu, kernels = by_kernels(self.step, 3)
        self.model.zero_grad(set_to_none=True)
        return [
            f"{statistics.median(self.times):.2f} ms ({gpu:.2f} in {kernels:.0f} kernels), {self.memory:.2f} GiB",
            f"{self.first:.1f} s, loss {self.loss:.4f}",
        ]


def llama_floor(layers: int, width: int, heads: int, groups: int, inner: int, classes: int, b: int, t: int) -> Any:
    """Return a function that runs only the matmuls and the attention (by cuDNN) of a step."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def new(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    size = width // heads
    sides = {(width, (heads + 2 * groups) * size): 1, (width, width): 1, (width, inner): 2, (inner, width): 1}
    products = [(new(b * t, i), new(b * t, o), new(o, i)) for (i, o), n in sides.items() for _ in range(n)]
    head = new(b * t, width), new(b * t, classes), new(classes, width)
    q, k, v = (new(b, t, n, size).transpose(1, 2).requires_grad_() for n in (heads, groups, groups))
    g = new(b, t, heads, size).transpose(1, 2)

    def run() -> None:
        for _ in range(layers):
            for x, y, w in products:
                torch.mm(x, w.t()), torch.mm(y, w), torch.mm(y.t(), x)
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != groups)
            torch.autograd.grad(out, (q, k, v), g)
        x, y, w = head
        torch.mm(x, w.t()), torch.mm(y, w), torch.mm(y.t(), x)

    return run


def model_rows(repetitions: int, only: str = "") -> tuple[list[list[str]], list[str]]:
    """Measure training steps, with interleaved contenders; return rows, and notes on the floor and the ratios."""
    llama = (4, 2048, 32, 8, 8192, 32000)
    makers: tuple[tuple[str, Callable[[], nn.Module], tuple[int, int], int, int], ...] = (
        ("Llama, 4 layers, 2048 wide, 2x4096", lambda: Llama(*llama, 4096), (2, 4096), 32000, 5),
        ("nanoGPT, 12 layers, 768 wide, 8x256", GPT, (8, 256), 50304, 10),
    )
    out, notes = [], []
    for name, make, shape, classes, steps in makers:
        if only not in name:
            continue
        tokens = torch.randint(0, classes, shape, device="cuda")
        found: dict[str, Contender | None] = {}
        for contender in ("thunder", "torch.compile", "eager"):
            try:
                found[contender] = Contender(contender, make, tokens)
            except Exception as error:
                print(f"{name}: {contender} cannot run: {type(error).__name__}: {str(error)[:600]}", file=sys.stderr)
                found[contender] = None
        floor = llama_floor(*llama, *shape) if name.startswith("Llama") else None
        floors: list[float] = []
        turn: list[Contender | None] = [c for c in found.values() if c is not None]
        turn += [None] if floor is not None else []
        order = random.Random(0)
        for _ in range(6 * repetitions):
            order.shuffle(turn)  # a contender that follows the heaviest one finds a hotter, slower GPU
            for c in turn:
                if c is not None:
                    c.timed(steps)
                elif floor is not None:
                    floor()
                    floors.append(by_events(floor, 1))
        del floor, turn
        ours, theirs = found["thunder"], found["torch.compile"]
        if ours is not None and theirs is not None:
            bottom = statistics.median(floors) if floors else 0.0
            own, other = ([t - bottom for t in c.times] for c in (ours, theirs))
            ratios = sorted(x / y for x, y in zip(own, other))
            a, b = statistics.median(own), statistics.median(other)
            notes.append(
                f"{name}: floor {bottom:.2f} ms; above it thunder {a:.2f}, torch.compile {b:.2f}: ratio {a / b:.2f}"
                f" (per repetition {statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f})"
            )
        out.append([name, *[cell for c in found.values() for cell in (c.cells() if c else ("-", "-"))]])
        found.clear()
        ours = theirs = c = None
        torch.cuda.empty_cache()
    return out, notes


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="", help="run only the rows whose name contains this")
    arguments.add_argument("--models", action="store_true", help="run training steps, too (filtered by --only)")
    options = arguments.parse_args()
    contenders = ("thunder", "torch.compile", "eager")
    rows = (*contenders, "Liger") if liger() else contenders
    head = ["bfloat16", *(f"{c} {way}" for c in rows for way in ("forward", "backward"))]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for row in ROWS:
        if options.only in row.name:
            lines.append(f"| {' | '.join(row_text(row, options.repetitions))} |")
            torch.cuda.empty_cache()
    if options.models:
        head = ["training step, bfloat16", *(f"{c}{what}" for c in contenders for what in ("", ", first step"))]
        lines += ["", f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
        models, notes = model_rows(options.repetitions, options.only)
        lines += [*(f"| {' | '.join(cells)} |" for cells in models), "", *notes]
    text = "\n".join([*lines, "", f"{torch.cuda.get_device_name()}, torch {torch.__version__}"])
    report(text, options)


if __name__ == "__main__":
    main()
