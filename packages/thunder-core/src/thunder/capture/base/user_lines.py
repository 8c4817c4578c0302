# SPDX-License-Identifier: Apache-2.0
"""The running line of user code, the module that runs it, and errors that name both."""

from __future__ import annotations

import sys
from types import FrameType

import torch

from thunder.capture.base.substitutions import undone
from thunder.core.errors import ThunderError
from thunder.core.locations import is_ours, is_user_code
from thunder.core.state import SourceLine, state
from thunder.core.tracebacks import module_path, names_of_modules, note_source
from thunder.torch.private import TORCH_FOLDER

__all__ = ["annotate", "asked_by_torch", "line_of_user", "user_line"]

_CALL = torch.nn.Module._call_impl.__code__  # calls a module's `forward`
_TRACE = undone.__code__  # runs a trace: frames further out do not belong to the program


def line_of_user(filename: str, line: int) -> SourceLine | None:
    """Return the source line, or None if the file belongs to torch, thunder or Python's standard library."""
    return SourceLine(filename, line) if is_user_code(filename) else None


def user_line(names: dict[int, str] | None = None) -> SourceLine | None:
    """Return the running line of user code: the innermost frame outside torch, thunder and the standard library.

    The line's `module` is the innermost module whose `forward` runs. `names` caches the names of modules by their ids.
    The default is the cache of the running tracer.
    """
    frame: FrameType | None = sys._getframe(1)
    module = None
    while frame is not None:
        code = frame.f_code
        if code is _CALL and module is None:
            module = frame.f_locals["self"]
        elif is_user_code(code.co_filename):
            names = getattr(state.frontend, "module_names", None) if names is None else names
            path = "" if names is None else _path_of(module, frame, names)
            return SourceLine(code.co_filename, frame.f_lineno, path)
        frame = frame.f_back
    return None


def _path_of(module: torch.nn.Module | None, frame: FrameType | None, names: dict[int, str]) -> str:
    """Return the path of `module` or, if it is None, of the module that runs `frame`, in the outermost module.

    The outermost module may be one that runs eagerly and calls the traced module.
    """
    outermost = None
    while frame is not None and (module is None or id(module) not in names):
        if frame.f_code is _TRACE and module is None:
            return ""
        if frame.f_code is _CALL:
            outermost = frame.f_locals["self"]
            module = outermost if module is None else module
        frame = frame.f_back
    if module is None:
        return ""
    if id(module) not in names:
        names.update(names_of_modules(module if outermost is None else outermost))
    return module_path(module, names)


def asked_by_torch() -> bool:
    """Check whether torch's Python code called thunder: the innermost frame outside thunder belongs to torch."""
    frame = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and frame.f_code.co_filename.startswith(TORCH_FOLDER)


def annotate(error: BaseException, source: SourceLine | None) -> None:
    """Add the user's line to an error, at most once: to the message of a thunder error, and as a note to other errors.

    Eager mode raises the other errors too, so their messages stay the same.
    """
    if source is None or getattr(error, "_thunder_source", None) is not None:
        return
    try:
        note_source(error, source)
        if not isinstance(error, ThunderError):
            return
        at = f"\n  at {source}"
        if error.args and isinstance(error.args[0], str):
            if not error.args[0].endswith(at):  # a pass on a subtrace may have added the line already
                error.args = (error.args[0] + at, *error.args[1:])
        else:
            error.args = (*error.args, f"at {source}")
    except Exception:  # exceptions that reject new attributes or arguments stay unchanged
        return
