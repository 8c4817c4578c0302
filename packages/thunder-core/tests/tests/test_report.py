# SPDX-License-Identifier: Apache-2.0
"""The final table: what counts as claimed and passed, and how it is written."""

from __future__ import annotations

import json
from pathlib import Path

from thunder.tests.report import Outcome, Run, Summary, command_line, write_report

SOURCES = "thunder-ex-acme 1.0, sha256:" + 64 * "0"
RUN = Run("python -m thunder conformance acme", {"thunder": "0.1.0", "torch": "2.13"}, selected=3, finished=3)


def outcome(kind: str, operator: str, *, family: str = "shape", claimed: bool | None = True) -> Outcome:
    counted = {"executor": "acme", "operator": operator, "family": family, "claimed": claimed, "sources": SOURCES}
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


def test_notes() -> None:
    """Below the table: the place of each failed operator, and what was not tested, also after a merge."""
    counted = {
        **outcome("failed", "flip").counted,
        "place": "acme/flip.py:12",
        "not_tested": ["cuda (none)", "float16"],
    }
    skipped = outcome("skipped", "mean")
    summary = Summary([Outcome("failed", counted, "test_x"), Outcome("failed", counted, "test_y"), skipped])
    notes = [
        "acme/flip.py:12: flip: 2 tests failed",
        "not tested: cuda (none)",
        "not tested: float16",
        "not tested: mean (all tests skipped)",
    ]
    assert summary.notes("acme") == notes
    assert Summary.merged([summary.data()]).notes("acme") == notes
    assert "Not tested: float16." in summary.markdown().splitlines()
    assert SUMMARY.notes("acme") == ["acme: flip: 1 test failed"]


def test_json(tmp_path: Path) -> None:
    """Counts by executor, family and operator, with the tests that failed."""
    path = tmp_path / "deep" / "report.json"
    write_report(SUMMARY, path, RUN)
    content = json.loads(path.read_text())
    assert Run.from_data(content["run"]) == RUN
    acme = content["executors"]["acme"]
    assert acme["sources"] == [SOURCES]
    assert acme["total"] == {"claimed": 4, "passed": 2, "known_failures": 1, "failed": 1, "total": 7}
    assert acme["families"]["reductions"]["total"] == 2
    assert acme["tests"] == {"passed": 8, "failed": 1, "xfailed": 1, "skipped": 1}
    assert acme["operators"]["flip"]["failures"] == ["test_x[flip]"]
    assert acme["operators"]["cat"]["passed"] is True


def test_markdown(tmp_path: Path) -> None:
    """A table that a page of the documentation can hold."""
    path = tmp_path / "report.md"
    write_report(SUMMARY, path, RUN)
    lines = path.read_text().splitlines()
    assert lines[0] == "## Conformance of acme"
    assert "| shape | 3 | 1 | 1 | 1 | 3 |" in lines
    assert "| all | 4 | 2 | 1 | 1 | 7 |" in lines
    assert "Operators by family; tests: 8 passed, 1 failed, 1 xfailed, 1 skipped." in lines
    assert f"Sources: {SOURCES}." in lines
    assert lines[-1] == "Command: `python -m thunder conformance acme`; thunder 0.1.0, torch 2.13."


def test_sources_that_changed_meanwhile() -> None:
    """All of them are told; those of an executor of no distribution are unknown."""
    changed = Outcome("passed", {**outcome("passed", "cat").counted, "sources": "thunder-ex-acme 1.1, sha256:1"})
    lines = Summary([outcome("passed", "cat"), changed]).markdown().splitlines()
    assert [line for line in lines if line.startswith("Sources")] == [
        f"Sources: {SOURCES}.",
        "Sources: thunder-ex-acme 1.1, sha256:1.",
    ]
    unknown = Outcome("passed", {**changed.counted, "sources": None})
    assert "Sources: unknown." in Summary([unknown]).markdown()


def test_a_run_that_was_not_whole(tmp_path: Path) -> None:
    """Tests that did not end, and those that failed and belong to no operator, are told below the table."""
    run = Run("python -m pytest", {}, selected=9, finished=4, failed=("test_claims_something[acme]", "test_b[acme]"))
    path = tmp_path / "report.md"
    write_report(SUMMARY, path, run)
    assert path.read_text().splitlines()[-2:] == [
        "Incomplete: only 4 of 9 tests ended.",
        "Failed, and not in the table: test_claims_something[acme], test_b[acme].",
    ]
    assert not run.complete
    assert RUN.complete


def test_command_line() -> None:
    """The command of the whole table, without where it is written and which shard ran."""
    suite = ["--pyargs", "thunder.tests", "--executor", "acme"]
    one_run = ["--thunder-shard", "1/4", "--thunder-report=elsewhere/a.json", "--thunder-shard=2/4"]
    assert command_line([*suite, "-k", "a or b", *one_run, "-x"]) == "python -m thunder conformance acme -k 'a or b' -x"
    assert command_line(["--executor", "acme", "tests"]) == "python -m pytest --executor acme tests"
