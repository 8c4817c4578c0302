# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine.distributed(f, *args)`: simulate a program that communicates, without running it.

The lines of the compiled program are replayed on a compute stream, and collectives on a stream for each process group.
A collective starts when its line is reached and its group's stream is free, and the program stops at a `wait` until it
is complete: that is the exposed time. Times are those of a roofline or of a profile, and of measured or described
collectives (`hardware.py`). Streams do not slow each other down, and Python takes no time.

A process simulates any number of ranks: in `fake_ranks(1024)`, torch.distributed has so many, and nothing communicates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from thunder.core.errors import ThunderError
from thunder.core.groups import BUCKETS, Group
from thunder.core.nbytes import in_bytes
from thunder.core.state import SourceLine
from thunder.core.symbol import BoundSymbol
from thunder.core.tables import format_table, in_time
from thunder.core.trace import Trace
from thunder.examine.hardware import LINE_RANGE, Estimate, Hardware, collective_bytes, hardware_named
from thunder.examine.lines import Line, lines_of, source_of, where_of
from thunder.examine.predictions import as_it_runs, memory_of
from thunder.examine.program import compile_call
from thunder.execution.memory_estimate import estimate_memory
from thunder.extend import Executor, resolve_executors
from thunder.passes.overlap import is_start, is_wait
from thunder.torch.private import fake_store

__all__ = [
    "CommunicationLine", "DistributedReport", "Scaling", "distributed", "fake_ranks", "line_key", "scaling",
    "simulate_programs",
]  # fmt: skip

Times = dict[tuple[Any, ...], float]


class Span(NamedTuple):
    """A line on a stream: its name, and its begin and end in seconds."""

    stream: str
    name: str
    begin: float
    end: float


class CommunicationLine:
    """A collective of a program: its bytes, its time, what hides it, and the time for which the program waits."""

    def __init__(self, line: Line, group: Group, size: int, estimate: Estimate, begin: float, end: float):
        self.program, self.number, self.text = line.program, line.number, line.text
        self.kind = line.op.sym.name
        self.group, self.bytes, self.estimate = group, size, estimate
        self.source: SourceLine | None = source_of(line.op)
        self.begin, self.end = begin, end
        self.result = line.op.out_names[0]
        #: The number of collectives that were merged into it, and the bytes that this copies (`passes/bucketing.py`).
        self.merged, self.copied = 1, 0
        self.exposed = 0.0
        self.hidden_by: list[str] = []  # the operations that run meanwhile, those that take the longest first

    @property
    def seconds(self) -> float:
        """The predicted or measured time of the collective."""
        return self.end - self.begin

    def to_dict(self) -> dict[str, Any]:
        """Return the line as JSON types."""
        names = (
            "program",
            "number",
            "text",
            "kind",
            "bytes",
            "begin",
            "end",
            "exposed",
            "hidden_by",
            "merged",
            "copied",
        )
        found = {name: getattr(self, name) for name in names}
        more = {"ranks": self.group.size, "group": self.group.description, "estimate": self.estimate._asdict()}
        return {**found, **more, "where": where_of(self.source)}


