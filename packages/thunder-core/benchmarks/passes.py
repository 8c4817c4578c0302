# SPDX-License-Identifier: Apache-2.0
"""The time of differentiation and all default passes, against tracing, for programs of up to 20,000 operations.

    python packages/thunder-core/benchmarks/passes.py [--markdown FILE] [--json FILE]

The program is a chain of typical layers (matmuls, additions, activations, normalizations, views), whose
inputs require grad. Passes are everything between the captured trace and the two that run; printing these and
compiling their text is a separate column. The targets are ratios of numbers of the same run.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from unittest import mock

import measuring
import torch
from measuring import Bar, Report, Row, best, microseconds, ratio
from torch.nn import functional as F

COLUMNS = ("tracing", "passes", "text and bytecode")
COUNTS = (200, 1000, 5000, 20000)
UNLIKE = 1000
PER_LAYER = 10  # operations of torch in a layer


Program = Callable[[int], Callable[..., torch.Tensor]]  # from the number of operations


def program(count: int) -> Callable[..., torch.Tensor]:
    """Return a function of `count` operations."""

    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(count // PER_LAYER):
            y = F.layer_norm(x, (8,), b)
            y = F.linear(y, w, b).tanh()
            y = y.view(2, 2, 8).transpose(0, 1).transpose(0, 1).reshape(4, 8)
            x = x * 0.5 + y.sigmoid()
        return x.sum()

    return run


def unlike(count: int) -> Callable[..., torch.Tensor]:
    """Return a similar function whose layers differ in width, so that hardly any two calls are equal.

    Templates for equal calls (`passes/trace_templates.py`) do not help it.
    """

    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(count // PER_LAYER):
            x = F.pad(x, (0, 1))
            y = F.layer_norm(x, (x.shape[1],)).tanh()
            y = y.view(2, 2, -1).transpose(0, 1).transpose(0, 1).reshape(4, -1)
            x = x * w[0, 0] + y.sigmoid()
        return x.sum()

    return run


def measured(count: int, program: Program = program) -> tuple[float, float, float]:
    """Measure tracing, all passes, and printing and compiling the text, in seconds per operation."""
    from thunder.capture.capture import capture
    from thunder.core.trace import Trace
    from thunder.frontend.options import Options
    from thunder.frontend.pipeline import compile_trace

    given = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True), torch.ones(8)
    executors = Options().resolved_executors()
    found, texts = {}, []
    python_callable = Trace.python_callable

    def timed(trace: Trace, **options: Any) -> Any:
        made = []
        texts.append(measuring.once(lambda: made.append(python_callable(trace, **options))))
        return made[0]

    def trace() -> None:
        found["acquired"] = capture(program(count), given, {}, name="computation", executors=executors)

    def compile() -> None:
        assert compile_trace(found["acquired"], executors, ()).backward_traces  # they are compiled on demand

    tracing = measuring.once(trace)
    with mock.patch.object(Trace, "python_callable", timed):
        compiling = measuring.once(compile)
    return tracing / count, (compiling - sum(texts)) / count, sum(texts) / count


def repeated(count: int, program: Program, times: int) -> dict[str, list[float]]:
    """Measure a program in several repetitions."""
    found: list[tuple[float, float, float]] = []
    for _ in range(times):
        gc.collect()
        found.append(measured(count, program))
    return dict(zip(COLUMNS, ([t[i] for t in found] for i in range(3))))


def row(name: str, times: dict[str, list[float]], bars: list[Bar]) -> Row:
    """Return a row of the table."""
    return Row(name, {what: microseconds(best(each)) for what, each in times.items()}, tuple(bars), dict(times))


def main() -> None:
    given = measuring.parser(__doc__.partition("\n")[0]).parse_args()
    torch.set_num_threads(1)
    report = Report("passes", __file__, [*COLUMNS])
    measured(100)
    before: dict[str, float] = {}
    for count in COUNTS:
        title = f"each of {count} operations, with gradients"
        times = repeated(count, program, given.repetitions if count < 5000 else max(2, given.repetitions // 3))
        now = {"tracing": best(times["tracing"]), "passes": best(times["passes"])}
        bars = [ratio("tracing", 1.0, times["passes"], times["tracing"])]
        bars += [Bar(f"{name} in the row above", now[name] / before[name], 1.25) for name in now if before]
        before = now
        report.add(row(title, times, bars))
    times = repeated(UNLIKE, unlike, given.repetitions)
    report.add(row(f"each of {UNLIKE} operations, hardly one like another", times, []))
    report.finish(given)


if __name__ == "__main__":
    main()
