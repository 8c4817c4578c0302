# SPDX-License-Identifier: Apache-2.0
"""What benchmarks of executors on a GPU share: three clocks, contenders that take turns, CUDA graphs, tables.

Kernels' own times say what the GPU did; events say how long a call took it, waiting for the host included; the host's
clock says what a call costs the thread that makes it. All are of calls that were made before, and compile nothing.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

__all__ = ["Kernels", "by_events", "by_kernels", "in_turns", "on_host", "replayed", "table"]

Call = Callable[[], Any]


class Kernels(NamedTuple):
    """What the kernels of a call took, in milliseconds, and how many there were."""

    milliseconds: float
    number: float


def by_events(fn: Call, calls: int = 10) -> float:
    """Return milliseconds a call, by events."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        fn()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def by_kernels(fn: Call, calls: int = 5) -> Kernels:
    """Return the kernels of a call, by torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    warm(fn)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            fn()
        torch.cuda.synchronize()
    events = [e for e in found.events() if e.device_type.name == "CUDA" and not e.name.startswith("Activity")]
    return Kernels(sum(e.device_time for e in events) / calls / 1e3, len(events) / calls)


def on_host(fn: Call, calls: int = 300) -> float:
    """Return microseconds that a call takes the thread that makes it; the GPU has nothing else to do."""
    for _ in range(50):
        fn()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        fn()
    took = time.perf_counter() - begin
    torch.cuda.synchronize()
    return took / calls * 1e6


def warm(fn: Call) -> None:
    """A few calls, which compile what is to be compiled."""
    for _ in range(3):
        fn()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def in_turns(
    contenders: Mapping[str, Call],
    repetitions: int = 5,
    measure: Callable[[Call], float] = by_events,
    choose: Callable[[Iterable[float]], float] = statistics.median,
) -> dict[str, float]:
    """Return what is measured of each contender, chosen from repetitions in which each has its turn, in a drawn order.

    One that fails is left out, and why is printed.
    """
    times: dict[str, list[float]] = {}
    for name, fn in contenders.items():
        try:
            warm(fn)
            times[name] = []
        except Exception as error:
            print(f"  {name} cannot run: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
    order, drawn = list(times), random.Random(0)
    for _ in range(repetitions):
        drawn.shuffle(order)  # who comes after the heaviest work finds a slower GPU
        for name in order:
            contenders[name]()
            times[name].append(measure(contenders[name]))
    return {name: choose(each) for name, each in times.items()}


def replayed(fn: Call, calls: int = 20) -> Call:
    """So many calls as one CUDA graph: nobody waits for the host."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        fn()
        fn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            fn()
    return graph.replay


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
