# SPDX-License-Identifier: Apache-2.0
"""The page of a compiled call: one HTML file without scripts, which needs no network. `templates/` has its text.

It shows what logs and `thunder.explain` read: traces, executors and the reasons of executors that claimed nothing,
memory, saved values, guards, events, and the changes of each pass.
"""

from __future__ import annotations

import functools
import html
import platform
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from thunder.core.nbytes import bytes_of, in_bytes
from thunder.core.printer import bound_symbol_lines
from thunder.core.provenance import diff_traces
from thunder.core.proxies import Proxy
from thunder.core.state import SourceLine
from thunder.core.tables import in_count, in_time
from thunder.core.trace import Trace
from thunder.examine.graph import Drawing, draw
from thunder.examine.lines import Line, lines_of, output_proxies, source_of
from thunder.examine.predictions import memory_of
from thunder.examine.program import CompiledCall
from thunder.execution.claim import choose
from thunder.execution.memory_estimate import MemoryReport
from thunder.extend import Executor
from thunder.frontend.explain import MAX_PROGRAMS, counted
from thunder.frontend.jit import JitFunction
from thunder.frontend.stats import CompileStats

__all__ = ["embedded", "page_of", "render"]

_COLORS = 8  # of executors, in the style sheet


class Row(NamedTuple):
    """A line of a program."""

    number: int
    text: str
    type: str
    executor: str
    color: int
    inner: str
    source: SourceLine | None
    rejections: str
    bytes: str


class Program(NamedTuple):
    """A program of the call: its rows, its data flow, its passes and the text of the whole trace."""

    name: str
    rows: list[Row]
    drawing: Drawing
    passes: list[Pass]


class Pass(NamedTuple):
    """A pass, the lines that it changed, and its duration."""

    name: str
    milliseconds: str
    added: int
    removed: int
    diff: list[tuple[str, str]]  # the kind of each line, and the line


class Chart(NamedTuple):
    """The memory over the program, as SVG: an area of live bytes, and the place of the peak."""

    area: str
    width: int
    height: int
    peak_x: float
    peak_y: float
    split: float | None  # where backward begins
    top: str


def page_of(call: CompiledCall, given: JitFunction[..., Any] | None = None, timing: Any = None) -> str:
    """Return the page of a call. `given` is the jitted function of the user, whose calls are reported."""
    found = call.specialization
    executors = call.jitted._options.resolved_executors()  # as they are: a list would be taken for named executors
    programs = {"forward": found.traces}
    if call.differentiable is not None:
        programs["backward"] = call.differentiable.unrecorded_traces
    finals = dict(call.programs)
    lines = {name: list(lines_of(name, trace)) for name, trace in finals.items()}
    counts = Counter(line.executor or "Python" for each in lines.values() for line in each)
    colors = {name: i % _COLORS for i, name in enumerate(counts)}
    stats = (given or call.jitted)._stats
    memory, origins = memory_of(found), _origins(finals, lines)
    return render(
        "report.html",
        title=repr(given or call.jitted),
        versions=_versions(),
        inputs=[(p.name, p.type_string()) for p in found.traces[0].args],
        executors=[(name, counts[name], colors[name]) for name in counts],
        programs=[
            Program(name, [_row(line, executors, colors) for line in lines[name]], draw(lines[name]), _passes(traces))
            for name, traces in programs.items()
        ],
        colors=colors,
        memory=memory,
        chart=_chart(memory),
        alive=_with_share([(name, size, origins.get(name, "")) for name, size in memory.at_peak[:20]], memory.peak),
        saved=_saved(finals["forward"], origins) if call.differentiable is not None else [],
        saved_bytes=in_bytes(sum(bytes_of(p) for p in _saved_values(finals["forward"])))
        if call.differentiable is not None
        else "",
        guards=_guards(found.prologue_traces),
        uncacheable=call.captured.uncacheable,
        versions_of_program=_programs(stats),
        paths=[str(path) for path in stats.cache.paths],
        explanation=stats.explain() if stats.calls else "",
        events=[
            event.to_dict() for event in stats.events.of("guard", "compile", "decision", "fallback", "graph", "cache")
        ],
        timing=timing,
    )


def render(template: str, **values: Any) -> str:
    """Render a template of `templates/`."""
    formats = {"in_bytes": in_bytes, "in_count": in_count, "in_time": in_time, "counted": counted}
    return str(_environment().get_template(template).render(**formats, **values))