class DistributedReport:
    """The result of a simulation: `seconds` of a step with its range, `exposed` time, `lines`, and `peak` bytes."""

    def __init__(self, replay: _Replay, low: float, high: float, peak: int | None, hardware: Hardware):
        self.seconds, self.low, self.high = replay.end, low, high
        self.lines = replay.lines
        self.peak = peak
        self.hardware = hardware
        self.compute = replay.computed
        self.spans = replay.spans
        #: Whether all times come from a profile.
        self.is_profiled = replay.is_profiled

    @property
    def ranks(self) -> int:
        """The number of ranks of the largest group."""
        return max((line.group.size for line in self.lines), default=1)

    @property
    def exposed(self) -> float:
        """The seconds for which the program waits for communication."""
        return sum(line.exposed for line in self.lines)

    @property
    def communication(self) -> float:
        """The seconds of all collectives together."""
        return sum(line.seconds for line in self.lines)

    @property
    def is_extrapolated(self) -> bool:
        """Whether times come from data sheets, or from other numbers of ranks or sizes than were measured."""
        return not (self.is_profiled and all(line.estimate.is_measured for line in self.lines))

    def __str__(self) -> str:
        share = 100 * self.exposed / self.seconds if self.seconds else 0
        limits = f" ({in_time(self.low)} to {in_time(self.high)}, extrapolated)" if self.is_extrapolated else ""
        compute = f"compute {in_time(self.compute)} ({'profiled' if self.is_profiled else 'predicted'})"
        waiting = f"{in_time(self.exposed)} are exposed ({share:.0f}% of the step)"
        lines = [
            f"{self.hardware.name}, groups of up to {self.ranks} ranks: a step takes {in_time(self.seconds)}{limits}",
            f"{compute}, communication {in_time(self.communication)}, of which {waiting}",
        ]
        if self.peak is not None:
            lines.append(f"predicted peak of memory: {in_bytes(self.peak)}")
        return "\n".join([*lines, *(["", self.table()] if self.lines else [])])

    __repr__ = __str__

    def table(self) -> str:
        """Return a table of the collectives."""
        merges = any(x.merged > 1 for x in self.lines)
        more = [f"{x.merged}, copies {in_bytes(x.copied)}" if x.merged > 1 else "" for x in self.lines]
        rows = [
            (
                f"{x.program} {x.number}", x.kind, f"{x.group.size}", in_bytes(x.bytes), *[merged][:merges],
                _with_range(x), in_time(x.exposed) if x.exposed else "-", ", ".join(x.hidden_by) or "nothing",
                "" if x.source is None else f"{Path(x.source.filename).name}:{x.source.line}",
            )
            for x, merged in zip(self.lines, more)
        ]  # fmt: skip
        header = "line", "collective", "ranks", "bytes", *["merged"][:merges], "time", "exposed", "hidden by", "where"
        return format_table(header, rows)

    def chrome_trace(self, path: str | Path) -> None:
        """Write the simulated streams as JSON for Perfetto (ui.perfetto.dev) or chrome://tracing."""
        streams = list(dict.fromkeys(["compute", *[span.stream for span in self.spans]]))
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": name}}
            for i, name in enumerate(streams)
        ]
        events += [
            {
                "ph": "X", "name": span.name, "pid": 0, "tid": streams.index(span.stream), "ts": span.begin * 1e6,
                "dur": (span.end - span.begin) * 1e6, "cat": "kernel",
            }
            for span in self.spans
        ]  # fmt: skip
        Path(path).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """Return the simulation as JSON types."""
        names = ("seconds", "low", "high", "compute", "communication", "exposed", "peak", "ranks", "is_extrapolated")
        found = {name: getattr(self, name) for name in names}
        return {**found, "hardware": self.hardware.name, "lines": [line.to_dict() for line in self.lines]}


def _with_range(line: CommunicationLine) -> str:
    found = line.estimate
    if found.is_measured:
        return in_time(line.seconds)
    return f"{in_time(found.seconds)} ({in_time(found.low)} to {in_time(found.high)})"


def distributed(
    fn: Callable[..., Any] | Trace,
    *args: Any,
    hardware: Hardware | str = "h100",
    profile: Any = None,
    executors: Sequence[Executor | str] | None = None,
    **kwargs: Any,
) -> DistributedReport:
    """Simulate a call of a program that communicates, on other hardware, e.g. "h100", "h200" or "cpu".

    `fn` is a function or module, jitted or not, with the arguments of a call, or a trace. The program is compiled for
    the process groups that exist, e.g. those of `fake_ranks`, and does not run. A `profile` (`thunder.examine.profile`)
    gives the times of lines that compute the same; a roofline gives those of the others.
    """
    machine = hardware_named(hardware)
    times: Times = {} if profile is None else profile.times
    if isinstance(fn, Trace):
        program = as_it_runs(fn, resolve_executors(executors))
        return simulate_programs([(program.name, program)], machine, times, estimate_memory(program).peak)
    call = compile_call(fn, args, kwargs, executors)
    return simulate_programs(call.programs, machine, times, memory_of(call.specialization).peak)


def simulate_programs(
    programs: Sequence[tuple[str, Trace]], hardware: Hardware, times: Times, peak: int | None = None
) -> DistributedReport:
    """Replay programs one after another."""
    lines = [line for name, trace in programs for line in lines_of(name, trace)]
    low, high = (_Replay(lines, hardware, times, which).end for which in ("low", "high"))
    replay = _Replay(lines, hardware, times, "seconds")
    merged = {name: trace.info[BUCKETS].merged for name, trace in programs if BUCKETS in trace.info}
    for line in replay.lines:
        line.merged, line.copied = merged.get(line.program, {}).get(line.result, (1, 0))
    return DistributedReport(replay, low, high, peak, hardware)


def line_key(op: BoundSymbol) -> tuple[Any, ...]:
    """Return what decides how long a line takes: the operations, and the types of what it reads and writes."""
    parts = tuple([part.sym.name for part in op.subsymbols]) or (op.sym.name,)
    owner = op.sym.executor
    types = [tuple([p.type_string() for p in found]) for found in (op.flat_args, op.flat_outs)]
    return (None if owner is None else owner.name, op.sym.name if not op.sym.is_fusion else "fusion", parts, *types)


