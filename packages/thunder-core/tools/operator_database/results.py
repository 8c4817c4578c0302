# SPDX-License-Identifier: Apache-2.0
"""What was found about operators, one for each dtype, and the file that keeps it."""

from __future__ import annotations

import itertools
import json
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from operator_database.calls import DTYPES, FORMS, calls_of
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

    def fail(self, message: str) -> None:
        """Add a failure."""
        self.failed += 1
        if len(self.failures) < _KEPT:
            self.failures.append(message)


def examine(name: str, op: Any, dtype: str, *, forms: Iterable[str] = FORMS, samples: int | None = None) -> Result:
    """Compare the calls of an operator with eager; of each form at most `samples`."""
    result = Result(name, dtype)
    handlings: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for form in forms:
            try:
                for call in itertools.islice(calls_of(op, DTYPES[dtype], form), samples):
                    try:
                        handling = check(op, call)
                        handlings[handling or "error"] += 1
                        if form == FORMS[0] and call.number == 0:
                            result.first = handling
                    except Mismatch as mismatch:
                        result.fail(f"{call} {mismatch}")
            except Exception as error:  # a bug of the comparison, or samples that cannot be made
                result.fail(f"{form}: {type(error).__name__}: {error}")
    result.calls = dict(handlings)
    return result


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
