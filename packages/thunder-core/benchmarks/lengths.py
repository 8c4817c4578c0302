# SPDX-License-Identifier: Apache-2.0
"""The cost of varying lengths: traces and time for 50 of them, and interleaved calls of several programs.

    python packages/thunder-core/benchmarks/lengths.py [--markdown FILE] [--json FILE]

The model is a Llama whose input has another number of tokens in each of 50 calls. `torch.compile(backend="eager")`
captures the same programs, with sizes that become dynamic when they have changed. Every target is a ratio of numbers of
the same run, or a number of traces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import measuring
import torch
from llama import Llama
from measuring import Bar, Report, Row, alternate, best, microseconds, milliseconds, once, per_call, ratio

LAYERS, LENGTHS = 4, range(3, 53)
CAPTURE = 'torch.compile(backend="eager")'
DEFAULT, SYMBOLIC = "thunder", 'thunder, cache="symbolic values"'


def forward(run: Callable[..., Any], tokens: torch.Tensor) -> None:
    """Call once without gradients."""
    with torch.no_grad():
        run(tokens)


def training(run: Callable[..., Any], tokens: torch.Tensor) -> None:
    """Call once, with the backward pass."""
    run(tokens).sum().backward()


def all_lengths(wrap: Callable[[Any], Any], call: Callable[..., None], made: list[Any]) -> Callable[[], float]:
    """Measure one call of each length, first calls included, in seconds; `made` receives the compiled functions."""
    batches = [torch.randint(64, (2, n)) for n in LENGTHS]

    def run() -> float:
        fn = wrap(Llama(LAYERS))
        made[:] = [fn]
        return once(lambda: [call(fn, tokens) for tokens in batches])

    return run


def capture(model: Any) -> Any:
    """Capture with torch.compile."""
    torch._dynamo.reset()
    return torch.compile(model, backend="eager")


def lengths(report: Report, repetitions: int) -> None:
    """Measure fifty lengths, forward, and forward and backward."""
    import thunder

    wraps: dict[str, Callable[[Any], Any]] = {
        DEFAULT: thunder.jit, SYMBOLIC: lambda m: thunder.jit(m, cache="symbolic values"), CAPTURE: capture,
        "eager": lambda m: m,
    }  # fmt: skip
    for name, call in (("forward", forward), ("forward and backward", training)):
        made: dict[str, list[Any]] = {key: [] for key in wraps}
        measures = {key: all_lengths(wrap, call, made[key]) for key, wrap in wraps.items()}
        times = alternate(measures, min(repetitions, 3))
        cells = {key: milliseconds(best(found)) for key, found in times.items()}
        bars = [ratio(CAPTURE, 1, times[SYMBOLIC], times[CAPTURE]), ratio(CAPTURE, 1, times[DEFAULT], times[CAPTURE])]
        for key, limit in ((SYMBOLIC, 1), (DEFAULT, 3)):
            traces = thunder.cache_misses(made[key][0])
            cells[key] += f", {traces} trace{'s' if traces > 1 else ''}"
            bars.append(Bar(f"traces of {key}", traces, limit))
        report.add(Row(f"{len(LENGTHS)} lengths of a {LAYERS}-layer Llama, {name}", cells, tuple(bars)))


def turns(report: Report, repetitions: int) -> None:
    """Measure interleaved calls of several programs of a function, against calls of one program."""
    import thunder

    def fn(a: Any, b: Any, mode: str) -> Any:
        return a + b * len(mode)

    a, b = torch.randn(4, 4), torch.randn(4, 4)
    for count in (2, 4, 8):
        jitted = thunder.jit(fn)
        modes = ["a" * (i + 1) for i in range(count)]
        for mode in modes:
            jitted(a, b, mode)

        def in_turns(jitted: Any = jitted, modes: list[str] = modes) -> None:
            for mode in modes:
                jitted(a, b, mode)

        def one(jitted: Any = jitted, modes: list[str] = modes) -> None:
            for _ in modes:
                jitted(a, b, modes[0])

        times = alternate({"turns": lambda f=in_turns: per_call(f), "one": lambda f=one: per_call(f)}, repetitions)
        bar = ratio("calls of one program", 1.15, times["turns"], times["one"])
        report.add(
            Row(f"calls of {count} programs in turns", {DEFAULT: microseconds(best(times["turns"]) / count)}, (bar,))
        )


def main() -> None:
    given = measuring.parser(__doc__.partition("\n")[0]).parse_args()
    torch.set_num_threads(1)
    report = Report("Many lengths", "lengths.py", [DEFAULT, SYMBOLIC, CAPTURE, "eager"])
    forward(capture(Llama(1)), torch.zeros(1, 4, dtype=torch.long))  # excludes one-time costs from the rows
    for row in (lengths, turns):
        if given.rows in row.__name__:
            row(report, given.repetitions)
    report.finish(given)


if __name__ == "__main__":
    main()
