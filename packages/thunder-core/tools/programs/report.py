# SPDX-License-Identifier: Apache-2.0
"""The results as a table in the terminal and as a page of the documentation."""

from __future__ import annotations

import datetime
import os
import platform
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from programs.pool import load
from programs.projects import MODULES, RULE
from programs.results import VERDICTS, Result
from thunder.core.tables import format_table

__all__ = ["page", "problems", "summary", "table"]

HEADER = ["program", "verdict", "inside", "retraces", "first call", "warm/eager", "torch.compile"]
_GOOD = ("compiled", "paths", "pieces", "eager")


def problems(results: Iterable[Result]) -> list[Result]:
    """Return the results that must not occur."""
    return [result for result in results if result.verdict not in _GOOD]


def summary(results: Sequence[Result]) -> str:
    """Return the totals."""
    counts = Counter(result.verdict for result in results)
    lines = [f"{counts[verdict]:4} {verdict}" for verdict in VERDICTS if counts[verdict]]
    lines.append(f"{len(results):4} programs of {len({result.project for result in results})} projects")
    if ratios := [result.ratio for result in results if result.ratio is not None]:
        lines.append(f"warm call over eager: median {statistics.median(ratios):.2f}")
        lines.append(f"{sum(ratio > 1.15 for ratio in ratios)} of {len(ratios)} are slower than 1.15 x eager")
    theirs = [r.dynamo / r.eager for r in results if r.dynamo is not None and r.eager is not None]
    if theirs:
        lines.append(f"the same of torch.compile(backend='aot_eager'): median {statistics.median(theirs):.2f}")
    return "\n".join(lines)


def table(results: Sequence[Result]) -> str:
    """Return the table for a terminal."""
    return format_table(HEADER, [[result.key, *_cells(result)] for result in results])


def _cells(result: Result) -> list[str]:
    theirs = "error" if result.dynamo_error else "-"
    if result.dynamo is not None and result.eager and result.dynamo_first is not None:
        theirs = f"{result.dynamo_first:.2f} s, {result.dynamo / result.eager:.2f}"
    return [
        result.verdict,
        "-" if result.share is None else f"{100 * result.share:.0f} %",
        str(result.retraces),
        "-" if result.first is None else f"{result.first:.2f} s",
        "-" if result.ratio is None else f"{result.ratio:.2f}",
        theirs,
    ]


_INTRODUCTION = """
# Programs of other projects

`python -m nox -s programs` runs examples of other projects' documentation under `thunder.jit`, and compares results,
gradients and state with eager PyTorch, call by call. The same command writes this page (`-- --page docs/projects.md`).
"""
_METHOD = """
## Measurement

- **Inside** is the share of the operators of a warm call that a compiled program calls. Operators are those that torch
  dispatches. The other operators belong to calls of Python code that runs eagerly.
- **Retraces** are those of ten calls on fresh data after the second call, and of up to sixty more if there were three.
- A value may differ from eager's by 1e-4 (float32) or 1e-9 (float64), relative to the largest value among the
  results, the gradients or the state.
- Times are CPU times of one thread. Warm calls of eager, `thunder.jit` and `torch.compile(backend="aot_eager")` take
  turns in ten rounds, and the shortest time counts. Programs that train include the backward pass. Both compilers
  compile another function before a first call is timed.
- **Warm/eager** is the time of a warm call over that of eager PyTorch. The last column contains the first call of
  `torch.compile` and its ratio to eager.
"""


def page(results: Sequence[Result]) -> str:
    """Return the page of the documentation."""
    counts = Counter(result.verdict for result in results)
    lines = [*_INTRODUCTION.strip().splitlines(), "", "| verdict | programs | meaning |", "|---|---|---|"]
    lines += [f"| {verdict} | {counts[verdict]} | {meaning} |" for verdict, meaning in VERDICTS.items()]
    lines += ["", "```text", summary(results), "```", ""]
    versions = f"PyTorch {torch.__version__} and Python {platform.python_version()}"
    lines += [f"Written on {datetime.date.today().isoformat()} with {versions}, on {_machine()}.", ""]
    missing = sum(len(load(module).programs) for module in MODULES) - len(results)
    lines += [f"{missing} programs of the list were not run this time.", ""] if missing > 0 else []
    lines += [*RULE.strip().splitlines(), "", *_METHOD.strip().splitlines()]
    for module in MODULES:
        project = load(module)
        rows = [result for result in results if result.project == project.name]
        if not rows:
            continue
        rank = "" if project.rank is None else f" (rank {project.rank})"
        lines += ["", f"## {project.name}{rank}", "", f"`{' '.join(project.requires)}`", ""]
        lines += ["| program | example | " + " | ".join(HEADER[1:]) + " |", "|---" * (len(HEADER) + 1) + "|"]
        for result in rows:
            example = project.programs[result.name].example if result.name in project.programs else ""
            lines.append(f"| {result.name} | {example} | " + " | ".join(_cells(result)) + " |")
    rest = [result for result in results if result.verdict != "compiled"]
    if rest:
        lines += [
            "",
            "## Programs that are not compiled as a whole",
            "",
            "| program | verdict | reason |",
            "|---|---|---|",
        ]
        for result in rest:
            reason = re.sub(r"\S*/site-packages/", "", " ".join(result.reason.split())).replace("|", "/")
            reason = re.sub(r"/\S*/(?=tools/)", "", reason)[:300]
            lines.append(f"| {result.key} | {result.verdict} | {reason} |")
    return "\n".join(lines) + "\n"


def _machine() -> str:
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    return f"{os.cpu_count()} CPU cores ({names[0] if names else platform.machine()})"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
