# SPDX-License-Identifier: Apache-2.0
"""The benefit of CUDA graphs where launches dominate: a small Llama, forward and a training step, on a GPU.

    python packages/thunder-core/benchmarks/cuda_graphs.py [--markdown FILE] [--json FILE]

Every candidate computes the same; the model is so small that its kernels take less time than their launches. thunder
runs with its installed executors, and with the torch executor alone, each with and without `CUDAGraphTransform`;
torch.compile with Inductor, and with CUDA graphs (`mode="reduce-overhead"`).

The exit status says whether the target is met: with graphs at most 1.03 times torch.compile's time with its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import measuring
import torch
from llama import VOCABULARY, Llama
from measuring import Report, Row, alternate, best, milliseconds, ratio
from torch.nn import functional as F

BAR, CALLS = 1.03, 50
OURS, PEER = "thunder, graphs", "torch.compile, graphs"
NAMES = [OURS, "thunder", "torch executor, graphs", "torch executor", PEER, "torch.compile", "eager"]


def wrapped(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the model or its loss as a candidate does."""
    if name == "eager":
        return fn
    if name.startswith("torch.compile"):
        return torch.compile(fn, mode="reduce-overhead" if name == PEER else None)
    import thunder
    from thunder.transforms import CUDAGraphTransform

    transforms = [CUDAGraphTransform()] if name.endswith("graphs") else []
    return thunder.jit(fn, executors=["torch"] if "executor" in name else None, transforms=transforms)


class Candidate:
    """A model with its forward and training step."""

    def __init__(self, name: str, given: Any):
        torch.manual_seed(0)
        with torch.device("cuda"):
            self.model = Llama(given.layers, given.width, given.length).to(dtype=torch.bfloat16)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, foreach=True)
        self.batch = torch.randint(0, VOCABULARY, (1, given.length + 1), device="cuda")
        self.own_graphs = name == PEER
        self.run, self.loss = wrapped(name, self.model), wrapped(name, self.loss_of)

    def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return F.cross_entropy(self.model(batch[:, :-1]).reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1))

    def forward(self) -> None:
        """Run the model without gradients."""
        if self.own_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            self.run(self.batch[:, :-1])

    def step(self) -> None:
        """Run forward, backward and the optimizer."""
        if self.own_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        self.loss(self.batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def warm(run: Callable[[], None]) -> Callable[[], None]:
    """Call until compiled and captured."""
    for _ in range(5):
        run()
    return run


def seconds(run: Callable[[], None]) -> float:
    """Return the seconds of one call, averaged over many."""
    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / CALLS


def main() -> None:
    """Measure the requested rows."""
    parser = measuring.parser((__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--length", type=int, default=64)
    given = parser.parse_args()
    candidates = {name: Candidate(name, given) for name in NAMES}
    report = Report("CUDA graphs", __file__, NAMES)
    what = f"{given.layers}-layer Llama, {given.length} tokens, width {given.width}, bfloat16"
    for row, method in (("forward", "forward"), ("training step", "step")):
        if given.rows in row:
            runs = {name: warm(getattr(c, method)) for name, c in candidates.items()}
            times = alternate({name: (lambda run=run: seconds(run)) for name, run in runs.items()}, given.repetitions)
            cells = {name: milliseconds(best(found)) for name, found in times.items()}
            report.add(Row(f"{row}: {what}", cells, (ratio(PEER, BAR, times[OURS], times[PEER]),), dict(times)))
    report.finish(given)


if __name__ == "__main__":
    main()
