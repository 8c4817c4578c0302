# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine.profile(fn, *args)`: the time of each line, and how near it is to the limit of the machine.

Lines run by themselves, one after another, on copies of the inputs. On a CPU, their times contain the overhead of a
call from Python. A GPU is still busy when a line is launched, so that the time is that of its kernels.

A roofline says which limit applies: a line takes at least as long as the machine needs to move its bytes, and to
compute its floating-point operations. Both limits of the machine are measured (`Machine`). A timeline of whole calls,
with CUDA graphs and without pauses between lines, is recorded by torch's profiler.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from thunder.core.nbytes import in_bytes
from thunder.core.pytree import tree_leaves
from thunder.core.state import SourceLine
from thunder.core.tables import format_table, in_count, in_time
from thunder.core.trace import Trace
from thunder.examine.distributed import DistributedReport, line_key, simulate_programs
from thunder.examine.hardware import hardware_of
from thunder.examine.lines import Line, bind_inputs, lines_of, output_proxies, source_of, where_of
from thunder.examine.page import embedded, page_of
from thunder.examine.pictures import write_timeline
from thunder.examine.program import CompiledCall, compile_call
from thunder.examine.timeline import Timeline, timeline_of
from thunder.execution.flops import bytes_moved, flops_of
from thunder.extend import Executor
from thunder.frontend.progress import progress
from thunder.passes.overlap import is_start
from thunder.reproduce.outcome import cloned, seeded
from thunder.reproduce.variants import jit_function, variant
from thunder.runtime.kernels.collectives import wait

__all__ = ["Machine", "Profile", "TimedLine", "profile"]


_LAUNCHING = 2_000_000  # cycles for which the GPU is busy while a line is launched, about a millisecond


class Machine(NamedTuple):
    """The measured limits of a device: bytes per second of a copy, and FLOPs per second of a matrix product."""

    device: str
    bandwidth: float
    flops: float


class TimedLine:
    """A line, its time in seconds, its bytes and FLOPs, and the `share` of the limit that it reaches (1 is the limit).

    `limit` names the limit: "memory" or "compute". It is None for lines that do neither, e.g. views.
    """

    def __init__(self, line: Line, seconds: float, machine: Machine):
        self.program = line.program
        self.number = line.number
        self.text = line.text
        self.executor = line.executor
        self.computes = line.computes
        self.key = line_key(line.op)
        self.source: SourceLine | None = source_of(line.op)
        self.seconds = seconds
        self.bytes = bytes_moved(line.op)
        self.flops = flops_of(line.op)
        by_memory, by_compute = self.bytes / machine.bandwidth, self.flops / machine.flops
        least = max(by_memory, by_compute)
        self.limit = None if not least else "memory" if by_memory >= by_compute else "compute"
        self.share = least / seconds if seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the line as JSON types."""
        names = ("program", "number", "text", "executor", "computes", "seconds", "bytes", "flops", "limit", "share")
        return {**{name: getattr(self, name) for name in names}, "where": where_of(self.source)}


class Profile:
    """What `profile` returns: `lines` in the order of the program, the `machine`, and the `timeline` of calls."""

    def __init__(
        self,
        lines: list[TimedLine],
        machine: Machine,
        timeline: Timeline,
        page: Callable[[Profile], str],
        communication: Callable[[Profile], DistributedReport | None] = lambda found: None,
    ):
        self.lines = lines
        self.machine = machine
        self.timeline = timeline
        self._page = page
        #: The collectives of the program, with their measured times and what hides them; None if it has none.
        self.communication = communication(self)

    @property
    def seconds(self) -> float:
        """The sum of the times of all lines."""
        return sum(line.seconds for line in self.lines)

    @property
    def times(self) -> dict[tuple[Any, ...], float]:
        """The time of each kind of line, for `thunder.examine.distributed(…, profile=)`."""
        return {line.key: line.seconds for line in self.lines}

    def slowest(self, count: int = 15) -> list[TimedLine]:
        """Return the lines that take the longest."""
        return sorted(self.lines, key=lambda line: -line.seconds)[:count]

    def __str__(self) -> str:
        machine = self.machine
        found = [
            f"{len(self.lines)} lines take {in_time(self.seconds)}; a call takes {in_time(self.timeline.seconds)}",
            f"limits of {machine.device}: {machine.bandwidth / 1e9:.3g} GB/s, {machine.flops / 1e9:.3g} GFLOP/s",
            "",
        ]
        rows = [
            (
                f"{x.program} {x.number}", x.executor, in_time(x.seconds), f"{100 * x.seconds / self.seconds:.0f}%",
                in_bytes(x.bytes), in_count(x.flops), "" if x.limit is None else f"{100 * x.share:.0f}% of {x.limit}",
                x.text.partition("  # ")[0][:72],
            )
            for x in self.slowest()
        ]  # fmt: skip
        head = ("slowest lines", "executor", "time", "", "bytes", "FLOPs", "limit", "line")
        communication = [] if self.communication is None else ["", *str(self.communication).splitlines()[1:]]
        return "\n".join([*found, format_table(head, rows), *communication])

    __repr__ = __str__

    def html(self, path: str | Path | None = None) -> str:
        """Return the page of `thunder.examine` with times and the timeline. `path` is a file to write it to."""
        page = self._page(self)
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page

    def _repr_html_(self) -> str:
        return embedded(self.html())

    def picture(self, path: str | Path) -> None:
        """Draw the timeline of a call to a file that ends in `.png`, `.svg` or `.pdf`. It needs matplotlib."""
        write_timeline(self.timeline, path)

    def chrome_trace(self, path: str | Path) -> None:
        """Write the timeline as JSON for Perfetto (ui.perfetto.dev) or chrome://tracing."""
        Path(path).write_text(self.timeline.to_json(), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as JSON types."""
        return {
            "seconds_of_lines": self.seconds,
            "seconds_of_call": self.timeline.seconds,
            "machine": self.machine._asdict(),
            "lines": [line.to_dict() for line in self.lines],
            "communication": None if self.communication is None else self.communication.to_dict(),
        }


def profile(
    fn: Callable[..., Any],
    *args: Any,
    executors: Sequence[Executor | str] | None = None,
    rounds: int = 5,
    **kwargs: Any,
) -> Profile:
    """Measure the time of each line of a call's program, forward and backward, and the timeline of whole calls.

    `fn` is a function or module, jitted or not. If gradients flow, the backward program runs on gradients of ones. The
    calls run on copies of the arguments and, for a module, of the module; a function that changes other objects changes
    them. `rounds` is the number of measurements of
    each line; the median counts.
    """
    given = jit_function(fn)
    with progress("thunder.examine.profile", "measuring", "measured"), seeded():
        call = compile_call(fn, args, kwargs, executors)
        device = next((x.device for x in call.inputs if isinstance(x, torch.Tensor)), torch.device("cpu"))
        dtype = next((x.dtype for x in call.inputs if isinstance(x, torch.Tensor) and x.is_floating_point()), None)
        machine = measure_machine(device, dtype or torch.float32)
        lines = _timed_lines(call, rounds, machine)
        timeline = timeline_of(_step(call, args, kwargs), device)

    def communication(found: Profile) -> DistributedReport | None:
        report = simulate_programs(call.programs, hardware_of(device), found.times)
        return report if report.lines else None

    return Profile(lines, machine, timeline, lambda found: page_of(call, given, found), communication)


def _step(call: CompiledCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that runs the call on copies, forward and backward."""
    fn = call.jitted._fn
    jitted = variant(call.jitted, cloned(fn) if isinstance(fn, torch.nn.Module) else fn)
    args, kwargs = cloned(args), cloned(kwargs)

    def step() -> None:
        results = [x for x in tree_leaves(jitted(*args, **kwargs)) if isinstance(x, torch.Tensor)]
        results = [x for x in results if x.grad_fn is not None]
        if results:
            torch.autograd.backward(results, [torch.ones_like(x) for x in results])

    return step


# -- lines ------------------------------------------------------------------------------------------------------------
def _timed_lines(call: CompiledCall, rounds: int, machine: Machine) -> list[TimedLine]:
    programs = dict(call.programs)
    inputs = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in call.inputs]
    values = bind_inputs(programs["forward"], inputs)
    found = _timed_program("forward", programs["forward"], values, rounds, machine)
    if "backward" in programs:
        output, saved = programs["forward"].output
        backward = programs["backward"]
        made = [values[p.name] for p in output_proxies(output)]
        cotangents = [_ones_like(p, made) for p in backward.args[len(saved) :]]
        values = bind_inputs(backward, [*[values[p.name] for p in saved], *cotangents])
        found += _timed_program("backward", backward, values, rounds, machine)
    return found


