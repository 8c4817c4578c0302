# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder trace FILE.py:NAME`: compile a program, and print its final traces. The program does not run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thunder.cli.target import BadTarget, add_target_parser, file_to_write, load_target
from thunder.cli.terminal import highlighted, painted

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = add_target_parser(subparsers, "trace", __doc__, run, help="compile a program, and print its traces")
    parser.add_argument("--executors", metavar="NAMES", help="executors in order, separated by commas")
    parser.add_argument("--passes", action="store_true", help="list the passes, with the lines that each one changes")
    parser.add_argument("--at", metavar="PASS", help="print the trace after a pass: its number or name")
    parser.add_argument("--guards", action="store_true", help="print the guards (the prologue), too")
    parser.add_argument("--depth", type=int, default=0, help="levels of decomposition to show (default: 0)")
    parser.add_argument(
        "--html", metavar="PATH", type=file_to_write, help="write an HTML page about the program to this file"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Compile the program and print its traces."""
    # The imports are local because they import torch, and other commands work without torch.
    from thunder.examine.page import page_of
    from thunder.examine.program import compile_call

    target = load_target(args.target, args.input, args.seed)
    executors = args.executors.split(",") if args.executors else None
    call = compile_call(target.fn, target.args, target.kwargs, executors)
    if args.html:
        Path(args.html).write_text(page_of(call), encoding="utf-8")
    programs = {"forward": call.specialization.traces}
    if call.differentiable is not None:
        programs["backward"] = call.differentiable.unrecorded_traces
    guards = call.specialization.prologue_traces[-1] if call.specialization.prologue_traces else None
    if args.json:
        told = {
            "target": args.target,
            "programs": {name: _to_dict(traces, args) for name, traces in programs.items()},
            "guards": None if guards is None else guards.python(depth=0),
        }
        print(json.dumps(told, indent=2))
        return 0
    if args.html:
        print(f"written to {args.html}")
        return 0
    for name, traces in programs.items():
        print(painted(f"# {name} program", "bold"))
        if args.passes:
            print("\n".join(_passes(traces)))
        else:
            print(highlighted(_selected(traces, args.at).python(depth=args.depth)))
        print()
    if args.guards:
        print(painted("# guards", "bold"))
        print(highlighted(guards.python(depth=0)) if guards is not None else call.captured.uncacheable)
    return 0


def _name(trace: Any) -> str:
    return "capture" if trace.provenance is None else str(trace.provenance.name)


def _selected(traces: Sequence[Any], at: str | None) -> Any:
    """Return the trace after a pass, which is given by its number or name. The default is the last trace."""
    if at is None:
        return traces[-1]
    if at.isdigit() and int(at) < len(traces):
        return traces[int(at)]
    found = [trace for trace in traces if _name(trace).lower() == at.lower()]
    if not found:
        names = ", ".join(f"{i} {_name(trace)}" for i, trace in enumerate(traces))
        raise BadTarget(f"--at {at}: there is no such pass. The passes are {names}")
    return found[-1]


def _passes(traces: Sequence[Any]) -> list[str]:
    """Return a line for each pass: its number, name, duration, and the numbers of lines that it adds and removes."""
    # The import is local because it imports torch, and other commands work without torch.
    from thunder.core.provenance import diff_traces
    from thunder.core.tables import format_table

    rows: list[tuple[Any, ...]] = []
    for number, trace in enumerate(traces):
        changes = diff_traces(traces[number - 1], trace).splitlines()[2:] if number else []
        added, removed = (sum(line.startswith(mark) for line in changes) for mark in "+-")
        took = trace.provenance and trace.provenance.nanoseconds
        seconds = "" if took is None else f"{took / 1e6:.1f} ms"
        rows.append((number, _name(trace), seconds, f"+{added} -{removed}" if added or removed else ""))
    return format_table(("", "pass", "took", "lines"), rows).splitlines()


def _to_dict(traces: Sequence[Any], args: argparse.Namespace) -> dict[str, Any]:
    # The import is local because it imports torch, and other commands work without torch.
    from thunder.examine.lines import Line, lines_of

    final = _selected(traces, args.at)
    lines: list[Line] = list(lines_of("", final))
    operations = [
        {"name": x.op.sym.name, "executor": x.executor, "computes": x.computes, "text": x.text, "where": x.where()}
        for x in lines
    ]
    passes = [{"name": _name(t), "nanoseconds": t.provenance and t.provenance.nanoseconds} for t in traces]
    return {"pass": _name(final), "text": final.python(depth=args.depth), "operations": operations, "passes": passes}
