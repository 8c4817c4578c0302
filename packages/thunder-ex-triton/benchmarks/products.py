# SPDX-License-Identifier: Apache-2.0
"""Whether it pays to join products that share an input, and to add bias, activation and residual in the product.

    python benchmarks/products.py [--markdown FILE] [--repetitions 5] [--quick]

The first table compares linear layers of the same input, one by one, with one layer whose weight is joined in each step
and with one whose weight is kept joined; forward, the gradient of the input, and those of the weights. The shapes are
those of the models of `suite.py`. The second table compares a layer followed by thunder's fused kernel with cuBLASLt's
epilogues. All run as CUDA graphs; GPU times by events, the median of interleaved repetitions, in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

import thunder
from thunder.toolkit.benchmarking import in_turns, parser, replayed, report, table

CALLS = 20  # in a graph

# Tokens, inputs, and the outputs of the layers that share them.
SHAPES: dict[str, tuple[int, int, list[int]]] = {
    "BERT, q, k, v": (4096, 768, [768] * 3),
    "ViT, q, k, v": (6304, 768, [768] * 3),
    "Whisper, q, k, v": (12000, 512, [512] * 3),
    "Llama, q, k, v": (2048, 2048, [2048, 512, 512]),
    "Llama, gate and up": (2048, 2048, [8192] * 2),
    "Qwen3, q, k, v": (4096, 1024, [2048, 1024, 1024]),
    "Qwen3, gate and up": (4096, 1024, [3072] * 2),
    "T5, q, k, v": (4096, 512, [512] * 3),
}
QUICK = ("BERT, q, k, v", "Llama, q, k, v", "Llama, gate and up")
EPILOGUES = ((4096, 768), (2048, 2048), (8192, 4096))  # tokens and widths


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / shape[-1] ** 0.5


def microseconds(contenders: dict[str, Callable[[], Any]], repetitions: int) -> list[str]:
    """Measure the contenders as CUDA graphs."""
    for f in contenders.values():
        f()
    found = in_turns({name: replayed(f, CALLS) for name, f in contenders.items()}, repetitions)
    return [f"{1e3 * found[name] / CALLS:.1f}" if name in found else "-" for name in contenders]


def joined_row(name: str, repetitions: int) -> list[str]:
    """Measure layers that share an input."""
    tokens, size, outputs = SHAPES[name]
    x, ws, gs = drawn(tokens, size), [drawn(n, size) for n in outputs], [drawn(tokens, n) for n in outputs]
    summed = thunder.jit(lambda gs, ws: sum(g @ w for g, w in zip(gs, ws)), cuda_graphs="never")
    kept, joined = torch.cat(ws), torch.cat(gs, 1)  # kernels before could write gradients side by side
    contenders: dict[str, Callable[[], Any]] = {
        "forward": lambda: [F.linear(x, w) for w in ws],
        "forward, joined": lambda: F.linear(x, torch.cat(ws)),
        "forward, kept": lambda: F.linear(x, kept),
        "input": lambda: summed(gs, ws),
        "input, added": lambda: added(gs, ws),
        "input, joined": lambda: joined @ torch.cat(ws),
        "input, kept": lambda: joined @ kept,
        "weights": lambda: [g.t() @ x for g in gs],
        "weights, joined": lambda: joined.t() @ x,
    }
    return [name, *microseconds(contenders, repetitions)]


def added(gs: list[torch.Tensor], ws: list[torch.Tensor]) -> torch.Tensor:
    """Add each product to the sum of those before."""
    total = gs[0] @ ws[0]
    for g, w in zip(gs[1:], ws[1:]):
        total = torch.addmm(total, g, w)
    return total


def epilogue_rows(repetitions: int, sizes: Sequence[tuple[int, int]]) -> list[list[str]]:
    """Measure a layer with its bias, activation or residual in the product, and in the kernel behind it."""
    rows = []
    for tokens, size in sizes:
        x, w, b, r, n = drawn(tokens, size), drawn(4 * size, size), drawn(4 * size), drawn(tokens, size), drawn(size)
        down, hidden = drawn(size, 4 * size), drawn(tokens, 4 * size)
        options: Any = {"cuda_graphs": "never"}
        gelu = thunder.jit(lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), **options)
        behind = thunder.jit(lambda r, h, w, n: (s := r + F.linear(h, w), F.rms_norm(s, (size,), n)), **options)
        inside = thunder.jit(lambda r, h, w, n: (s := torch.addmm(r, h, w.t()), F.rms_norm(s, (size,), n)), **options)
        contenders: dict[str, Callable[[], Any]] = {
            "bias, GELU behind": lambda gelu=gelu, x=x, w=w, b=b: gelu(x, w, b),
            "bias, GELU inside": lambda x=x, w=w, b=b: torch._addmm_activation(b, x, w.t(), use_gelu=True),
            "residual, norm behind": lambda f=behind, r=r, h=hidden, w=down, n=n: f(r, h, w, n),
            "residual inside": lambda f=inside, r=r, h=hidden, w=down, n=n: f(r, h, w, n),
        }
        rows.append([f"{tokens} x {size}", *microseconds(contenders, repetitions)])
    return rows


def main() -> None:
    """Print the tables, in microseconds."""
    arguments = parser(__doc__)
    arguments.add_argument("--quick", action="store_true", help="only three groups of layers, and two widths")
    options = arguments.parse_args()
    names, sizes = (QUICK, EPILOGUES[:2]) if options.quick else (tuple(SHAPES), EPILOGUES)
    torch.manual_seed(0)
    head = [
        "layers of one input, µs",
        "forward",
        "joined",
        "kept",
        "input",
        "added",
        "joined",
        "kept",
        "weights",
        "joined",
    ]
    first = table(head, [joined_row(name, options.repetitions) for name in names])
    head = ["tokens x width, µs", "bias, GELU behind", "inside", "residual and norm behind", "residual inside"]
    report(f"{first}\n\n{table(head, epilogue_rows(options.repetitions, sizes))}", options)


if __name__ == "__main__":
    main()
