# SPDX-License-Identifier: Apache-2.0
"""A training step of a 4-layer Llama: its time and its peak memory, against eager and torch.compile.

    python packages/thunder-core/benchmarks/training.py [--markdown FILE] [--json FILE]
    python packages/thunder-core/benchmarks/training.py --device cuda --width 4096 --length 4096 --dtype bfloat16

A step is forward, loss, backward and the optimizer. thunder runs with the torch executor alone, so that only the
differentiation is compared: which values are saved, which are recomputed, and when they are freed. `aot_eager` is
torch.compile without a compiler backend, but with its own min-cut partitioner. Peak memory is what is allocated
beyond the memory in use before the step. On a GPU there are also columns for the defaults of both, with Inductor and
with thunder's installed executors, and a row for the number of kernels that a step launches. The last row is the peak
that `thunder.examine.memory` predicts for forward and backward.

The exit status says whether all targets are met: eager's time (with a tolerance of three percent), 1.05 times
aot_eager's memory, and predictions with an error of at most 5 %.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import measuring
import torch
from llama import VOCABULARY, Llama
from measuring import Bar, Report, Row, alternate, best, milliseconds, per_call, ratio
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

LAYERS, TIME, MEMORY = 4, 1.03, 1.05
EAGER, PEER, OURS = "eager", "aot_eager", "thunder"
INDUCTOR, DEFAULTS = "torch.compile", "thunder, its defaults"


def wrapped(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the loss function as a candidate runs it."""
    if name == EAGER:
        return fn
    if name in (OURS, DEFAULTS):
        import thunder

        return thunder.jit(fn, executors=["torch"] if name == OURS else None)
    torch._dynamo.reset()
    return torch.compile(fn, backend="aot_eager" if name == PEER else "inductor")


class Step:
    """A candidate's model, and its training step."""

    def __init__(self, name: str, given: Any):
        torch.manual_seed(0)
        kind = getattr(torch, given.dtype)
        self.cuda = given.device == "cuda"
        with torch.device(given.device):
            self.model = Llama(LAYERS, given.width, given.length).to(dtype=kind)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        shape = (given.sequences, given.length + 1)
        self.batch = torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(0)).to(given.device)
        self.loss = wrapped(name, self.loss_of)
        self()
        self()

    def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        logits = self.model(batch[:, :-1])
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1))

    def __call__(self) -> None:
        self.loss(self.batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds(self) -> float:
        """Measure one step."""
        if not self.cuda:
            return per_call(self, 0.5)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            self()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / 10

    def peak(self) -> float:
        """Return the peak of bytes that a step allocates, beyond the memory in use before."""
        gc.collect()
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self()
            return float(torch.cuda.max_memory_allocated() - before)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            self()
        events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
        now = most = 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            now += event.nbytes()
            most = max(most, now)
        return float(most)

    def kernels(self) -> int:
        """Return the number of kernels that a step launches."""
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            self()
            torch.cuda.synchronize()
        return sum(e.count for e in found.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA)

    def predicted(self) -> float:
        """Return the predicted peak of forward and backward, beyond the inputs."""
        import thunder

        report = thunder.examine.memory(self.loss)
        return float(report.peak - report.inputs)


def mebibytes(n: float) -> str:
    """Format a number of bytes."""
    return f"{n / 2**20:.1f} MiB"


def main() -> None:
    """Measure the requested rows."""
    parser = measuring.parser((__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--defaults", action="store_true", help="compare the defaults alone (for long sequences)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = [OURS, EAGER, PEER, *([INDUCTOR, DEFAULTS] if given.device == "cuda" else [])]
    if given.defaults:
        names = [INDUCTOR, DEFAULTS]
    steps = {name: Step(name, given) for name in names}
    report = Report("training", __file__, names)
    what = f"{LAYERS}-layer Llama, {given.sequences} x {given.length} tokens, width {given.width}, {given.dtype}"
    if given.rows in "time":
        times = alternate({name: step.seconds for name, step in steps.items()}, given.repetitions)
        cells = {name: milliseconds(best(found)) for name, found in times.items()}
        ours, peer, target = (DEFAULTS, INDUCTOR, 1.0) if given.defaults else (OURS, EAGER, TIME)
        report.add(Row(f"a step: {what}", cells, (ratio(peer, target, times[ours], times[peer]),), dict(times)))
    if given.rows in "memory":
        peaks = {name: [step.peak() for _ in range(2)] for name, step in steps.items()}
        cells = {name: mebibytes(best(found)) for name, found in peaks.items()}
        ours, peer, target = (DEFAULTS, INDUCTOR, 1.0) if given.defaults else (OURS, PEER, MEMORY)
        report.add(Row("its peak memory", cells, (ratio(peer, target, peaks[ours], peaks[peer]),), dict(peaks)))
        predictions = {name: steps[name].predicted() for name in names if name in (OURS, DEFAULTS)}
        off = [Bar(f"{n}'s peak off", abs(p / best(peaks[n]) - 1), 0.05) for n, p in predictions.items()]
        report.add(Row("as predicted", {n: mebibytes(p) for n, p in predictions.items()}, tuple(off), predictions))
    if given.device == "cuda" and given.rows in "kernels":
        report.add(Row("its kernels", {name: str(step.kernels()) for name, step in steps.items()}))
    report.finish(given)


if __name__ == "__main__":
    main()