def _ones_like(p: Any, results: Sequence[Any]) -> Any:
    fitting = (x for x in results if isinstance(x, torch.Tensor) and [*map(str, p.shape)] == [*map(str, x.shape)])
    like = next(fitting, next(x for x in results if isinstance(x, torch.Tensor) and x.dim() == len(p.shape)))
    return torch.ones_like(like)


def _timed_program(name: str, program: Trace, values: dict[str, Any], rounds: int, machine: Machine) -> list[TimedLine]:
    found = []
    for line in lines_of(name, program, values):
        results = line.run(values)  # compiles kernels
        given = [values[p.name] for p in line.args]
        function = _completed(line.function) if is_start(line.op) else line.function
        samples = [_seconds(function, given) for _ in range(rounds)]
        line.store(values, results)
        found.append(TimedLine(line, statistics.median(samples), machine))
    return found


def _completed(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that starts a collective and waits for it. All ranks measure the same collectives in order."""

    def run(*given: Any) -> None:
        for result in start(*given):
            wait(result)

    return run


def _seconds(function: Callable[..., Any], given: Sequence[Any]) -> float:
    if any(isinstance(x, torch.Tensor) and x.is_cuda for x in given):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(_LAUNCHING)
        begin.record()
        function(*given)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    start = time.perf_counter()
    function(*given)
    return time.perf_counter() - start


# -- limits -----------------------------------------------------------------------------------------------------------
def measure_machine(device: torch.device, dtype: torch.dtype) -> Machine:
    """Measure the bandwidth of a copy and the speed of a matrix product of a dtype."""
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else "the CPU"
    x = torch.empty(1 << (28 if on_gpu else 24), dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    n = 4096 if on_gpu else 512
    a = torch.ones(n, n, dtype=dtype if dtype.itemsize > 1 else torch.float32, device=device)
    copy = min(_seconds(y.copy_, [x]) for _ in range(5))
    product = min(_seconds(torch.matmul, [a, a]) for _ in range(5))
    return Machine(f"{name} ({str(a.dtype).removeprefix('torch.')})", 2 * x.numel() / copy, 2 * n**3 / product)
