# SPDX-License-Identifier: Apache-2.0
"""Run a script of the user as `python SCRIPT` does, and keep the functions that it jits."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["every_jitted", "run_script"]


class _Every(list[Any]):
    """Stands for the weak set of jitted functions, and keeps all of them."""

    def add(self, jitted: Any) -> None:
        self.append(jitted)


@contextlib.contextmanager
def every_jitted() -> Iterator[list[Any]]:
    """Return a context in which all jitted functions are kept, also those that no longer exist."""
    # The import is local because it imports torch, and other commands work without torch.
    from thunder import api

    before, kept = api._jitted, _Every()
    api._jitted = kept  # type: ignore[assignment]
    try:
        yield kept
    finally:
        api._jitted = before


def run_script(path: str, arguments: Sequence[str], errors: list[BaseException] | None = None) -> int:
    """Run a script, and return its status. Print the traceback of an error, which is also added to `errors`."""
    before = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [path, *arguments], os.path.dirname(os.path.abspath(path))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as error:
        traceback.print_exc()
        if errors is not None:
            errors.append(error)
        return 1
    finally:
        sys.argv, sys.path[0] = before
    return 0
