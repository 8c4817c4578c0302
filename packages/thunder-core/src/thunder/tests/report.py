# SPDX-License-Identifier: Apache-2.0
"""The summary table of a conformance run: per family, how many operators the executor claimed and how many passed.

The table is computed from the user properties of test reports, which xdist sends to the process that prints the table.
An operator passes if it was claimed and all its tests passed. Known failures are counted separately.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Outcome", "Row", "Summary", "write_report"]

PASSED, FAILED, XFAILED, SKIPPED = "passed", "failed", "xfailed", "skipped"


@dataclass(frozen=True)
class Outcome:
    """One test's outcome with its counts."""

    outcome: str
    counted: Mapping[str, Any]
    nodeid: str = ""


@dataclass
class Operator:
    """The results of one operator."""

    name: str
    family: str
    claimed: bool = False
    tests: dict[str, int] = field(default_factory=lambda: dict.fromkeys((PASSED, FAILED, XFAILED, SKIPPED), 0))
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether the operator was claimed and has no failure. Known failures count as failures here."""
        return self.claimed and not self.tests[FAILED] and not self.tests[XFAILED]


@dataclass
class Row:
    """The row of a family in the table."""

    family: str
    claimed: int = 0
    passed: int = 0
    known_failures: int = 0
    failed: int = 0
    total: int = 0


_COLUMNS = ("family", "claimed", "passed", "known failures", "failed", "total")


class Summary:
    """The counts of a run, by executor."""

    def __init__(self, outcomes: Iterable[Outcome]):
        self.executors: dict[str, dict[str, Operator]] = {}
        for each in outcomes:
            counted = each.counted
            operators = self.executors.setdefault(counted["executor"], {})
            found = operators.setdefault(counted["operator"], Operator(counted["operator"], counted["family"]))
            found.tests[each.outcome] += 1
            found.claimed |= bool(counted["claimed"])
            if each.outcome == FAILED:
                found.failures.append(each.nodeid)

    def rows(self, executor: str) -> list[Row]:
        """Return the families of an executor by name, and their sum."""
        rows: dict[str, Row] = {}
        total = Row("all")
        for operator in self.executors[executor].values():
            row = rows.setdefault(operator.family, Row(operator.family))
            for each in (row, total):
                each.total += 1
                each.claimed += operator.claimed
                each.passed += operator.passed
                each.failed += bool(operator.tests[FAILED])
                each.known_failures += bool(operator.tests[XFAILED]) and not operator.tests[FAILED]
        return [*(rows[name] for name in sorted(rows)), total]

    def tests(self, executor: str) -> dict[str, int]:
        """Return the number of tests by outcome."""
        counts = dict.fromkeys((PASSED, FAILED, XFAILED, SKIPPED), 0)
        for operator in self.executors[executor].values():
            for outcome, number in operator.tests.items():
                counts[outcome] += number
        return counts

    def text(self, executor: str) -> list[str]:
        """Return the table as lines of text. Families without any claimed operator share one line."""
        *families, total = self.rows(executor)
        idle = [row for row in families if not (row.claimed or row.failed or row.known_failures)]
        rows = [row for row in families if row not in idle]
        if idle:
            rows.append(Row(f"{len(idle)} families not claimed", total=sum(row.total for row in idle)))
        cells = [_COLUMNS, *map(_cells, (*rows, total))]
        widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS))]
        lines = [
            "  ".join([line[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(line[1:], widths[1:]))])
            for line in cells
        ]
        return [lines[0], "-" * len(lines[0]), *lines[1:-1], "-" * len(lines[0]), lines[-1]]

    def markdown(self) -> str:
        """Return the tables as Markdown."""
        parts = []
        for executor in sorted(self.executors):
            lines = [
                f"## Conformance of {executor}",
                "",
                _markdown_line(_COLUMNS),
                "|---|" + "---:|" * (len(_COLUMNS) - 1),
            ]
            lines += [_markdown_line(_cells(row)) for row in self.rows(executor)]
            counts = ", ".join(f"{number} {outcome}" for outcome, number in self.tests(executor).items() if number)
            lines += ["", f"Operators by family; tests: {counts}."]
            parts.append("\n".join(lines))
        return "\n\n".join(parts) + "\n"

    def data(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        out: dict[str, Any] = {}
        for executor, operators in sorted(self.executors.items()):
            rows = self.rows(executor)
            out[executor] = {
                "total": _row_data(rows[-1]),
                "families": {row.family: _row_data(row) for row in rows[:-1]},
                "tests": self.tests(executor),
                "operators": {
                    name: {
                        "family": op.family,
                        "claimed": op.claimed,
                        "passed": op.passed,
                        "tests": op.tests,
                        "failures": op.failures,
                    }
                    for name, op in sorted(operators.items())
                },
            }
        return out


def _cells(row: Row) -> tuple[str, ...]:
    return (row.family, *map(str, (row.claimed, row.passed, row.known_failures, row.failed, row.total)))


def _markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row_data(row: Row) -> dict[str, int]:
    return {
        "claimed": row.claimed,
        "passed": row.passed,
        "known_failures": row.known_failures,
        "failed": row.failed,
        "total": row.total,
    }


def write_report(summary: Summary, path: Path, environment: Mapping[str, str]) -> None:
    """Write the counts as JSON (`.json`) or as Markdown (anything else)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        content = {"environment": dict(environment), "executors": summary.data()}
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    else:
        told = ", ".join(f"{key} {value}" for key, value in environment.items())
        path.write_text(f"{summary.markdown()}\n{told}\n", encoding="utf-8")
