# SPDX-License-Identifier: Apache-2.0
"""The result of a program, and the file that keeps results."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

__all__ = ["VERDICTS", "Result", "append", "read"]

# From best to worst. The last four make the session fail.
VERDICTS = {
    "compiled": "at least 95 % of a warm call's operators run inside compiled programs, and ten more calls on fresh "
    "data make no trace",
    "paths": "the same after a few more traces: there is a program for each path or number that occurs",
    "pieces": "compiled in part: the modules that a partly eager function calls",
    "eager": "no operator runs inside of a compiled program",
    "traced": "more than a tenth of calls on fresh data are traced, also after seventy calls",
    "refused": "thunder raises an error that eager PyTorch does not raise",
    "wrong": "values, gradients or state differ from eager",
    "ended": "no result: the process ended, or exceeded the time limit",
    "eager fails": "the example does not run in this environment without thunder",
}


@dataclasses.dataclass
class Result:
    """What was found about a program. Times are in seconds."""

    project: str
    name: str
    verdict: str = "ended"
    share: float | None = None  # of the operators inside of programs
    traces: int = 0  # of the first two calls
    retraces: int = 0  # of the calls after them
    calls: int = 0  # the calls after the first two
    first: float | None = None
    eager: float | None = None
    warm: float | None = None
    dynamo_first: float | None = None
    dynamo: float | None = None
    dynamo_error: str | None = None
    reason: str = ""

    @property
    def key(self) -> str:
        """The name of the program with its project."""
        return f"{self.project}/{self.name}"

    @property
    def ratio(self) -> float | None:
        """The time of a warm call over eager's."""
        return self.warm / self.eager if self.warm and self.eager else None


def append(path: Path, result: Result) -> None:
    """Append a result to the file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dataclasses.asdict(result)) + "\n")


def read(path: Path) -> dict[str, Result]:
    """Read the results of the file: the last of each program."""
    if not path.exists():
        return {}
    found = (Result(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    return {result.key: result for result in found}
