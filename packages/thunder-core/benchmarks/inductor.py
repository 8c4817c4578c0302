# SPDX-License-Identifier: Apache-2.0
"""The torch_compile executor against `torch.compile`, and against eager: steps of training and calls without gradients.

    python packages/thunder-core/benchmarks/inductor.py [--markdown FILE] [--json FILE]

Both sides run programs compiled by Inductor; they differ in capture, differentiation and partitioning. The exit
status says whether all targets are met.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import measuring
import torch
from llama import VOCABULARY, Llama
from measuring import Report, Row, alternate, best, milliseconds, per_call, ratio
from torch.nn import functional as F

LAYERS, WIDTH, LENGTH, SEQUENCES = 4, 256, 128, 4
PEER = "torch.compile"
WITHIN = 1.03  # tolerance of three percent
Wrap = Callable[[Any], Callable[..., Any]]


def jit(fn: Any) -> Any:
    """Compile with thunder."""
    import thunder

    return thunder.jit(fn, executors=["torch_compile"])


def compiled(fn: Any) -> Any:
    """Compile with torch.compile."""
    torch._dynamo.reset()
    return torch.compile(fn)


CANDIDATES: dict[str, Wrap] = {"eager": lambda fn: fn, "thunder": jit, PEER: compiled}


def tokens() -> torch.Tensor:
    """Return token ids of several sequences."""
    return torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH + 1), generator=torch.Generator().manual_seed(0))


def training_step(wrap: Wrap) -> Callable[[], float]:
    """Measure a step, in seconds: forward, loss, backward, optimizer."""
    torch.manual_seed(0)
    model = Llama(LAYERS, WIDTH, LENGTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = tokens()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        logits = model(batch[:, :-1])
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1))

    fast = wrap(loss_of)

    def step() -> None:
        fast(batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return lambda: per_call(step, 0.5)


def inference(wrap: Wrap) -> Callable[[], float]:
    """Measure a call without gradients, in seconds."""
    torch.manual_seed(0)
    fast, batch = wrap(Llama(LAYERS, WIDTH, LENGTH)), tokens()[:, :-1]

    @torch.no_grad()
    def call() -> None:
        fast(batch)

    call()
    return lambda: per_call(call, 0.3)


def chain(wrap: Wrap) -> Callable[[], float]:
    """Measure a chain of pointwise operations on a matrix and its gradient, in seconds."""
    torch.manual_seed(0)
    x = torch.randn(1024, 1024, requires_grad=True)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(x * 2 + 1, approximate="tanh")
        return (y * torch.sigmoid(y) + x.tanh()).sum(-1).square().mean()

    fast = wrap(loss_of)

    def step() -> None:
        x.grad = None
        fast(x).backward()

    step()
    return lambda: per_call(step, 0.3)


ROWS = {
    "training step of a 4-layer Llama": training_step,
    "forward of a 4-layer Llama without gradients": inference,
    "a chain of pointwise operations, forward and backward": chain,
}


def main() -> None:
    """Measure the requested rows."""
    options = measuring.parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    report = Report("inductor", __file__, ["thunder", PEER, "eager"])
    for name, measure in ROWS.items():
        if options.rows in name:
            times = alternate({who: measure(wrap) for who, wrap in CANDIDATES.items()}, options.repetitions)
            bars = (ratio(PEER, WITHIN, times["thunder"], times[PEER]),)
            cells = {who: milliseconds(best(found)) for who, found in times.items()}
            report.add(Row(name, cells, bars, dict(times)))
    report.finish(options)


if __name__ == "__main__":
    main()