class _Replay:
    """A run of the lines on streams: a clock of the compute stream, and one of each group."""

    def __init__(self, lines: Sequence[Line], hardware: Hardware, times: Times, which: str):
        self.lines: list[CommunicationLine] = []
        self.spans: list[Span] = []
        self.computed = 0.0
        self.is_profiled = bool(times)
        self._hardware, self._times, self._which = hardware, times, which
        self._now = 0.0
        self._free: dict[str, float] = {}
        self._flying: dict[str, CommunicationLine] = {}
        for line in lines:
            self._run(line)
        self.end = max([self._now, *self._free.values()])
        self._find_what_hides()

    def _run(self, line: Line) -> None:
        op = line.op
        if is_start(op):
            self._start(line)
        elif is_wait(op):
            self._wait(op)
        else:
            seconds = self._times.get(line_key(op)) if self._times else None
            if seconds is None:
                seconds = self._hardware.seconds_of_line(op) * LINE_RANGE[self._which]
                self.is_profiled = self.is_profiled and not seconds
            if seconds:
                name = ", ".join(line.computes[:3])
                self.spans.append(Span("compute", name, self._now, self._now + seconds))
                self._now += seconds
                self.computed += seconds

    def _start(self, line: Line) -> None:
        group = next(x for x in line.op.args if isinstance(x, Group))
        size = collective_bytes(line.op, group)
        known = self._times.get(line_key(line.op)) if self._times else None
        if known is None:
            estimate = self._hardware.collective(line.op.sym.name, size, group.ranks)
        else:
            estimate = Estimate(known, known, known, True)
        begin = max(self._now, self._free.get(group.name, 0.0))
        end = begin + getattr(estimate, self._which)
        self._free[group.name] = end
        found = CommunicationLine(line, group, size, estimate, begin, end)
        self.lines.append(found)
        self._flying.update(dict.fromkeys(line.op.out_names, found))
        self.spans.append(Span(f"group {group.description or group.name}", found.kind, begin, end))

    def _wait(self, op: BoundSymbol) -> None:
        found = self._flying.get(op.arg_names[0]) if op.arg_names else None
        if found is not None and found.end > self._now:
            found.exposed += found.end - self._now
            self._now = found.end

    def _find_what_hides(self) -> None:
        computing = [span for span in self.spans if span.stream == "compute"]
        for line in self.lines:
            shares: dict[str, float] = {}
            for span in computing:
                overlap = min(span.end, line.end) - max(span.begin, line.begin)
                if overlap > 0:
                    shares[span.name] = shares.get(span.name, 0.0) + overlap
            line.hidden_by = sorted(shares, key=lambda name: -shares[name])[:3]


# -- numbers of ranks -------------------------------------------------------------------------------------------------
@contextmanager
def fake_ranks(world_size: int, rank: int = 0) -> Iterator[None]:
    """Return a context in which this process is one of many ranks of torch.distributed, and nothing communicates.

    Collectives that run in it return at once, with wrong numbers. Process groups and device meshes are created in it.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        raise ThunderError(
            "this process already belongs to a process group: call torch.distributed.destroy_process_group first, or "
            "simulate in another process"
        )
    dist.init_process_group("fake", store=fake_store(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class Scaling:
    """Simulations of one program for several numbers of ranks, in `reports`."""

    def __init__(self, reports: dict[int, DistributedReport]):
        self.reports = reports

    def __str__(self) -> str:
        rows = [
            (
                count, in_time(x.seconds), f"{in_time(x.low)} to {in_time(x.high)}" if x.is_extrapolated else "",
                in_time(x.communication), in_time(x.exposed), f"{100 * x.exposed / max(x.seconds, 1e-12):.0f}%",
                "" if x.peak is None else in_bytes(x.peak),
            )
            for count, x in self.reports.items()
        ]  # fmt: skip
        head = ("ranks", "step", "extrapolated range", "communication", "exposed", "", "peak")
        return format_table(head, rows)

    __repr__ = __str__


def scaling(
    build: Callable[[], tuple[Any, ...]],
    world_sizes: Sequence[int],
    *,
    hardware: Hardware | str = "h100",
    profile: Any = None,
) -> Scaling:
    """Simulate a program for several numbers of ranks, in this process.

    `build()` returns the function and its arguments. It is called for each number of ranks in a context of
    `fake_ranks`, in which it creates process groups, meshes and distributed modules.
    """
    found = {}
    for size in world_sizes:
        with fake_ranks(size):
            fn, *args = build()
            found[size] = distributed(fn, *args, hardware=hardware, profile=profile)
    return Scaling(found)
