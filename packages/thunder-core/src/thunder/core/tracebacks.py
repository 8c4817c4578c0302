# SPDX-License-Identifier: Apache-2.0
"""Errors that reach the user: thunder's frames are removed from tracebacks, and notes name the user's line and module.

The type and the message of an error are those of eager mode. The line of user code and the path of the module (e.g.
`layers.2 (Linear)`) are notes (PEP 678). Python 3.10 does not print notes, but test runners and debuggers find them in
`__notes__`. With `THUNDER_TRACEBACK=full`, tracebacks keep all frames.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from thunder.core.errors import ThunderError
from thunder.core.locations import is_ours, is_user_code
from thunder.core.state import SourceLine

__all__ = [
    "PROGRAM_PREFIX",
    "add_note",
    "all_frames",
    "find_source",
    "keeps_all_frames",
    "module_path",
    "note_source",
    "present",
    "release_frames",
]

_VARIABLE = "THUNDER_TRACEBACK"
PROGRAM_PREFIX = "<thunder."  # of the names of generated files, whose frames are thunder's, too

#: Returns the line of user code for a line of a generated file, by the name of the file.
sources: dict[str, Callable[[int], SourceLine | None]] = {}

_CALLS = "_call_impl"  # the method of `torch.nn.Module` that calls `forward`


def keeps_all_frames() -> bool:
    """Check whether the user asked for complete tracebacks."""
    return os.environ.get(_VARIABLE, "").lower() == "full"


@contextmanager
def all_frames() -> Iterator[None]:
    """Return a context in which tracebacks of the process keep all frames."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "full"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, once."""
    notes = getattr(error, "__notes__", [])
    if note not in notes:
        error.__notes__ = [*notes, note]  # type: ignore[attr-defined]  # `add_note` exists since Python 3.11


def note_source(error: BaseException, source: SourceLine) -> None:
    """Add the line of user code and the module's path as notes, at most once."""
    error._thunder_source = source  # type: ignore[attr-defined]
    if not isinstance(error, ThunderError):  # its message contains the line
        add_note(error, f"at {source}")
    if source.module:
        add_note(error, f"in {source.module}")


def present(error: BaseException) -> None:
    """Prepare an error for the user. The caller is the outermost function of thunder, and then raises the error again.

    Without frames of thunder nobody sees where thunder itself failed. A note tells how to see the frames.
    """
    try:
        entries = error.__traceback__
        if getattr(error, "_thunder_source", None) is None:
            source = find_source(entries)
            if source is not None:
                note_source(error, source)
            elif _is_internal(error, entries):
                add_note(error, "raised inside thunder: THUNDER_TRACEBACK=full shows where")
        if keeps_all_frames() or entries is None:
            return
        kept = _without_frames_of_thunder(entries)
        if sys.version_info >= (3, 11):
            error.__traceback__ = kept
        else:
            entries.tb_next = kept  # Python 3.10 raises an error again with the entry of the caller
        _clean_causes(error)
    except Exception:  # an exception that does not allow changes stays as it is
        return


def _clean_causes(error: BaseException) -> None:
    """Remove thunder's frames from the causes and contexts of an error."""
    seen = {id(error)}
    pending = [error.__cause__, error.__context__]
    while pending:
        cause = pending.pop()
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            cause.__traceback__ = _without_frames_of_thunder(cause.__traceback__)
            pending += [cause.__cause__, cause.__context__]


def _entries(entry: types.TracebackType | None) -> list[types.TracebackType]:
    found = []
    while entry is not None:
        found.append(entry)
        entry = entry.tb_next
    return found


def _of_thunder(filename: str) -> bool:
    return filename.startswith(PROGRAM_PREFIX) or is_ours(filename)


def _is_internal(error: BaseException, entries: types.TracebackType | None) -> bool:
    found = _entries(entries)
    return not isinstance(error, ThunderError) and bool(found) and is_ours(found[-1].tb_frame.f_code.co_filename)


def _without_frames_of_thunder(entries: types.TracebackType | None) -> types.TracebackType | None:
    kept: types.TracebackType | None = None
    for entry in reversed(_entries(entries)):
        if not _of_thunder(entry.tb_frame.f_code.co_filename):
            kept = types.TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept


def find_source(entries: types.TracebackType | None) -> SourceLine | None:
    """Return the line of user code that raised an error, or whose operation in a compiled program raised it."""
    source: SourceLine | None = None
    modules: list[Any] = []
    for entry in _entries(entries):
        code = entry.tb_frame.f_code
        lookup = sources.get(code.co_filename)
        if lookup is not None:
            return lookup(entry.tb_lineno) or source
        if code.co_name == _CALLS:
            modules.append(entry.tb_frame.f_locals.get("self"))
        if is_user_code(code.co_filename):
            source = SourceLine(code.co_filename, entry.tb_lineno)
    if source is not None and modules and entries is not None:
        frame = entries.tb_frame.f_back
        while frame is not None:  # a module that runs eagerly may have called the jitted one
            if frame.f_code.co_name == _CALLS and "self" in frame.f_locals:
                modules.insert(0, frame.f_locals["self"])
            frame = frame.f_back
        return source._replace(module=module_path(modules[-1], names_of_modules(modules[0])))
    return source


# -- modules ----------------------------------------------------------------------------------------------------------
def names_of_modules(root: Any) -> dict[int, str]:
    """Return the names of a module's submodules by their ids, without running code of their classes."""
    names: dict[int, str] = {}
    pending = [("", root)]
    while pending:
        name, module = pending.pop()
        if module is not None and id(module) not in names:
            names[id(module)] = name
            children: Mapping[str, Any] = object.__getattribute__(module, "__dict__").get("_modules", {})
            pending += [(f"{name}.{child}" if name else child, x) for child, x in children.items()]
    return names


def module_path(module: Any, names: Mapping[int, str]) -> str:
    """Return the path and the class of a module, e.g. `layers.2 (Linear)`."""
    name, cls = names.get(id(module), ""), type(module).__name__
    return f"{name} ({cls})" if name else cls


def release_frames(error: BaseException | None) -> None:
    """Drop the frames of an exception that thunder handles, because they refer to the arguments of the call."""
    while error is not None and error.__traceback__ is not None:  # a chain may have a cycle
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
