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
    times = {contenders["a"]: iter([3.0, 1.0, 2.0]), contenders["c"]: iter([10.0, 30.0, 20.0])}
    found = in_turns(contenders, 3, lambda fn: next(times[fn]))
    assert found == {"a": 2.0, "c": 20.0}
    assert "".join(calls[:6]) == "aaaccc"
    assert [{*calls[i : i + 2]} for i in (6, 8, 10)] == [{"a", "c"}] * 3 and len(calls) == 12
    assert "b cannot run: ValueError: not here" in capsys.readouterr().err
    assert in_turns({"a": contenders["a"]}, 2, lambda fn: float(len(calls)), min) == {"a": 16.0}


def test_the_order_of_turns_is_drawn() -> None:
    """Nobody comes after the same one each time."""
    calls: list[str] = []
    contenders = {name: lambda name=name: calls.append(name) for name in "abc"}
    in_turns(contenders, 12, lambda fn: 0.0)
    assert len({"".join(calls[i : i + 3]) for i in range(9, 45, 3)}) > 2


def test_tables() -> None:
    """Markdown."""
    assert table(["what", "ms"], [["x", "1.0"], ["y", "2.0"]]) == "| what | ms |\n|---|---|\n| x | 1.0 |\n| y | 2.0 |"
