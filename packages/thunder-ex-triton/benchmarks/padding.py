# SPDX-License-Identifier: Apache-2.0
"""Benchmark of padded matrix multiplications on a GPU: the head of a language model with 50257 tokens.

    python benchmarks/padding.py [--markdown FILE] [--repetitions 5]

The first table times a head and its cross-entropy, forward and backward: eager, torch.compile, thunder, and thunder
without padding. The second table times the three matrix multiplications of the head alone: as torch runs them, with
operands padded by zeros (what thunder runs), and with padded strides but the sizes of the program. Times are GPU times
by events: the median of interleaved repetitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F

import thunder
from thunder.toolkit.benchmarking import in_turns, parser, report, step, table
from thunder_ex_triton.matmul import rule

TOKENS, HIDDEN, CLASSES = 4096, 768, 50257


def loss(x: Any, w: Any, t: Any) -> Any:
    """Return the loss only, so that thunder fuses the linear layer with it."""
    return F.cross_entropy(F.linear(x, w), t)


def loss_and_logits(x: Any, w: Any, t: Any) -> Any:
    """Return the logits too."""
    logits = F.linear(x, w)
    return F.cross_entropy(logits, t), logits


def softcapped(x: Any, w: Any, t: Any) -> Any:
    """Return the loss of logits that have another use."""
    return F.cross_entropy(30 * torch.tanh(F.linear(x, w) / 30), t)


@contextmanager
def unpadded() -> Iterator[None]:
    """Programs that are compiled in the context pad nothing."""
    devices, rule.DEVICES = rule.DEVICES, ()
    try:
        yield
    finally:
        rule.DEVICES = devices


def head_row(f: Callable[..., Any], repetitions: int) -> list[str]:
    """Measure a head, forward and backward."""
    x = torch.randn(TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = (torch.randn(CLASSES, HIDDEN, device="cuda", dtype=torch.bfloat16) / HIDDEN**0.5).requires_grad_()
    t = torch.randint(0, CLASSES, (TOKENS,), device="cuda")

    def first(g: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: out[0] if isinstance(out := g(*args), tuple) else out

    def without_padding(run: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> None:
            with unpadded():  # the operator of linear cross-entropy decides when it runs
                run()

        return call

    torch._dynamo.reset()
    functions = {"eager": f, "torch.compile": torch.compile(f, dynamic=False), "thunder": thunder.jit(f)}
    contenders = {name: step(first(g), (x, w, t), (x, w)) for name, g in functions.items()}
    contenders["thunder, unpadded"] = without_padding(step(first(thunder.jit(f)), (x, w, t), (x, w)))
    return [f.__name__, *_cells(contenders, repetitions)]


def _cells(contenders: dict[str, Callable[[], Any]], repetitions: int) -> list[str]:
    times = in_turns(contenders, repetitions)
    return [f"{times[name]:.2f}" if name in times else "—" for name in contenders]


def product_rows(repetitions: int) -> list[list[str]]:
    """Measure the three matrix multiplications of the head alone."""
    wide = rule.aligned(CLASSES)
    x = torch.randn(TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16)
    w = torch.zeros(wide, HIDDEN, device="cuda", dtype=torch.bfloat16)
    g = torch.zeros(TOKENS, wide, device="cuda", dtype=torch.bfloat16)
    w[:CLASSES].normal_()
    g[:, :CLASSES].normal_()
    even_w, even_g = w[:CLASSES].clone(), g[:, :CLASSES].contiguous()
    logits = torch.empty_like(g)
    products: dict[str, dict[str, Callable[[], Any]]] = {
        "logits": {
            "torch": lambda: x @ even_w.t(),
            "padded": lambda: x @ w.t(),
            "strides": lambda: torch.mm(x, even_w.t(), out=logits[:, :CLASSES]),
        },
        "gradient of the input": {
            "torch": lambda: even_g @ even_w,
            "padded": lambda: g @ w,
            "strides": lambda: g[:, :CLASSES] @ even_w,
        },
        "gradient of the weight": {
            "torch": lambda: even_g.t() @ x,
            "padded": lambda: g.t() @ x,
            "strides": lambda: g[:, :CLASSES].t() @ x,
        },
    }
    return [[name, *_cells(contenders, repetitions)] for name, contenders in products.items()]


def main() -> None:
    options = parser(__doc__).parse_args()
    sizes = f"{TOKENS}x{HIDDEN}→{CLASSES} bfloat16, ms"
    heads = [head_row(f, options.repetitions) for f in (loss, loss_and_logits, softcapped)]
    first = table([sizes, "eager", "torch.compile", "thunder", "thunder, unpadded"], heads)
    second = table([sizes, "torch", "padded", "padded strides only"], product_rows(options.repetitions))
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    report(f"{first}\n\n{second}\n\n{machine}", options)


if __name__ == "__main__":
    main()
