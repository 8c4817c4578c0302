# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of executors on a GPU: three timers, interleaved measurements, CUDA graphs and tables.

There are three timers. Kernel times measure the GPU's work. Events measure the latency of a call, including the time
that the GPU waits for the host. The host's clock measures the overhead of a call on its thread. All timers measure warm
calls.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

__all__ = ["Kernels", "by_events", "by_kernels", "copy_bandwidth", "in_turns", "on_host", "replayed", "table"]

Call = Callable[[], Any]


class Kernels(NamedTuple):
    """The kernel time of a call, in milliseconds, and the number of kernels."""

    milliseconds: float
    number: float


def by_events(fn: Call, calls: int = 10) -> float:
    """Measure milliseconds per call with CUDA events."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        fn()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def copy_bandwidth() -> float:
    """Measure the bandwidth of a large copy, in bytes per second."""
    x = torch.empty(1 << 29, dtype=torch.float32, device="cuda")
    y = torch.empty_like(x)
    best = min(by_events(lambda: y.copy_(x), 5) for _ in range(5))
    return 2 * x.numel() * 4 / (best * 1e-3)


def by_kernels(fn: Call, calls: int = 5) -> Kernels:
    """Measure the kernels of a call with torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    warm(fn)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            fn()
        torch.cuda.synchronize()
    events = [e for e in found.events() if e.device_type.name == "CUDA" and not e.name.startswith("Activity")]
    return Kernels(sum(e.device_time for e in events) / calls / 1e3, len(events) / calls)


def on_host(fn: Call, calls: int = 300) -> float:
    """Measure microseconds per call on the calling thread. The GPU is otherwise idle."""
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
    """Call the function a few times, to compile it."""
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
    """Return a measurement of each contender. In each repetition, all contenders run once, in random order.

    If a contender fails, it is skipped and the reason is printed.
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
        drawn.shuffle(order)  # heavy work slows down the GPU for the next contender
        for name in order:
            contenders[name]()
            times[name].append(measure(contenders[name]))
    return {name: choose(each) for name, each in times.items()}


def replayed(fn: Call, calls: int = 20) -> Call:
    """Capture several calls as one CUDA graph, which excludes host overhead."""
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
    """Format a Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
