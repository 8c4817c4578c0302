# SPDX-License-Identifier: Apache-2.0
"""pytest plugin of thunder: the options and the final table of the conformance suite.

It is a top-level module so that pytest, which imports every entry point at start, does not import thunder itself; what
needs thunder is imported when a conformance test has run. (Options in the suite's own conftest would not be found with
`--pyargs thunder.tests`: pytest looks for those by path only.)
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
from collections.abc import Generator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

PROPERTY = "thunder_conformance"
_GROUP = "thunder"
# Outcome, what the test counted, and its node id, for each test of this session.
_outcomes: list[tuple[str, dict[str, Any], str]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that no other project is likely to have."""
    group = parser.getgroup(_GROUP, "conformance suite of thunder (--pyargs thunder.tests)")
    group.addoption(
        "--thunder-executor",
        dest="thunder_executor",
        metavar="NAME",
        help="the executor to test, or several with commas between them (default: torch); also --executor",
    )
    group.addoption(
        "--thunder-device",
        dest="thunder_device",
        metavar="DEVICE",
        help="the device to test on, or several (default: what the executor's profile says and the machine has)",
    )
    group.addoption(
        "--thunder-dtypes",
        dest="thunder_dtypes",
        metavar="NAMES",
        help="the dtypes to test, such as float32,bfloat16 (default: one of each kind)",
    )
    group.addoption(
        "--thunder-full", dest="thunder_full", action="store_true", default=False, help="test every dtype there is"
    )
    group.addoption(
        "--thunder-report",
        dest="thunder_report",
        metavar="PATH",
        help="write the final table there: as JSON where the name ends in .json, else as Markdown",
    )


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser) -> Generator[None, None, None]:
    """Adds `--executor` once the project's own conftests have added their options, unless one of them has it too."""
    yield
    # Refused: the project has an option of that name; then ours is --thunder-executor alone.
    with contextlib.suppress(ValueError, argparse.ArgumentError):
        parser.getgroup(_GROUP).addoption(
            "--executor", dest="thunder_executor", metavar="NAME", help="the same as --thunder-executor"
        )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Starts counting anew: one process may run several sessions."""
    _outcomes.clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Counts the tests of the suite; with several workers this runs in the process that prints."""
    counted = next((value for key, value in report.user_properties if key == PROPERTY), None)
    if not isinstance(counted, dict):
        return
    if report.when == "call":
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.skipped else "passed"
        else:
            outcome = report.outcome
        _outcomes.append((outcome, counted, report.nodeid))
    elif report.failed:
        _outcomes.append(("failed", counted, report.nodeid))
    elif report.when == "setup" and report.skipped:
        _outcomes.append(("xfailed" if hasattr(report, "wasxfail") else "skipped", counted, report.nodeid))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints the table, and writes it where `--thunder-report` says."""
    if not _outcomes:
        return
    report = importlib.import_module("thunder.tests.report")
    summary = report.Summary(report.Outcome(*each) for each in _outcomes)
    for executor in sorted(summary.executors):
        terminalreporter.section(f"conformance of {executor}")
        for line in summary.text(executor):
            terminalreporter.write_line(line)
    path = config.getoption("thunder_report")
    if path:
        report.write_report(summary, Path(path), _environment())
        terminalreporter.write_line(f"written to {path}")


def _environment() -> dict[str, str]:
    names = {"thunder": "thunder-core", "torch": "torch"}
    out = {}
    for name, distribution in names.items():
        try:
            out[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            out[name] = "unknown"
    return out
