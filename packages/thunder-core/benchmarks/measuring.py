# SPDX-License-Identifier: Apache-2.0
"""Helpers of the benchmarks: interleaved repetitions, a table, and the description of the machine.

Times are CPU times of the process (one torch thread), so that other processes have little influence.
Candidates of one row are interleaved: a row's numbers are the best of several repetitions, and its spread is that of
the ratios of single repetitions.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

__all__ = ["Bar", "Report", "Row", "alternate", "best", "machine", "parser", "per_call"]


def machine() -> str:
    """Describe the machine and the versions, in one line."""
    import torch

    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    python = f"Python {platform.python_version()}"
    if torch.cuda.is_available():
        return f"machine with an {torch.cuda.get_device_name()}, {python}, torch {torch.__version__}"
    return (
        f"{os.cpu_count()}-core {platform.machine()} ({model}), {python}, torch {torch.__version__}, one torch thread"
    )


def parser(about: str) -> argparse.ArgumentParser:
    """Return a parser for the options of every benchmark."""
    found = argparse.ArgumentParser(description=about)
    found.add_argument("--repetitions", type=int, default=7, help="how often each row is measured (default: 7)")
    found.add_argument("--rows", default="", help="only rows whose name contains this")
    found.add_argument("--markdown", type=Path, help="also write the table to this file, as Markdown")
    found.add_argument("--json", type=Path, help="also write the numbers to this file")
    return found


def once(run: Callable[[], Any]) -> float:
    """Measure one run, in seconds."""
    start = process_time()
    run()
    return process_time() - start


def per_call(run: Callable[[], Any], seconds: float = 0.05) -> float:
    """Measure one of many runs, in seconds."""
    run()
    number = 1
    while (took := many(run, number)) < seconds:
        number = max(2 * number, int(number * seconds / max(took, 1e-6) * 1.1))
    return took / number


def many(run: Callable[[], Any], number: int) -> float:
    """Measure `number` runs, in seconds."""
    turns = range(number)
    start = process_time()
    for _ in turns:
        run()
    return process_time() - start


def alternate(candidates: Mapping[str, Callable[[], float]], repetitions: int) -> dict[str, list[float]]:
    """Measure all candidates, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repetitions):
        for name, measure in candidates.items():
            gc.collect()
            gc.disable()
            try:
                times[name].append(measure())
            finally:
                gc.enable()
    return times


def best(times: list[float]) -> float:
    """Return the best time, the one with the least interference."""
    return min(times)


class Bar(NamedTuple):
    """A target: the limit of a ratio."""

    of: str
    found: float
    limit: float
    low: float = 0.0
    high: float = 0.0

    def __str__(self) -> str:
        spread = f" ({self.low:.2f} to {self.high:.2f})" if self.high else ""
        return f"{self.found:.2f}{spread} of {self.of}, at most {self.limit:g}{'' if self.met else ' — NOT MET'}"

    @property
    def met(self) -> bool:
        return self.found <= self.limit


def ratio(of: str, limit: float, ours: list[float], theirs: list[float]) -> Bar:
    """Compare our times with theirs: the best ones, and the middle half of the ratios of single repetitions."""
    each = sorted(a / b for a, b in zip(ours, theirs))
    low, high = (each[0], each[-1]) if len(each) < 4 else statistics.quantiles(each, n=4)[::2]
    return Bar(of, best(ours) / best(theirs), limit, low, high)


class Row(NamedTuple):
    """A row of a table: its name, each candidate's number as text, and the targets."""

    name: str
    cells: dict[str, str]
    bars: tuple[Bar, ...] = ()
    numbers: dict[str, Any] | None = None


class Report:
    """Rows, printed as they are measured, and the table at the end."""

    def __init__(self, title: str, script: str, columns: list[str]):
        self.title = title
        self.script = script
        self.columns = columns
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        """Add a row and print it."""
        self.rows.append(row)
        cells = "  ".join(f"{name} {text}" for name, text in row.cells.items())
        print(f"{row.name}: {cells}", *(f"    {bar}" for bar in row.bars), sep="\n", flush=True)

    def markdown(self) -> str:
        """Return the table."""
        barred = any(row.bars for row in self.rows)
        head = ["what", *self.columns, *(["ratio and target"] if barred else [])]
        lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        for row in self.rows:
            cells = [row.cells.get(name, "") for name in self.columns]
            bars = ["; ".join(map(str, row.bars))] if barred else []
            lines.append(f"| {' | '.join([row.name, *cells, *bars])} |")
        today = datetime.date.today().isoformat()
        return "\n".join([f"Measured {today} on a {machine()}.", "", *lines, ""])

    def finish(self, options: argparse.Namespace) -> None:
        """Print the table and write the requested files; exit with 1 when a target is missed."""
        print("\n" + self.markdown())
        if options.markdown:
            options.markdown.write_text(self.markdown(), encoding="utf-8")
        if options.json:
            rows = [
                {
                    "name": row.name,
                    "cells": row.cells,
                    "numbers": row.numbers or {},
                    "bars": [{**bar._asdict(), "met": bar.met} for bar in row.bars],
                }
                for row in self.rows
            ]
            found = {
                "date": datetime.date.today().isoformat(),
                "machine": machine(),
                "command": f"python {' '.join(sys.argv)}",
                "rows": rows,
            }
            options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
        sys.exit(0 if all(bar.met for row in self.rows for bar in row.bars) else 1)


def milliseconds(seconds: float) -> str:
    """Format a time."""
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.2f} ms"


def microseconds(seconds: float) -> str:
    """Format a time."""
    return f"{seconds * 1e6:.1f} µs"
