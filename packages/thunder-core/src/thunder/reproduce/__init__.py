# SPDX-License-Identifier: Apache-2.0
"""`thunder.bisect(fn, *args)` finds what makes a call wrong, and `thunder.repro(fn, *args)` also writes a script.

The search (`bisection.py`) compares with eager mode: the call, the traced program with fewer executors, parts of this
program, the lines of the compiled program (`by_torch.py`), and the traces of its passes (`passes.py`). The script
(`script.py`) contains the smallest part that fails, with random inputs of the same metadata and no data of the user.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from thunder.reproduce.bisection import Bisection, bisect
from thunder.reproduce.script import Script

__all__ = ["Bisection", "Reproduction", "Script", "bisect", "repro"]


_STATES = {
    True: "fails",
    False: "does not fail with random inputs: the failure depends on the data",
    None: "replace each `...`",
}


class Reproduction(Bisection):
    """The result of `repro`: what `bisect` has found, and a script.

    `script` is the text of the script, also in the file at `path`. `script_fails` is True if the script fails here,
    with its random inputs. It is None if the user has to complete the script.
    """

    def __init__(self, found: Bisection):
        vars(self).update(vars(found))
        self.script: str | None = None
        self.script_fails: bool | None = None
        self.path: Path | None = None

    def __str__(self) -> str:
        found = super().__str__()
        return found if self.path is None else f"{found}\nscript: {self.path} ({_STATES[self.script_fails]})"

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
    found = Reproduction(bisect(fn, *args, tolerance=tolerance, **kwargs))
    if found.failure is not None:
        script = Script(found, str(found), tolerance)
        found.script = script.text
        found.script_fails = script.failure() is not None if script.complete else None
        if file is not None:
            found.path = Path(file)
            found.path.write_text(found.script, encoding="utf-8")
    return found
