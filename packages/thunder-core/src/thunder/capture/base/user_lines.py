# SPDX-License-Identifier: Apache-2.0
"""The line of the user's program that is running, and errors that name it."""

from __future__ import annotations

import contextlib
import os
import sys

from thunder.core.locations import OWN_FOLDER, is_ours
from thunder.core.state import SourceLine
from thunder.torch.private import TORCH_FOLDER

__all__ = ["annotate", "asked_by_torch", "line_of_user", "user_line"]

# Frames of torch, of thunder and of Python's library are not the user's.
_LIBRARIES = (TORCH_FOLDER, OWN_FOLDER, os.path.dirname(contextlib.__file__) + os.sep)
_PACKAGES = os.sep + "site-packages" + os.sep


def line_of_user(filename: str, line: int) -> SourceLine | None:
    """Return a line if it is neither torch's nor thunder's."""
    if filename.startswith("<") or (
        filename.startswith(_LIBRARIES) and (_PACKAGES not in filename or filename.startswith(_LIBRARIES[:2]))
    ):
        return None
    return SourceLine(filename, line)


def user_line() -> SourceLine | None:
    """Return the line of the user's program that is running: the innermost that is neither torch's nor thunder's."""
    frame = sys._getframe(1)
    while frame is not None:
        found = line_of_user(frame.f_code.co_filename, frame.f_lineno)
        if found is not None:
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


def asked_by_torch() -> bool:
    """Check whether Python of torch's asks: the innermost frame that is not thunder's."""
    frame = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and frame.f_code.co_filename.startswith(TORCH_FOLDER)


def annotate(error: BaseException, source: SourceLine | None) -> None:
    """Add the user's line to an error's message, once."""
    if source is None or getattr(error, "_thunder_source", None) is not None:
        return
    try:
        error._thunder_source = source  # type: ignore[attr-defined]
        at = f"\n  at {source}"
        if error.args and isinstance(error.args[0], str):
            if not error.args[0].endswith(at):  # a pass that ran on a part of the program has named it
                error.args = (error.args[0] + at, *error.args[1:])
        else:
            error.args = (*error.args, f"at {source}")
    except Exception:  # an exception with attributes of its own stays as it is
        return
