# SPDX-License-Identifier: Apache-2.0
"""Saved programs in a directory of each test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from thunder.frontend import saved_programs
from thunder.saved.store import Store


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's key, which is another one in each test."""
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: str(tmp_path / "data"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # of child processes
    return tmp_path / "data" / "key"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which the programs of a test are saved."""
    monkeypatch.setenv("THUNDER_VERIFY", "0")
    monkeypatch.setenv("THUNDER_CACHE", "1")
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(saved_programs, "registrants", set())  # of other tests
    return tmp_path / "cache"


@pytest.fixture
def rewrite() -> Callable[..., Path]:
    """A function that replaces the file of an entry as somebody does who knows the format, but not the user's key.

    With a key, the file is signed with it.
    """

    def replace(file: Path, content: Any, key: bytes | None = None) -> Path:
        file.unlink()
        written = file.with_name(Store(str(file.parent.parent), secret=key or b"-").write(file.parent.name, content))
        if key is None:
            head, _, body = written.read_bytes().partition(b"\n")
            written.write_bytes(b" ".join([*head.split(b" ")[:-1], b"-"]) + b"\n" + body)
        return written

    return replace
