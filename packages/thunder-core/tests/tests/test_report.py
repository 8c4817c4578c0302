# SPDX-License-Identifier: Apache-2.0
"""The final table: what counts as claimed and passed, and how it is written."""

from __future__ import annotations

import json
from pathlib import Path

from thunder.tests.report import Outcome, Summary, write_report


def outcome(kind: str, operator: str, *, family: str = "shape", claimed: bool | None = True) -> Outcome:
    counted = {"executor": "acme", "operator": operator, "family": family, "claimed": claimed}
    return Outcome(kind, counted, f"test_x[{operator}]")


SUMMARY = Summary(
    [
        outcome("passed", "cat"),
        outcome("passed", "cat", claimed=False),
        outcome("passed", "flip"),
        outcome("failed", "flip", claimed=None),
        outcome("passed", "roll"),
        outcome("xfailed", "roll"),
        outcome("passed", "sum", family="reductions", claimed=False),
        outcome("passed", "mean", family="reductions"),
        outcome("skipped", "mean", family="reductions", claimed=None),
        outcome("passed", "fft", family="fft", claimed=False),
        outcome("passed", "rand", family="random", claimed=False),
    ]
)


def test_text() -> None:
    """One claim makes an operator claimed; a failure, known or not, keeps it from having passed."""
    assert SUMMARY.text("acme") == [
        "family                  claimed  passed  known failures  failed  total",
        "----------------------------------------------------------------------",
        "reductions                    1       1               0       0      2",
        "shape                         3       1               1       1      3",
        "2 families not claimed        0       0               0       0      2",
        "----------------------------------------------------------------------",
        "all                           4       2               1       1      7",
    ]


def test_json(tmp_path: Path) -> None:
    """Counts by executor, family and operator, with the tests that failed."""
    path = tmp_path / "deep" / "report.json"
    write_report(SUMMARY, path, {"torch": "2.13"})
    content = json.loads(path.read_text())
    assert content["environment"] == {"torch": "2.13"}
    acme = content["executors"]["acme"]
    assert acme["total"] == {"claimed": 4, "passed": 2, "known_failures": 1, "failed": 1, "total": 7}
    assert acme["families"]["reductions"]["total"] == 2
    assert acme["tests"] == {"passed": 8, "failed": 1, "xfailed": 1, "skipped": 1}
    assert acme["operators"]["flip"]["failures"] == ["test_x[flip]"]
    assert acme["operators"]["cat"]["passed"] is True


def test_markdown(tmp_path: Path) -> None:
    """A table that a page of the documentation can hold."""
    path = tmp_path / "report.md"
    write_report(SUMMARY, path, {"thunder": "0.1.0", "torch": "2.13"})
    lines = path.read_text().splitlines()
    assert lines[0] == "## Conformance of acme"
    assert "| shape | 3 | 1 | 1 | 1 | 3 |" in lines
    assert "| all | 4 | 2 | 1 | 1 | 7 |" in lines
    assert "Operators by family; tests: 8 passed, 1 failed, 1 xfailed, 1 skipped." in lines
    assert lines[-1] == "thunder 0.1.0, torch 2.13"
