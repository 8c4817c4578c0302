# SPDX-License-Identifier: Apache-2.0
"""The running line of user code, and error messages that contain it."""

from __future__ import annotations

import contextlib
import os
import sys

from thunder.core.locations import OWN_FOLDER, is_ours
from thunder.core.state import SourceLine
from thunder.torch.private import TORCH_FOLDER

__all__ = ["annotate", "asked_by_torch", "line_of_user", "user_line"]

# Files of torch, of thunder and of Python's standard library do not count as user code.
_LIBRARIES = (TORCH_FOLDER, OWN_FOLDER, os.path.dirname(contextlib.__file__) + os.sep)
_PACKAGES = os.sep + "site-packages" + os.sep


def line_of_user(filename: str, line: int) -> SourceLine | None:
    """Return the source line, or None if the file belongs to torch, thunder or Python's standard library."""
    if filename.startswith("<") or (
        filename.startswith(_LIBRARIES) and (_PACKAGES not in filename or filename.startswith(_LIBRARIES[:2]))
    ):
        return None
    return SourceLine(filename, line)


def user_line() -> SourceLine | None:
    """Return the running line of user code: the innermost frame outside torch, thunder and the standard library."""
    frame = sys._getframe(1)
    while frame is not None:
        found = line_of_user(frame.f_code.co_filename, frame.f_lineno)
        if found is not None:
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


def asked_by_torch() -> bool:
    """Check whether torch's Python code called thunder: the innermost frame outside thunder belongs to torch."""
    frame = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and frame.f_code.co_filename.startswith(TORCH_FOLDER)


def annotate(error: BaseException, source: SourceLine | None) -> None:
    """Append the user's line to an error's message, at most once."""
    if source is None or getattr(error, "_thunder_source", None) is not None:
        return
    try:
        error._thunder_source = source  # type: ignore[attr-defined]
        at = f"\n  at {source}"
        if error.args and isinstance(error.args[0], str):
            if not error.args[0].endswith(at):  # a pass on a subtrace may have added the line already
                error.args = (error.args[0] + at, *error.args[1:])
        else:
            error.args = (*error.args, f"at {source}")
    except Exception:  # exceptions that reject new attributes or arguments stay unchanged
        return
