# SPDX-License-Identifier: Apache-2.0
"""Saved programs in a directory of each test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which the programs of a test are saved."""
    monkeypatch.setenv("THUNDER_VERIFY", "0")
    monkeypatch.setenv("THUNDER_CACHE", "1")
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
