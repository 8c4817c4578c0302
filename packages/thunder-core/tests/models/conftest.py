# SPDX-License-Identifier: Apache-2.0
"""The models of these tests are a package beside them; `--models-page PATH` writes what was checked as a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption("--models-page", metavar="PATH", default=None, help="write the table of models to this page")


def pytest_configure(config: pytest.Config) -> None:
    """Listens to outcomes where they come together, which is not in a worker of xdist."""
    path = config.getoption("--models-page")
    if path and not hasattr(config, "workerinput"):
        from zoo.page import Outcomes

        config.pluginmanager.register(_Writer(Outcomes(), Path(path)))


class _Writer:
    def __init__(self, outcomes: Any, path: Path):
        self.outcomes = outcomes
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of one test."""
        if report.when == "call" or report.failed:
            self.outcomes.add(report.nodeid, report.passed)

    def pytest_sessionfinish(self) -> None:
        """The page."""
        self.path.write_text(self.outcomes.page(), encoding="utf-8")
