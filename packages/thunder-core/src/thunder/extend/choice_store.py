# SPDX-License-Identifier: Apache-2.0
"""The choices that were measured on this machine, one small JSON file each.

The name of a file is a hash of everything that the choice depends on, so a file is never stale: with another version,
device, shape class or candidate, another file is read. A file is written once and atomically, and the first writer
wins, also among processes. A file that is damaged counts as missing. A file selects one of the candidates that the
program has anyway: its contents are never executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from thunder.core.environment import CACHE_VARIABLE

__all__ = [
    "Stored",
    "cache_folder",
    "canonical",
    "digest",
    "read_choice",
    "write_choice",
    "write_once",
]

_MAX_BYTES = 1 << 16


class Stored(NamedTuple):
    """A choice on disk: the name of the fastest candidate, and the milliseconds of each candidate that was timed."""

    chosen: str
    times: Mapping[str, float]


def cache_folder() -> Path:
    """Return the folder for what thunder stores on this machine: THUNDER_CACHE_DIR, or the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "thunder"


def canonical(value: Any) -> Any:
    """Return a value as JSON types. Raise an error for objects, whose text may differ between processes."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [canonical(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in sorted(value.items())}
    raise TypeError(
        f"a shape class consists of numbers, strings, None, tuples and dicts, but it contains {value!r:.80}: "
        "pass its name, e.g. str(dtype)"
    )


def digest(*parts: Any) -> str:
    """Return a hash of values of JSON types."""
    return hashlib.sha256(json.dumps(canonical(parts), sort_keys=True).encode()).hexdigest()[:32]


def read_choice(path: Path, candidates: Sequence[str]) -> Stored | None:
    """Return a stored choice; None if there is none, or if the file is damaged."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MAX_BYTES))
        times = {str(name): float(time) for name, time in content["times"].items()}
        chosen = content["chosen"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return Stored(chosen, times) if isinstance(chosen, str) and chosen in candidates else None


def write_choice(path: Path, candidates: Sequence[str], stored: Stored, about: Mapping[str, Any]) -> Stored | None:
    """Store a choice, unless another process was first. Return what is stored then; None if nothing can be stored.

    `about` says for readers what the choice is about.
    """
    text = json.dumps({**canonical(about), "chosen": stored.chosen, "times": stored.times}, indent=1)
    with contextlib.suppress(OSError):
        if path.exists() and read_choice(path, candidates) is None:
            path.unlink(missing_ok=True)  # It is damaged. Writes are atomic, so no process is still writing it.
        write_once(path, lambda: text)
    return read_choice(path, candidates)


def write_once(path: Path, make: Callable[[], str]) -> Path:
    """Write the text that `make` returns to a file, unless the file exists. Return the path.

    The name identifies the contents. If two processes write the file at the same time, the first write wins.
    """
    if not path.exists():
        text = make()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            try:
                os.link(temporary, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links
                os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):  # it was moved
                os.unlink(temporary)
    return path
