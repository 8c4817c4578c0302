# SPDX-License-Identifier: Apache-2.0
"""Training steps with optimizers on a CPU, each as one jitted function: time and peak memory, against eager.

    python packages/thunder-core/benchmarks/optimizers.py [--markdown FILE] [--json FILE] [--rows AdamW]

A step is `zero_grad()`, forward, loss, `backward()` and `optimizer.step()` of linear layers with ReLU, of one width.
The candidates run in turns, a step each; times are medians of many steps. Peak memory is what is allocated beyond the
memory in use before the step. Both candidates must have the same parameters and state after all steps, to the bit.

The exit status says whether all targets are met: eager's time, with a tolerance of three percent.
"""

from __future__ import annotations

import gc
import statistics
from typing import Any

import measuring
import torch
from measuring import Bar, Report, Row, milliseconds, once
from torch.profiler import ProfilerActivity, profile

import thunder

EAGER, OURS = "eager", "thunder"
MODELS = [(3, 32, 16), (4, 256, 64), (3, 1024, 64)]  # layers, width, batch
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "Adam": {},
    "SGD": {"lr": 0.01, "momentum": 0.9},
    "RMSprop": {"lr": 1e-4},
}


class Step:
    """The training step of a candidate, which `calls` counts."""

    def __init__(self, name: str, kind: str, layers: int, width: int, batch: int):
        torch.manual_seed(0)
        parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
        self.model = model = torch.nn.Sequential(*parts)
        self.optimizer = optimizer = getattr(torch.optim, kind)(model.parameters(), **OPTIMIZERS[kind])
        self.given = torch.rand(batch, width), torch.rand(batch, width)
        self.calls = 0

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        self.step = step if name == EAGER else thunder.jit(step)
        for _ in range(3):
            self()

    def __call__(self) -> None:
        self.calls += 1
        self.step(*self.given)

    def peak(self) -> float:
        """Return the peak of bytes that a step allocates, beyond the memory in use before."""
        gc.collect()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            self()
        now = most = 0
        for event in sorted(found.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
            if event.name() == "[memory]":
                now += event.nbytes()
                most = max(most, now)
        return float(most)

    def state(self) -> list[torch.Tensor]:
        """Return the parameters and the tensors of the optimizer's state."""
        found = [x for s in self.optimizer.state.values() for x in s.values() if isinstance(x, torch.Tensor)]
        return [*self.model.parameters(), *found]


def in_turns(steps: dict[str, Step], count: int) -> dict[str, list[float]]:
    """Measure the candidates, one step at a time."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    for _ in range(count):
        for name, step in steps.items():
            times[name].append(once(step))
    return times


def mebibytes(n: float) -> str:
    """Format a number of bytes."""
    return f"{n / 2**20:.2f} MiB"


def main() -> None:
    """Measure the requested rows."""
    given = measuring.parser((__doc__ or "").partition("\n")[0]).parse_args()
    torch.set_num_threads(1)
    report = Report("optimizers", __file__, [OURS, EAGER])
    for kind in OPTIMIZERS:
        for layers, width, batch in MODELS:
            name = f"{kind}, {layers} layers, {width} wide, batch {batch}"
            if given.rows not in name:
                continue
            steps = {name: Step(name, kind, layers, width, batch) for name in (OURS, EAGER)}
            times = in_turns(steps, given.repetitions * (40 if width < 1000 else 8))
            peaks = {name: step.peak() for name, step in steps.items()}
            ours, theirs = steps[OURS], steps[EAGER]
            while ours.calls != theirs.calls:
                min((ours, theirs), key=lambda step: step.calls)()
            if not all(map(torch.equal, ours.state(), theirs.state())):
                raise SystemExit(f"{name}: parameters or state differ from eager mode's")
            middle = {name: statistics.median(found) for name, found in times.items()}
            cells = {name: f"{milliseconds(middle[name])}, {mebibytes(peaks[name])}" for name in steps}
            each = sorted(a / b for a, b in zip(times[OURS], times[EAGER]))
            low, _, high = statistics.quantiles(each, n=4)
            bar = Bar(EAGER, middle[OURS] / middle[EAGER], 1.03, low, high)
            report.add(Row(name, cells, (bar,), {"seconds": times, "peaks": peaks}))
    report.finish(given)


if __name__ == "__main__":
    main()
