# SPDX-License-Identifier: Apache-2.0
"""Decisions: conditions and numbers that Python needed while a program was traced, checked where they are computed.

A program that branches on a tensor's value has several *paths*. Each path is a separate program that contains the
answers of its decisions. If a decision has another answer in a call, the path raises `OtherPath` before it writes
anything, and the call starts again on another path (`frontend/paths.py`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from thunder.core.state import SourceLine

__all__ = ["Decision", "OtherPath", "decide", "imposed", "path_of_thread", "running_path", "same_answer"]


class OtherPath(Exception):
    """Raised if a decision of a path has another answer in this call."""

    def __init__(self, index: int, answer: Any) -> None:
        super().__init__(index, answer)
        self.index = index
        self.answer = answer


class Decision(NamedTuple):
    """One decision of a path."""

    question: str  # the condition or the number, as text of the trace
    answer: Any
    source: SourceLine | None
    random: bool  # whether it depends on a random draw of the program

    def __str__(self) -> str:
        at = "" if self.source is None else f", at {self.source}"
        return f"{self.question} is {self.answer}{' (random)' if self.random else ''}{at}"


class _Imposed(threading.local):
    """The number of decisions whose answers this thread imposes on the path that it runs, and the path's decisions."""

    count = 0
    path: tuple[Decision, ...] = ()


_imposed = _Imposed()


def decide(found: Any, answer: Any, index: int) -> None:
    """Raise `OtherPath` if decision number `index` of a path does not have the answer that the path was traced with."""
    if found is answer or (found == answer and type(answer) is not float):
        return
    if index >= _imposed.count and not same_answer(found, answer):
        raise OtherPath(index, found)


def same_answer(found: Any, answer: Any) -> bool:
    """Check whether two answers are equal for Python: here NaN equals NaN, and 0.0 differs from -0.0."""
    if isinstance(answer, complex):
        return isinstance(found, complex) and all(map(same_answer, _parts(found), _parts(answer)))
    if isinstance(answer, float) and isinstance(found, float):
        if math.isnan(answer):
            return math.isnan(found)
        return found == answer and math.copysign(1.0, found) == math.copysign(1.0, answer)
    return bool(found == answer)


def _parts(x: complex) -> tuple[float, float]:
    return x.real, x.imag


@contextmanager
def imposed(count: int) -> Iterator[None]:
    """Return a context in which a path does not check its first `count` decisions.

    Their answers were found by another program, whose executors may round or draw differently. Checking them again
    could send the call back to the first path.
    """
    before, _imposed.count = _imposed.count, count
    try:
        yield
    finally:
        _imposed.count = before


@contextmanager
def running_path(decisions: tuple[Decision, ...]) -> Iterator[None]:
    """Return a context in which this thread runs the path with these decisions."""
    before, _imposed.path = _imposed.path, decisions
    try:
        yield
    finally:
        _imposed.path = before


def path_of_thread() -> tuple[Decision, ...]:
    """Return the decisions of the path that this thread runs."""
    return _imposed.path
