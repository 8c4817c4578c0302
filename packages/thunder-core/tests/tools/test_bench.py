# SPDX-License-Identifier: Apache-2.0
"""`nox -s bench`: what counts as slower, and that noise does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bench


def data(machine: str = "here", **rows: dict[str, str]) -> dict[str, Any]:
    return {"machine": machine, "rows": [{"name": name, "cells": cells} for name, cells in rows.items()]}


def test_the_suites_exist() -> None:
    """And have the options with which they are run."""
    for suite in bench.SUITES:
        text = (bench.FOLDER / f"{suite}.py").read_text(encoding="utf-8")
        assert "measuring.parser(" in text and "report.finish(" in text


def test_which_numbers_are_compared() -> None:
    """thunder's times; not those of peers, counts and ratios."""
    cells = {
        "thunder": "0.52 s", "passes": "2.5 ms (best)", "one more": "31.0 µs", "eager": "1.00 ms",
        'torch.compile(backend="eager")': "5.0 ms", "lightning-thunder": "9 s", "steps": "12", "share": "1.05 x",
    }  # fmt: skip
    found = bench.seconds_of(data(row=cells))["row"]
    assert found == {"thunder": 0.52, "passes": pytest.approx(2.5e-3), "one more": pytest.approx(31e-6)}


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`run(before, *measurements)`: the status, what was printed, and the rows that were measured."""

    def make(before: dict[str, Any], *measurements: dict[str, Any]) -> tuple[int, str, list[str]]:
        file, asked, pending = tmp_path / "before.json", [], list(measurements)
        file.write_text(json.dumps({"passes": before}), encoding="utf-8")

        def measure(suite: str, rows: str, options: list[str]) -> dict[str, Any]:
            asked.append(rows)
            return pending.pop(0)

        status = bench.main(["--suite", "passes", "--against", str(file)], measure)
        return status, capsys.readouterr().out, asked

    return make


def test_nothing_is_slower(run: Any) -> None:
    """Up to 5 %; new rows have nothing to be compared with."""
    before = data(a={"thunder": "100 ms"}, gone={"thunder": "1 ms"})
    status, told, asked = run(before, data(a={"thunder": "105 ms"}, new={"thunder": "9 s"}))
    assert (status, asked) == (0, [""])
    assert told.startswith("no row is more than 5% slower than in ")


def test_a_row_that_is_slower(run: Any) -> None:
    """It is measured twice again, alone; the best number counts."""
    before = data(a={"thunder": "100 ms"}, b={"thunder": "100 ms"})
    slow, other = data(a={"thunder": "120 ms"}, b={"thunder": "99 ms"}), data(a={"thunder": "110 ms"})
    status, told, asked = run(before, slow, other, data(a={"thunder": "130 ms"}))
    assert (status, asked) == (1, ["", "a", "a"])
    assert told == "passes: a: thunder 1.10 x as long as before\n"
    status, told, asked = run(before, slow, data(a={"thunder": "101 ms"}))
    assert (status, asked) == (0, ["", "a"])


def test_another_machine(run: Any) -> None:
    """Numbers of two machines say nothing about thunder."""
    status, told, _ = run(data("there", a={"thunder": "1 ms"}), data(a={"thunder": "1 ms"}))
    assert status == 1 and "measured on another machine, there instead of here" in told


def test_numbers_are_kept(tmp_path: Path) -> None:
    """As a later run reads them."""
    file = tmp_path / "now.json"
    found = data(a={"thunder": "1 ms"})
    assert bench.main(["--suite", "passes", "--json", str(file)], lambda *given: found) == 0
    assert bench.main(["--suite", "passes", "--against", str(file)], lambda *given: found) == 0
