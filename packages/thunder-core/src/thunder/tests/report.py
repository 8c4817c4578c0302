# SPDX-License-Identifier: Apache-2.0
"""The summary table of a conformance run: per family, how many operators the executor claimed and how many passed.

The table is computed from the user properties of test reports, which xdist sends to the process that prints the table.
An operator passes if it was claimed and all its tests passed. Known failures are counted separately.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Outcome", "Row", "Run", "Summary", "command_line", "write_report"]

PASSED, FAILED, XFAILED, SKIPPED = "passed", "failed", "xfailed", "skipped"


@dataclass(frozen=True)
class Outcome:
    """One test's outcome with its counts."""

    outcome: str
    counted: Mapping[str, Any]
    nodeid: str = ""


@dataclass(frozen=True)
class Run:
    """How the results of a table were made.

    `command` is the command of all shards. `selected` is the number of tests to run, and `finished` the number of those
    that ended. `matrix` is a digest of the tests of all shards. `failed` are tests that belong to no operator.
    """

    command: str
    environment: Mapping[str, str]
    selected: int = 0
    finished: int = 0
    matrix: str | None = None
    shard: str | None = None
    failed: tuple[str, ...] = ()

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Run:
        """Return the run that `asdict` made plain data of."""
        return cls(**{**data, "failed": tuple(data["failed"])})

    @property
    def complete(self) -> bool:
        """Whether every test ended, and each test that failed is in the table."""
        return self.finished == self.selected and not self.failed

    def lines(self) -> list[str]:
        """Return the paragraph below the tables."""
        told = ", ".join(f"{key} {value}" for key, value in self.environment.items())
        lines = [f"Command: `{self.command}`; {told}."]
        if self.finished != self.selected:
            lines.append(f"Incomplete: only {self.finished} of {self.selected} tests ended.")
        if self.failed:
            lines.append(f"Failed, and not in the table: {', '.join(self.failed)}.")
        return lines


# Options about where results are written and which part of the tests runs. They do not change the merged table.
_OF_ONE_RUN = ("--thunder-report", "--thunder-shard", "--thunder-log")


def command_line(arguments: Sequence[str]) -> str:
    """Return the command that makes a table, from pytest's arguments."""
    kept: list[str] = []
    value_follows = False
    for argument in arguments:
        if not value_follows and argument.partition("=")[0] not in _OF_ONE_RUN:
            kept.append(argument)
        value_follows = not value_follows and argument in _OF_ONE_RUN
    if kept[:3] == ["--pyargs", "thunder.tests", "--executor"]:
        return shlex.join(["python", "-m", "thunder", "conformance", *kept[3:]])
    return shlex.join(["python", "-m", "pytest", *kept])


@dataclass
class Operator:
    """The results of one operator."""

    name: str
    family: str
    claimed: bool = False
    tests: dict[str, int] = field(default_factory=lambda: dict.fromkeys((PASSED, FAILED, XFAILED, SKIPPED), 0))
    failures: list[str] = field(default_factory=list)
    place: str | None = None  # the file and line of the executor's function

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
    """The counts of a run, by executor, the sources of each executor, and what the run left out.

    The sources are one, unless they changed meanwhile.
    """

    def __init__(self, outcomes: Iterable[Outcome] = ()):
        self.executors: dict[str, dict[str, Operator]] = {}
        self.sources: dict[str, set[str]] = {}
        self.left_out: dict[str, dict[str, None]] = {}  # in order
        for each in outcomes:
            counted = each.counted
            sources = self.sources.setdefault(counted["executor"], set())
            if counted.get("sources"):
                sources.add(counted["sources"])
            self.left_out.setdefault(counted["executor"], {}).update(dict.fromkeys(counted.get("not_tested", ())))
            operators = self.executors.setdefault(counted["executor"], {})
            found = operators.setdefault(counted["operator"], Operator(counted["operator"], counted["family"]))
            found.tests[each.outcome] += 1
            found.claimed |= bool(counted["claimed"])
            found.place = found.place or counted.get("place")
            if each.outcome == FAILED:
                found.failures.append(each.nodeid)

    @classmethod
    def merged(cls, parts: Iterable[Mapping[str, Any]]) -> Summary:
        """Return the summary of the parts that `data` returned."""
        summary = cls()
        for part in parts:
            for executor, told in part.items():
                summary.sources.setdefault(executor, set()).update(told["sources"])
                summary.left_out.setdefault(executor, {}).update(dict.fromkeys(told.get("left_out", ())))
                operators = summary.executors.setdefault(executor, {})
                for name, counts in told["operators"].items():
                    found = operators.setdefault(name, Operator(name, counts["family"]))
                    found.claimed |= counts["claimed"]
                    found.place = found.place or counts.get("place")
                    found.failures += counts["failures"]
                    for outcome, number in counts["tests"].items():
                        found.tests[outcome] += number
        return summary

    @property
    def failed(self) -> bool:
        """Whether a test of an operator failed."""
        return any(self.tests(executor)[FAILED] for executor in self.executors)

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

    def not_tested(self, executor: str) -> list[str]:
        """Return what the run did not test: what it left out, and the operators all of whose tests were skipped."""
        operators = self.executors[executor].values()
        skipped = [op.name for op in operators if op.tests[SKIPPED] and op.tests[SKIPPED] == sum(op.tests.values())]
        return [*self.left_out[executor], *([f"{', '.join(sorted(skipped))} (all tests skipped)"] if skipped else [])]

    def notes(self, executor: str) -> list[str]:
        """Return the lines below the table: where the function of each failed operator is, and what was not tested."""
        lines = []
        for name, operator in sorted(self.executors[executor].items()):
            if failures := operator.tests[FAILED]:
                tests = f"{failures} test{'s' if failures > 1 else ''} failed"
                lines.append(f"{operator.place or executor}: {name}: {tests}")
        return lines + [f"not tested: {each}" for each in self.not_tested(executor)]

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
            lines += ["", *(f"Not tested: {each}." for each in self.not_tested(executor))]
            lines += ["", *(f"Sources: {sources}." for sources in sorted(self.sources[executor]) or ["unknown"])]
            parts.append("\n".join(lines))
        return "\n\n".join(parts) + "\n"

    def data(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        out: dict[str, Any] = {}
        for executor, operators in sorted(self.executors.items()):
            rows = self.rows(executor)
            out[executor] = {
                "sources": sorted(self.sources[executor]),
                "left_out": list(self.left_out[executor]),
                "not_tested": self.not_tested(executor),
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
                        "place": op.place,
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


def write_report(summary: Summary, path: Path, run: Run) -> None:
    """Write the counts as JSON (`.json`) or as Markdown (anything else)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        content = {"run": asdict(run), "executors": summary.data()}
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    else:
        path.write_text("\n".join([summary.markdown(), *run.lines(), ""]), encoding="utf-8")