def embedded(page: str, height: int = 600) -> str:
    """Return a page as HTML for a notebook, in a frame of its own."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" style="width: 100%; height: {height}px; border: 0" '
        'title="thunder.examine"></iframe>'
    )


@functools.cache
def _environment() -> Any:
    # The import is local: torch requires Jinja2, and only pages need it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("thunder.examine"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _versions() -> str:
    thunder = sys.modules["thunder"].__version__
    return f"thunder {thunder}, torch {torch.__version__}, Python {platform.python_version()}"


# -- programs ---------------------------------------------------------------------------------------------------------
def _row(line: Line, executors: Sequence[Executor], colors: dict[str, int]) -> Row:
    text, _, type_string = line.text.partition("  # ")
    parts = [text for op in line.op.subsymbols for text in bound_symbol_lines(op, depth=None)]
    return Row(
        line.number,
        text,
        type_string,
        line.executor or "Python",
        colors[line.executor or "Python"],
        "\n".join(parts),
        source_of(line.op),
        "\n".join(_rejections(line, executors)),
        in_bytes(sum(bytes_of(p) for p in line.outs)),
    )


def _rejections(line: Line, executors: Sequence[Executor]) -> Iterator[str]:
    """Yield why executors with a higher priority do not run the operations of a line."""
    for op in line.op.subsymbols if line.op.sym.is_fusion else line.op.subsymbols[:1]:
        for name, reason in choose(op, executors).rejections.items():
            yield f"not {name}: {reason} ({op.sym.name})"


def _passes(traces: Sequence[Trace]) -> list[Pass]:
    found = []
    for i, trace in enumerate(traces):
        name = "capture" if trace.provenance is None else trace.provenance.name
        took = None if trace.provenance is None else trace.provenance.nanoseconds
        changes = diff_traces(traces[i - 1], trace) if i else ""
        found.append(_pass(name, "" if took is None else f"{took / 1e6:.1f} ms", changes))
    return found


def _pass(name: str, milliseconds: str, changes: str) -> Pass:
    kinds = [({"+": "added", "-": "removed", "@": "place"}.get(x[:1], "same"), x) for x in changes.splitlines()[2:]]
    added, removed = (sum(kind == wanted for kind, _ in kinds) for wanted in ("added", "removed"))
    return Pass(name, milliseconds, added, removed, kinds)


def _programs(stats: CompileStats) -> list[Pass]:
    """Return the cached programs of a function, oldest first, each with what differs from the one before it."""
    found: list[Pass] = []
    before = None
    for number, program in enumerate(list(stats.cache)[::-1][:MAX_PROGRAMS], start=1):
        trace = program.traces[-1] if program.traces else None  # a saved program has no traces
        changes = "" if before is None or trace is None else diff_traces(before, trace)
        reason = "" if program.event is None else f": {program.event.reason}"
        found.append(_pass(f"program {number}{reason}", "", changes))
        before = trace or before
    return found


# -- memory -----------------------------------------------------------------------------------------------------------
def _chart(memory: MemoryReport, width: int = 720, height: int = 180) -> Chart:
    points = [memory.inputs, *[line.peak for line in memory.lines]]
    top = max([*points, 1])
    step = width / max(1, len(points))
    at = points.index(max(points))
    parts = [f"M0 {height}"]
    for i, n in enumerate(points):
        y = height - n / top * (height - 10)
        parts.append(f"L{i * step:.1f} {y:.1f} L{(i + 1) * step:.1f} {y:.1f}")
    sizes = [len(lines) for lines in memory.sections.values()]
    split = (1 + sizes[0]) * step if len(sizes) > 1 else None
    peak_y = height - points[at] / top * (height - 10)
    area = " ".join([*parts, f"L{width} {height} Z"])
    return Chart(area, width, height, (at + 0.5) * step, peak_y, split, in_bytes(memory.peak))


def _saved_values(forward: Trace) -> list[Proxy]:
    return output_proxies(forward.output[1])


def _origins(programs: dict[str, Trace], lines: dict[str, list[Line]]) -> dict[str, str]:
    """Return the type of each value, and the line of user code that computes it."""
    found = {p.name: f"{p.type_string()}, an input" for p in programs["forward"].args}
    for each in lines.values():
        for line in each:
            source = source_of(line.op)
            where = "" if source is None else f", {source.text()}"
            found.update({p.name: f"{p.type_string()}{where}" for p in line.outs})
    return found


def _saved(forward: Trace, origins: dict[str, str]) -> list[tuple[str, str, str, float]]:
    """Return the values that are saved for backward, largest first."""
    rows = [(p.name, bytes_of(p), origins.get(p.name, p.type_string())) for p in _saved_values(forward)]
    return _with_share(sorted(rows, key=lambda row: -row[1]), sum(size for _, size, _ in rows))


def _with_share(rows: Sequence[tuple[str, int, str]], whole: int) -> list[tuple[str, str, str, float]]:
    """Return the name, size, note and share of each value."""
    return [(name, in_bytes(size), note, 100 * size / max(whole, 1)) for name, size, note in rows]


def _guards(prologues: Sequence[Trace]) -> list[str]:
    """Return the conditions of the prologue, one a line."""
    if not prologues:
        return []
    lines = prologues[-1].python(depth=0, decorators=False).splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("def ")), 0)
    return [line.strip() for line in lines[start + 1 :] if line.strip() and not line.strip().startswith("#")]
