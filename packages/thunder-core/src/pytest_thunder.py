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
import json
from collections.abc import Generator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

PROPERTY = "thunder_conformance"
_GROUP = "thunder"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options that no other project is likely to have."""
    group = parser.getgroup(_GROUP, "conformance suite of thunder (--pyargs thunder.tests)")
    group.addoption(
        "--thunder-executor",
        dest="thunder_executor",
        metavar="NAME",
        help="the executor to test, or several with commas between them (default: torch and each installed plugin); "
        "also --executor",
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
        "--thunder-family", dest="thunder_family", metavar="NAMES", help="test only operators of these families"
    )
    group.addoption(
        "--thunder-shard",
        dest="thunder_shard",
        metavar="I/N",
        help="run only the I-th of N parts of the tests; `python -m thunder conformance --merge` merges their reports",
    )
    group.addoption(
        "--thunder-log",
        dest="thunder_log",
        metavar="PATH",
        help="write a line of JSON there whenever a test starts and ends",
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out the skipped tests that stand for tests of the suite without a case for this executor."""
    items[:] = [item for item in items if not _is_without_case(item)]


def _is_without_case(item: pytest.Item) -> bool:
    params = getattr(getattr(item, "callspec", None), "params", {})
    module = getattr(getattr(item, "module", None), "__name__", "")
    if not module.startswith("thunder.tests."):
        return False
    return ("case" in params and not hasattr(params["case"], "counted")) or (
        "target" in params and not hasattr(params["target"], "executor")
    )


def pytest_configure(config: pytest.Config) -> None:
    """Counts for this session alone: one process may run several, one inside of the other."""
    # A worker of xdist sends its reports to the process that prints and writes.
    path = None if hasattr(config, "workerinput") else config.getoption("thunder_log", None)
    shard = config.getoption("thunder_shard", None)
    if shard is not None:
        shards = importlib.import_module("thunder.tests.shards")
        try:
            shard = shards.Shard.parse(shard)
        except shards.BadShards as error:
            raise pytest.UsageError(str(error)) from None
    config.pluginmanager.register(_Table(Path(path) if path else None, shard), "thunder-conformance-table")


class _Table:
    """Counts the tests of the suite and prints the table; with several workers, in the process that prints."""

    def __init__(self, log: Path | None = None, shard: Any = None) -> None:
        # Outcome, what the test counted, and its node id.
        self.outcomes: list[tuple[str, dict[str, Any], str]] = []
        self.failed: list[str] = []
        self.finished: set[str] = set()
        self.selected = 0
        self.matrix: str | None = None
        self.shard = shard
        self.log = log

    def _write(self, **line: Any) -> None:
        """Write what happens as it happens, since the process may crash."""
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")

    @pytest.hookimpl(trylast=True)  # after -k and -m
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselects the tests of other shards."""
        matrix = None
        if self.shard is not None:
            ids = [_without_folder(item.nodeid) for item in items]
            matrix = importlib.import_module("thunder.tests.shards").digest(ids)
            mine = self.shard.select(ids)
            others = [item for item, selected in zip(items, mine) if not selected]
            items[:] = [item for item, selected in zip(items, mine) if selected]
            config.hook.pytest_deselected(items=others)
        if hasattr(config, "workeroutput"):
            config.workeroutput["thunder_collected"] = (len(items), matrix)
        else:
            self._collected(len(items), matrix)

    def _collected(self, selected: int, matrix: str | None) -> None:
        self.selected, self.matrix = selected, matrix
        self._write(selected=selected, matrix=matrix)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Notes what a worker of xdist has collected; each collects the same."""
        found = getattr(node, "workeroutput", {}).get("thunder_collected")
        if found is not None and not self.selected:
            self._collected(*found)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes what could not be collected."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Notes which test runs."""
        self._write(start=nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Notes that it has ended."""
        self.finished.add(nodeid)
        self._write(end=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts a test that has run, or failed before it could."""
        counted = next((value for key, value in report.user_properties if key == PROPERTY), None)
        if not isinstance(counted, dict):
            if report.failed:
                self.failed.append(report.nodeid)
            return
        known = hasattr(report, "wasxfail")
        if report.when == "call":
            outcome = ("xfailed" if report.skipped else "passed") if known else report.outcome
        elif report.failed:
            outcome = "failed"
        elif report.when == "setup" and report.skipped:
            outcome = "xfailed" if known else "skipped"
        else:
            return
        self.outcomes.append((outcome, counted, report.nodeid))
        self._write(outcome=outcome, counted=counted, nodeid=report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Prints the table, and writes it where `--thunder-report` says."""
        if not self.outcomes and self.shard is None:
            return
        report = importlib.import_module("thunder.tests.report")
        summary = report.Summary(report.Outcome(*each) for each in self.outcomes)
        for executor in sorted(summary.executors):
            terminalreporter.section(f"conformance of {executor}")
            for line in (*summary.text(executor), *summary.notes(executor)):
                terminalreporter.write_line(line)
        path = config.getoption("thunder_report")
        if path:
            run = report.Run(
                report.command_line(config.invocation_params.args),
                environment(),
                selected=self.selected,
                finished=len(self.finished),
                matrix=self.matrix,
                shard=None if self.shard is None else str(self.shard),
                failed=tuple(self.failed),
            )
            report.write_report(summary, Path(path), run)
            terminalreporter.write_line(f"written to {path}")


def _without_folder(nodeid: str) -> str:
    """Return the id of a test without the place where its file is installed."""
    file, colons, rest = nodeid.partition("::")
    return f"{file.rpartition('/')[2]}{colons}{rest}"


def environment() -> dict[str, str]:
    """Describe what was tested."""
    names = {"thunder": "thunder-core", "torch": "torch"}
    out = {}
    for name, distribution in names.items():
        try:
            out[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            out[name] = "unknown"
    return out
