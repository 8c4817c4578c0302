# SPDX-License-Identifier: Apache-2.0
"""`thunder.repro(fn, *args)`: find what makes a program differ from eager mode, and write a script that shows it.

The search (`bisection.py`) compares with eager mode: the call, the traced program with fewer executors, parts of this
program, and the traces of its passes. The script (`script.py`) contains the smallest part that fails, with random
inputs of the same metadata and no data of the user.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from thunder.reproduce.bisection import Finding, find_cause
from thunder.reproduce.script import Script

__all__ = ["Reproduction", "repro"]


_STATES = {
    True: "fails",
    False: "does not fail with random inputs: the failure depends on the data",
    None: "replace each `...`",
}


class Reproduction:
    """The result of `repro`.

    `failure` describes how the compiled program differs from eager mode, or is None. `executors`, `operation` and
    `pass_name` are what the search has found, and `script` is the text of the script, also in the file at `path`.
    `script_fails` is True if the script fails here, with its random inputs. It is None if the user has to complete the
    script.
    """

    def __init__(self, finding: Finding):
        self.failure = finding.failure
        self.executors = finding.executors
        self.operation = finding.operation
        self.pass_name = finding.pass_name
        self.notes = finding.notes
        self.script: str | None = None
        self.script_fails: bool | None = None
        self.path: Path | None = None

    def __str__(self) -> str:
        if self.failure is None:
            return "\n".join(["the compiled program and eager mode agree", *self.notes])
        lines = [self.failure]
        if self.executors is not None:
            names = ", ".join(map(repr, self.executors))
            lines.append(f"executors: it fails with {names}" if names else "executors: it fails with torch alone")
        if self.operation is not None:
            lines.append(f"operation: {self.operation}")
        if self.pass_name is not None:
            lines.append(f"pass: the first wrong trace is that of {self.pass_name}")
        lines += self.notes
        if self.path is not None:
            lines.append(f"script: {self.path} ({_STATES[self.script_fails]})")
        return "\n".join(lines)

    __repr__ = __str__


def repro(
    fn: Callable[..., Any],
    *args: Any,
    file: str | Path | None = "thunder_repro.py",
    tolerance: float | None = None,
    **kwargs: Any,
) -> Reproduction:
    """Compare a call of `fn` with eager mode, find the cause of a difference, and write a script that reproduces it.

    `fn` is a function or module, jitted or not. Results and gradients are compared. The call runs several times, on
    copies of the arguments and, for a module, of the module. `file` is the path of the script; None writes no file.
    `tolerance` is the largest difference that is allowed, relative to the largest value of a result. By default it
    depends on the dtype.
    """
    finding = find_cause(fn, args, kwargs, tolerance)
    found = Reproduction(finding)
    if finding.failure is not None:
        script = Script(finding, str(found), tolerance)
        found.script = script.text
        found.script_fails = script.failure() is not None if script.complete else None
        if file is not None:
            found.path = Path(file)
            found.path.write_text(found.script, encoding="utf-8")
    return found
