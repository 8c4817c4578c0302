# SPDX-License-Identifier: Apache-2.0
"""A disk cache in addition to Triton's: it stores kernel sources and the hash of the Triton installation.

Triton's cache keys contain a hash of Triton's own sources and binaries. To compute this hash, Triton reads half a
gigabyte of files in every process. Every thread that needs the hash before it is known reads them again. If the sizes
and modification times of these files are unchanged, the stored hash is still valid.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import triton

__all__ = ["folder", "identity", "kept", "remember_triton"]


def folder() -> Path:
    """Return the folder of this cache."""
    return Path(triton.knobs.cache.dir) / "thunder"


def kept(name: str, make: Callable[[], str]) -> Path:
    """Return the path of a cached file. If the file does not exist, write the text that `make` returns.

    The name identifies the contents. If two processes write the file at the same time, the first write wins.
    """
    path = folder() / name
    if not path.exists():
        # The import is local: a process that finds its files does not load what writes them.
        from thunder.extend import write_once

        write_once(path, make)
    return path


def identity(package: ModuleType, make: Callable[[], str]) -> str:
    """Return the hash of an installed Triton.

    `make` computes the hash, which is cached while Triton's files are unchanged.
    """
    assert package.__file__ is not None
    root = Path(package.__file__).parent
    stated = [f"{package.__version__} {root}"]
    for path in sorted(_sources(root)):
        found = path.stat()
        stated.append(f"{path} {found.st_size} {found.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(stated).encode()).hexdigest()[:24]
    return kept(f"triton_{digest}.txt", make).read_text(encoding="utf-8")


def _sources(root: Path) -> Iterator[Path]:
    """Yield the files that Triton's hash of its installation covers."""
    yield root / "runtime" / "cache.py"
    yield from (root / "_C").glob("libtriton.*")
    for name in ("compiler", "backends", "language"):
        yield from (root / name).rglob("*.py")


@functools.cache
def remember_triton() -> None:
    """Replace Triton's function that hashes its installation by `identity`, once per process."""
    cache = triton.runtime.cache
    own = getattr(cache, "triton_key", None)
    if own is None:  # another version of Triton computes the hash elsewhere
        return
    lock = threading.Lock()

    @functools.cache
    def known() -> str:
        return identity(triton, own)

    @functools.wraps(own)
    def triton_key() -> str:
        with lock:  # other threads wait instead of hashing the same files
            return known()

    cache.triton_key = triton_key
