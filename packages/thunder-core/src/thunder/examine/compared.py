# SPDX-License-Identifier: Apache-2.0
"""The report of `thunder.examine.compare`: lines, results, and their errors."""

from __future__ import annotations

import math
from typing import Any

from thunder.core.state import SourceLine
from thunder.core.tables import format_table
from thunder.examine.lines import Line, source_of, where_of
from thunder.frontend.explain import counted

__all__ = ["ComparedLine", "ComparedResult", "Comparison", "number", "relative"]


_MAX_TEXT = 72  # of a line in the table


class ComparedLine:
    """A line of the program and its errors, relative to the largest value of the result.

    `error` and `torch_error` are the differences of the line's and of torch's result from float64, and `difference` is
    that of the line from torch, all on the same inputs. `accumulated` is the difference from a program that runs in
    float64 from its beginning. An error is None if it cannot be computed. `problem` says how the line diverges.
    """

    def __init__(self, line: Line):
        self.program = line.program
        self.number = line.number
        self.text = line.text
        self.executor = line.executor
        self.computes = line.computes
        self.source: SourceLine | None = source_of(line.op)
        self.difference: float | None = None
        self.error: float | None = None
        self.torch_error: float | None = None
        self.accumulated: float | None = None
        self.problem: str | None = None

    @property
    def diverges(self) -> bool:
        """Whether the line's result is wrong."""
        return self.problem is not None

    def __str__(self) -> str:
        found = [f"{self.program}, line {self.number}: {self.text}"]
        who = f"executor {self.executor}" if self.executor else "Python"
        parts = ", ".join(self.computes)
        found.append(f"  by {who}, which computes {parts}" if parts else f"  by {who}")
        if self.source is not None:
            found.append(f"  at {self.source}" + (f", in {self.source.module}" if self.source.module else ""))
        if self.problem is not None:
            found.append(f"  {self.problem}")
        return "\n".join(found)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Return the line as JSON types."""
        numbers = ("difference", "error", "torch_error", "accumulated")
        return {
            "program": self.program, "number": self.number, "text": self.text, "executor": self.executor,
            "computes": self.computes, "where": where_of(self.source), "problem": self.problem,
            **{name: _json_number(getattr(self, name)) for name in numbers},
        }  # fmt: skip


class ComparedResult:
    """A result or gradient of the whole program: its difference from float64, and that of torch's."""

    def __init__(self, name: str, error: float, torch_error: float):
        self.name = name
        self.error = error
        self.torch_error = torch_error

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {"name": self.name, "error": _json_number(self.error), "torch_error": _json_number(self.torch_error)}


class Comparison:
    """What `compare` returns: `lines`, `results`, the `first` line that diverges, and `notes`."""

    def __init__(self) -> None:
        self.lines: list[ComparedLine] = []
        self.results: list[ComparedResult] = []
        self.notes: list[str] = []

    @property
    def first(self) -> ComparedLine | None:
        """The first line that diverges, or None."""
        return next((line for line in self.lines if line.diverges), None)

    def worst(self, count: int = 10) -> list[ComparedLine]:
        """Return the lines with the largest errors on their inputs, lines that diverge first."""
        return sorted(self.lines, key=lambda x: (not x.diverges, -number(x.error, x.difference)))[:count]

    def __str__(self) -> str:
        count = counted(len(self.lines), "line")
        first, wrong = self.first, sum(x.diverges for x in self.lines)
        found = [
            f"{count}: none diverges from torch"
            if first is None
            else f"{count}, {wrong} of them diverge{'s' if wrong == 1 else ''}. The first one:\n{first}"
        ]
        if self.results:
            rows = [(r.name, relative(r.error), relative(r.torch_error)) for r in self.results]
            found += ["", format_table(("result", "error", "of torch"), rows)]
        worst = [
            (
                f"{x.program} {x.number}", x.executor, relative(x.error), relative(x.torch_error),
                relative(x.difference), relative(x.accumulated), _shortened(x.text.partition("  # ")[0]),
            )
            for x in self.worst()
        ]  # fmt: skip
        if worst:
            head = ("worst lines", "executor", "error", "of torch", "from torch", "accumulated", "line")
            found += ["", format_table(head, worst)]
        return "\n".join([*found, *self.notes])

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON types."""
        return {
            "first": None if self.first is None else self.first.to_dict(),
            "lines": [line.to_dict() for line in self.lines],
            "results": [result.to_dict() for result in self.results],
            "notes": self.notes,
        }


def number(*values: float | None) -> float:
    """Return the first number that is not None, or 0."""
    return next((x for x in values if x is not None), 0.0)


def _json_number(x: float | None) -> float | str | None:
    return str(x) if x is not None and not math.isfinite(x) else x


def relative(x: float | None) -> str:
    return "" if x is None else "0" if x == 0 else f"{x:.1e}"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
