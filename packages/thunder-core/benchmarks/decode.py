# SPDX-License-Identifier: Apache-2.0
"""Decode one token at a time with a static cache of keys and values: 16 layers of a 1B Llama in bfloat16, on a GPU.

    python packages/thunder-core/benchmarks/decode.py [--markdown FILE] [--json FILE]

Each call takes a token and its position, writes to the cache in place, and returns the next token. A second row is of
128 tokens, and two more of a token with weights in int8 and float8 with a scale for each row (the head, too): by
`QuantizationTransform` for thunder, and by a module that dequantizes them for the others. The exit status says whether
the targets are met: at most as slow as torch.compile's `mode="reduce-overhead"`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import measuring
import torch
from llama import RMSNorm, rotate
from measuring import Report, Row, alternate, best, milliseconds, ratio
from torch import nn
from torch.nn import functional as F

OURS, PEER = "thunder", "torch.compile, reduce-overhead"
NAMES = [OURS, 'thunder, cuda_graphs="never"', PEER, "torch.compile", "eager"]
HEADS, KV_HEADS, SIZE, TOKENS, GENERATED = 32, 8, 64, 64, 128


class QuantizedLinear(nn.Module):
    """A linear layer whose weight is stored in int8 or float8."""

    def __init__(self, linear: nn.Linear, kind: str):
        super().__init__()
        from thunder.transforms.quantization import quantize_float8, quantize_int8

        numbers, scale = (quantize_int8 if kind == "int8" else quantize_float8)(linear.weight)
        self.register_buffer("numbers", numbers)
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.numbers.to(x.dtype) * self.scale)


def quantized(module: nn.Module, kind: str) -> nn.Module:
    """Replace the linear layers of a module."""
    for name, child in module.named_children():
        new = QuantizedLinear(child, kind) if isinstance(child, nn.Linear) else quantized(child, kind)
        setattr(module, name, new)
    return module


class Layer(nn.Module):
    """A layer with grouped queries, and its cache."""

    def __init__(self, width: int, hidden: int, length: int):
        super().__init__()
        self.norm_1, self.norm_2 = RMSNorm(width), RMSNorm(width)
        self.qkv = nn.Linear(width, (HEADS + 2 * KV_HEADS) * SIZE, bias=False)
        self.out = nn.Linear(HEADS * SIZE, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.register_buffer("keys", torch.zeros(1, KV_HEADS, length, SIZE), persistent=False)
        self.register_buffer("values", torch.zeros(1, KV_HEADS, length, SIZE), persistent=False)

    def forward(self, x: torch.Tensor, at: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor):
        qkv = self.qkv(self.norm_1(x)).view(1, 1, -1, SIZE).transpose(1, 2)
        q, k, v = qkv.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        self.keys.index_copy_(2, at, rotate(k, cos, sin))
        self.values.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), self.keys, self.values, mask, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(1, 1, -1))
        normed = self.norm_2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Decoder(nn.Module):
    """The model."""

    def __init__(self, layers: int, width: int, hidden: int, vocabulary: int, length: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, hidden, length) for _ in range(layers))
        self.norm, self.head = RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        angles = torch.outer(torch.arange(length).float(), 500000.0 ** (-torch.arange(0, SIZE, 2).float() / SIZE))
        self.register_buffer("cos", angles.repeat(1, 2).cos(), persistent=False)
        self.register_buffer("sin", angles.repeat(1, 2).sin(), persistent=False)
        self.register_buffer("positions", torch.arange(length), persistent=False)

    @torch.no_grad()
    def forward(self, token: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return the most likely next token."""
        x = self.embedding(token)
        cos, sin, mask = self.cos[at], self.sin[at], (self.positions <= at)[None, None, None]
        for layer in self.layers:
            x = layer(x, at, cos, sin, mask)
        return self.head(self.norm(x)).argmax(-1)


class Candidate:
    """A model that generates tokens."""

    def __init__(self, name: str, given: Any, kind: str | None = None):
        torch.manual_seed(0)
        sizes = (2, 64, 128, 97) if given.tiny else (16, 2048, 8192, 128256)
        with torch.device(given.device):
            self.model = Decoder(*sizes, given.length).to(torch.bfloat16)
            if kind and not name.startswith("thunder"):
                quantized(self.model, kind)
        self.run: Callable[..., torch.Tensor] = self.model
        self.mark = name == PEER
        if name.startswith("torch.compile"):
            self.run = torch.compile(self.model, mode="reduce-overhead" if self.mark else None)
        elif name.startswith("thunder"):
            import thunder

            transforms = [thunder.transforms.QuantizationTransform(kind)] if kind else []
            graphs: Any = "auto" if name == OURS else "never"
            self.run = thunder.jit(self.model, cuda_graphs=graphs, transforms=transforms)
        self.positions = [torch.tensor([i], device=given.device) for i in range(GENERATED)]

    def tokens(self, count: int = TOKENS) -> list[int]:
        """Return tokens that the model generates."""
        token = torch.zeros(1, 1, dtype=torch.int64, device=self.positions[0].device)
        found = []
        for at in self.positions[:count]:
            if self.mark:
                torch.compiler.cudagraph_mark_step_begin()
            token = self.run(token, at).clone()  # torch.compile's next call overwrites its result
            found.append(token)
        return torch.cat(found).flatten().tolist()

    def seconds(self) -> float:
        """Return the seconds of a token."""
        start = time.perf_counter()
        self.tokens()
        return (time.perf_counter() - start) / TOKENS

    def generation(self) -> float:
        """Return the seconds of many tokens."""
        start = time.perf_counter()
        self.tokens(GENERATED)
        return time.perf_counter() - start


def main() -> None:
    """Measure all candidates, after comparing their tokens."""
    parser = measuring.parser((__doc__ or "").partition("\n")[0])
    parser.add_argument("--length", type=int, default=1024, help="the length of the cache")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--tiny", action="store_true", help="a model of a tiny size")
    given = parser.parse_args()
    report = Report("Decode", __file__, NAMES)

    def row(what: str, runs: dict[str, Callable[[], float]]) -> None:
        times = alternate(runs, given.repetitions)
        cells = {name: milliseconds(best(found)) for name, found in times.items()}
        report.add(Row(what, cells, (ratio(PEER, 1.0, times[OURS], times[PEER]),), dict(times)))

    for kind in (None, "int8", "float8"):
        candidates = {name: Candidate(name, given, kind) for name in NAMES}
        expected = candidates["eager"].tokens()
        equal = {name: sum(a == b for a, b in zip(c.tokens(), expected)) for name, c in candidates.items()}
        print(f"of {TOKENS} tokens, equal to eager mode's: {equal}")
        weights = f", weights in {kind}" if kind else ""
        row(f"a token, cache of {given.length}{weights}", {name: c.seconds for name, c in candidates.items()})
        if not kind:
            row(f"{GENERATED} tokens", {name: c.generation for name, c in candidates.items()})
        del candidates
        torch.compiler.reset()
    report.finish(given)


if __name__ == "__main__":
    main()
