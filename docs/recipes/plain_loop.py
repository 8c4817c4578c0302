# SPDX-License-Identifier: Apache-2.0
"""Trains a small language model in a plain loop, fine-tunes it on one page, writes text, and plots the loss.

The text is a copy of some pages of the documentation. `python docs/recipes/plain_loop.py` takes a minute on a CPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import thunder

# A copy, so that the loss does not change with the documentation.
TEXT = Path(__file__).resolve().parent / "text"
CONTEXT = 64


class Block(nn.Module):
    """Causal self-attention and a feed-forward network."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    """Predicts the next byte of a text."""

    def __init__(self, width: int = 96, layers: int = 2, heads: int = 4):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def encode(name: str) -> torch.Tensor:
    """Return the bytes of a text."""
    return torch.tensor(list((TEXT / name).read_bytes()))


def batch(text: torch.Tensor, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random excerpts, and the same excerpts one byte later."""
    starts = torch.randint(len(text) - CONTEXT - 1, (size, 1))
    positions = starts + torch.arange(CONTEXT)
    return text[positions], text[positions + 1]


def train(model: nn.Module, text: torch.Tensor, steps: int, rate: float) -> list[float]:
    """Train a model on a text, and return the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

    @thunder.jit  # the only line that is about thunder
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    losses = [step(*batch(text)).item() for _ in range(steps)]
    print(thunder.cache_misses(step), "programs,", thunder.cache_hits(step), "cache hits")
    return losses


@torch.no_grad()
def write(model: nn.Module, start: str, length: int = 120) -> str:
    """Continue a text with bytes that the model draws. Sizes are inputs of its program, because the text grows."""
    jitted = thunder.jit(model, dynamic=True)
    tokens = torch.tensor([list(start.encode())])
    for _ in range(length):
        following = torch.distributions.Categorical(logits=jitted(tokens[:, -CONTEXT:])[:, -1] / 0.7).sample()
        tokens = torch.cat([tokens, following[:, None]], 1)
    return bytes(tokens[0].tolist()).decode(errors="replace")


def plot(losses: dict[str, list[float]], path: Path) -> None:
    """Draw the losses, one after the other, as an SVG file."""
    width, height, left, right, bottom = 640, 300, 50, 620, 280
    steps, top = sum(map(len, losses.values())), max(map(max, losses.values()))

    def at(step: float, loss: float) -> tuple[float, float]:
        return left + (right - left) * step / steps, 20 + (bottom - 20) * (1 - loss / top)

    parts, done = [], 0
    for loss in range(int(top) + 1):
        x, y = at(0, loss)
        parts.append(f'<path d="M {x} {y:.1f} H {right}" stroke="#dde3ea"/><text x="24" y="{y + 4:.1f}">{loss}</text>')
    for (name, values), color in zip(losses.items(), ("#2f7de1", "#d9730d")):
        points = " ".join("{:.1f},{:.1f}".format(*at(done + i, value)) for i, value in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        y = 36 + 20 * (done > 0)
        parts.append(
            f'<text x="{right}" y="{y}" text-anchor="end" style="fill: {color}">{name}: {values[-1]:.2f}</text>'
        )
        done += len(values)
    style = (
        "<style>text { font: 13px sans-serif; fill: #475569 } .page { fill: #ffffff }"
        "@media (prefers-color-scheme: dark) { text { fill: #a3afbf } .page { fill: #1a1d21 } path { opacity: 0.25 } }"
        "</style>"
    )
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f'{style}<rect class="page" width="100%" height="100%"/>{"".join(parts)}</svg>\n',
        encoding="utf-8",
    )


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="steps of training; fine-tuning takes a third of them")
    parser.add_argument("--plot", type=Path, default=Path("loss.svg"), help="where to draw the loss")
    parser.add_argument("--weights", type=Path, default=Path("model.pt"), help="where to save the trained parameters")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    model = LanguageModel()
    losses = {"train on the pages": train(model, encode("pages.txt"), options.steps, 3e-3)}
    torch.save(model.state_dict(), options.weights)

    tuned = LanguageModel()
    tuned.load_state_dict(torch.load(options.weights))
    losses["fine-tune on the glossary"] = train(tuned, encode("glossary.txt"), options.steps // 3, 1e-3)
    for name, values in losses.items():
        tail = values[-20:]
        print(f"{name}: loss {values[0]:.2f} -> {sum(tail) / len(tail):.2f}")
    print(write(tuned.eval(), "A trace is "))
    plot(losses, options.plot)
    print("wrote", options.plot)
    return losses


if __name__ == "__main__":
    torch.set_num_threads(1)  # the model is too small for more threads, and each number of threads rounds differently
    main()
