# SPDX-License-Identifier: Apache-2.0
"""What is kept from one process to the next: files by name, and what Triton is."""

from __future__ import annotations

import os
import threading
import types
from pathlib import Path

import pytest
import triton

from thunder_ex_triton.disk_cache import identity, kept, remember_triton

FILES = ("runtime/cache.py", "compiler/code.py", "backends/a/b.py", "language/core.py", "_C/libtriton.so")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "thunder"


@pytest.fixture
def installed(tmp_path: Path) -> types.ModuleType:
    """A Triton with a file of each kind."""
    root = tmp_path / "triton"
    for name in ("__init__.py", *FILES):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    module = types.ModuleType("triton")
    module.__file__, module.__version__ = str(root / "__init__.py"), "3.6.0"  # type: ignore[attr-defined]
    return module


def test_a_file_is_written_once(folder: Path) -> None:
    """Nothing else is left beside it."""
    made: list[str] = []
    for text in ("one", "two"):
        path = kept("a.txt", lambda: made.append(text) or text)  # type: ignore[func-returns-value]
        assert path.read_text() == "one"
    assert made == ["one"] and [p.name for p in folder.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("links", [True, False])
def test_who_is_first_counts(folder: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process wrote while this one made its own; where there are no links, what was written last does."""

    def refuses(*args: object) -> None:
        raise PermissionError

    def make() -> str:
        kept("a.txt", lambda: "theirs")
        return "ours"

    if not links:
        monkeypatch.setattr(os, "link", refuses)
    assert kept("a.txt", make).read_text() == ("theirs" if links else "ours")
    assert [p.name for p in folder.iterdir()] == ["a.txt"]


def test_a_triton_is_asked_once(installed: types.ModuleType) -> None:
    """Later processes are told what it said."""
    answers = iter(("one", "two"))
    assert [identity(installed, lambda: next(answers)) for _ in range(3)] == ["one"] * 3


@pytest.mark.parametrize("change", [*FILES, "new", "version"])
def test_another_triton_is_asked_anew(installed: types.ModuleType, change: str) -> None:
    """Whichever of its files is another, by time or size."""
    answers = iter(("one", "two"))
    assert identity(installed, lambda: next(answers)) == "one"
    root = Path(installed.__file__ or "").parent
    if change == "version":
        installed.__version__ = "3.6.1"  # type: ignore[attr-defined]
    elif change == "new":
        (root / "backends" / "new.py").write_text("")
    else:
        os.utime(root / change, ns=(1, 1))
    assert identity(installed, lambda: next(answers)) == "two"


def test_tritons_own_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what Triton makes of itself, made by one thread while others wait."""
    calls: list[None] = []

    def slow() -> str:
        calls.append(None)
        return "hash"

    monkeypatch.setattr(triton.runtime.cache, "triton_key", slow)
    remember_triton.__wrapped__()
    threads = [threading.Thread(target=triton.runtime.cache.triton_key) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert triton.runtime.cache.triton_key() == "hash" and len(calls) == 1


def test_a_triton_without_such_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left as it is."""
    monkeypatch.delattr(triton.runtime.cache, "triton_key")
    remember_triton.__wrapped__()
    assert not hasattr(triton.runtime.cache, "triton_key")
