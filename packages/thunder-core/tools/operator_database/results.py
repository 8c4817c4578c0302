# SPDX-License-Identifier: Apache-2.0
"""What was found about operators, one for each dtype, and the file that keeps it."""

from __future__ import annotations

import functools
import itertools
import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from operator_database.calls import DTYPES, FORMS, Call, batch, calls_of
from operator_database.check import EAGER, OPAQUE, SYMBOLS, check
from thunder.tests.comparison import Mismatch

__all__ = ["FAILED", "NO_CALLS", "Result", "append", "examine", "read"]

FAILED, NO_CALLS = "failed", "no calls"

# How many failures are kept with their text.
_KEPT = 20


@dataclass
class Result:
    """The result for an operator in a dtype: how its first call was handled, numbers of calls, and the failures."""

    name: str
    dtype: str
    first: str | None = None
    calls: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def handling(self) -> str:
        """How the operator was handled: as its worst call."""
        if self.failed:
            return FAILED
        return next((each for each in (EAGER, OPAQUE, SYMBOLS) if self.calls.get(each)), NO_CALLS)

    def count(self, handling: str, calls: int) -> None:
        """Add calls that agree with eager."""
        self.calls[handling] = self.calls.get(handling, 0) + calls

    def fail(self, message: str) -> None:
        """Add a failure."""
        self.failed += 1
        if len(self.failures) < _KEPT:
            self.failures.append(message)


def examine(
    name: str,
    op: Any,
    dtype: str,
    *,
    forms: Iterable[str] = FORMS,
    samples: int | None = None,
    together: int = 1,
    bitwise: bool = False,
) -> Result:
    """Compare the calls of an operator with eager; of each form at most `samples`, and `together` in one program."""
    checking = functools.partial(check, op, bitwise=True) if bitwise else functools.partial(check, op)
    result = Result(name, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for form in forms:
            try:
                _examine(result, checking, itertools.islice(calls_of(op, DTYPES[dtype], form), samples), together)
            except Exception as error:  # a bug of the comparison, or samples that cannot be made
                result.fail(f"{form}: {type(error).__name__}: {error}")
    return result


_Check = Callable[[Call], str | None]


def _examine(result: Result, check: _Check, calls: Iterator[Call], together: int) -> None:
    """Compare the calls of a form. The first is a program of its own."""
    handling = None
    for call in itertools.islice(calls, 1):
        handling = _alone(result, check, call)
        if call.form == FORMS[0]:
            result.first = handling
    size = together if handling in (SYMBOLS, OPAQUE) else 1
    while some := list(itertools.islice(calls, size)):
        handling = _in_one_program(check, some) if len(some) > 1 else None
        if handling is None:
            for call in some:
                _alone(result, check, call)
        else:
            result.count(handling, len(some))


def _alone(result: Result, check: _Check, call: Call) -> str | None:
    """Compare one call, and return how it was handled: None if eager raises an error, or the results differ."""
    try:
        handling = check(call)
    except Mismatch as mismatch:
        result.fail(f"{call} {mismatch}")
        return None
    result.count(handling or "error", 1)
    return handling


def _in_one_program(check: _Check, calls: list[Call]) -> str | None:
    """Return how a program of all these calls was handled. None if each call has to be compared alone."""
    if any(call.function is not calls[0].function for call in calls):
        return None
    try:
        handling = check(batch(calls))
    except Exception:  # the comparison of each call reports it
        return None
    return None if handling == EAGER else handling


def append(path: Path, result: Result) -> None:
    """Append a result to the file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def read(path: Path) -> dict[tuple[str, str], Result]:
    """Read the results of the file, by name and dtype: the last of each."""
    if not path.exists():
        return {}
    found = (Result(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    return {(result.name, result.dtype): result for result in found}
