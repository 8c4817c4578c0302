# SPDX-License-Identifier: Apache-2.0
"""What is kept beside Triton's own cache from one process to the next: texts of kernels, and what Triton is.

Triton names what it compiled by a hash of itself, among others: before it finds the first kernel it reads half a
gigabyte of its own, in every process and in every thread that is the first to ask. Sizes and times of these files say
as well whether they are the ones that were read before.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import triton

__all__ = ["folder", "identity", "kept", "remember_triton"]


def folder() -> Path:
    """Return where it is kept."""
    return Path(triton.knobs.cache.dir) / "thunder"


def kept(name: str, make: Callable[[], str]) -> Path:
    """Return the file of that name, which says what is in it. `make` gives the text of one that is not there yet.

    Of two processes that write it at the same time the first one counts.
    """
    path = folder() / name
    if not path.exists():
        text = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        try:
            os.link(temporary, path)
            os.unlink(temporary)
        except FileExistsError:
            os.unlink(temporary)
        except OSError:  # a file system without links
            os.replace(temporary, path)
    return path


def identity(package: ModuleType, make: Callable[[], str]) -> str:
    """Return what `make` says of an installed Triton: what it said of the same files before, if it did."""
    assert package.__file__ is not None
    root = Path(package.__file__).parent
    stated = [f"{package.__version__} {root}"]
    for path in sorted(_sources(root)):
        found = path.stat()
        stated.append(f"{path} {found.st_size} {found.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(stated).encode()).hexdigest()[:24]
    return kept(f"triton_{digest}.txt", make).read_text(encoding="utf-8")


def _sources(root: Path) -> Iterator[Path]:
    """Yield the files that Triton's hash of itself is made of."""
    yield root / "runtime" / "cache.py"
    yield from (root / "_C").glob("libtriton.*")
    for name in ("compiler", "backends", "language"):
        yield from (root / name).rglob("*.py")


@functools.cache
def remember_triton() -> None:
    """Have Triton ask `identity` for the hash of itself, once."""
    cache = triton.runtime.cache
    own = getattr(cache, "triton_key", None)
    if own is None:  # a Triton that makes it otherwise
        return
    lock = threading.Lock()

    @functools.cache
    def known() -> str:
        return identity(triton, own)

    @functools.wraps(own)
    def triton_key() -> str:
        with lock:  # others wait instead of reading all of it too
            return known()

    cache.triton_key = triton_key
