# SPDX-License-Identifier: Apache-2.0
"""Contenders that take turns, and tables. The clocks need a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from thunder.tests.measuring import in_turns, table


def test_contenders_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    """After a few calls of each; what fails is left out, and said."""
    calls: list[str] = []

    def fails() -> None:
        raise ValueError("not here")

    contenders: dict[str, Callable[[], Any]] = {
        "a": lambda: calls.append("a"), "b": fails, "c": lambda: calls.append("c")
    }  # fmt: skip
    times = iter([3.0, 10.0, 1.0, 30.0, 2.0, 20.0])
    found = in_turns(contenders, 3, lambda fn: next(times))
    assert found == {"a": 2.0, "c": 20.0}
    assert "".join(calls) == "aaaccc" + "ac" * 3
    assert "b cannot run: ValueError: not here" in capsys.readouterr().err
    assert in_turns({"a": contenders["a"]}, 2, lambda fn: float(len(calls)), min) == {"a": 16.0}


def test_tables() -> None:
    """Markdown."""
    assert table(["what", "ms"], [["x", "1.0"], ["y", "2.0"]]) == "| what | ms |\n|---|---|\n| x | 1.0 |\n| y | 2.0 |"
