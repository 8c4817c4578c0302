# SPDX-License-Identifier: Apache-2.0
"""How long differentiation and all default passes take, against tracing, for programs of up to 20,000 operations.

    python packages/thunder-core/benchmarks/passes.py [--markdown FILE] [--json FILE]

The program is a chain of layers as networks have them (products, additions, activations, normalizations, views), whose
inputs require gradients. Passes are what stands between the acquired trace and the two that run; printing these and
compiling their text is shown beside. The bars are ratios of numbers of the same run.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import measuring
import torch
from measuring import Bar, Report, Row, best, microseconds, ratio
from torch.nn import functional as F

COUNTS = (200, 1000, 5000, 20000)
PER_LAYER = 10  # operations of torch in a layer


def program(count: int) -> Callable[..., torch.Tensor]:
    """A function of `count` operations."""

    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(count // PER_LAYER):
            y = F.layer_norm(x, (8,), b)
            y = F.linear(y, w, b).tanh()
            y = y.view(2, 2, 8).transpose(0, 1).transpose(0, 1).reshape(4, 8)
            x = x * 0.5 + y.sigmoid()
        return x.sum()

    return run


def measured(count: int) -> tuple[float, float, float]:
    """Seconds of tracing, of all passes, and of printing and compiling the text, each for one operation."""
    from thunder.frontend.acquire import acquire
    from thunder.frontend.compiled import compile_trace
    from thunder.frontend.options import Options

    given = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True), torch.ones(8)
    executors = Options().resolved_executors()
    found = {}

    def trace() -> None:
        found["acquired"] = acquire(program(count), given, {}, name="computation", executors=executors)

    def compile() -> None:
        found["program"] = compile_trace(found["acquired"], executors, ())

    tracing, compiling = measuring.once(trace), measuring.once(compile)
    done = found["program"]
    traces = [*done.traces[1:], *done.backward_traces]
    passes = sum(trace.provenance.nanoseconds or 0 for trace in traces if trace.provenance is not None) / 1e9
    return tracing / count, passes / count, max(0.0, compiling - passes) / count


def main() -> None:
    given = measuring.parser(__doc__.partition("\n")[0]).parse_args()
    torch.set_num_threads(1)
    report = Report("passes", __file__, ["tracing", "passes", "text and bytecode"])
    measured(100)
    small: dict[str, float] = {}
    for count in COUNTS:
        times: list[tuple[float, float, float]] = []
        for _ in range(given.repetitions if count < 5000 else max(2, given.repetitions // 3)):
            gc.collect()
            times.append(measured(count))
        tracing, passes, text = ([t[i] for t in times] for i in range(3))
        bars = [ratio("tracing", 1.0, passes, tracing)]
        if count == 1000:
            small = {"tracing": best(tracing), "passes": best(passes)}
        elif small:
            bars += [
                Bar(f"{name} for one of 1000 operations", best(found) / small[name], 1.25)
                for name, found in (("tracing", tracing), ("passes", passes))
            ]
        cells = {"tracing": microseconds(best(tracing)), "passes": microseconds(best(passes))}
        cells["text and bytecode"] = microseconds(best(text))
        numbers = {"tracing": tracing, "passes": passes, "text": text}
        report.add(Row(f"each of {count} operations, with gradients", cells, tuple(bars), numbers))
    report.finish(given)


if __name__ == "__main__":
    main()
