# SPDX-License-Identifier: Apache-2.0
"""Choices on disk: written once, read only if they are whole, and found by what they depend on."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from thunder.extend.choice_store import Stored, cache_folder, digest, read_choice, write_choice, write_once

NAMES = ["torch", "acme"]


def test_a_choice_is_stored_once(tmp_path: Path) -> None:
    """The first writer wins, and nothing else is left in the folder."""
    path = tmp_path / "new" / "a.json"
    first, second = Stored("acme", {"torch": 2.0, "acme": 1.0}), Stored("torch", {})
    assert write_choice(path, NAMES, first, {"operation": "softmax"}) == first
    assert write_choice(path, NAMES, second, {"operation": "softmax"}) == first == read_choice(path, NAMES)
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]
    assert json.loads(path.read_text())["operation"] == "softmax"
    assert path.parent.stat().st_mode & 0o77 == 0


def test_threads_agree(tmp_path: Path) -> None:
    path, found = tmp_path / "a.json", []

    def write(name: str) -> None:
        found.append(write_choice(path, NAMES, Stored(name, {}), {}))

    threads = [threading.Thread(target=write, args=(NAMES[i % 2],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each.chosen for each in found if each}) == 1 and len(found) == 8


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\x00\xff", b"[]", b"1", b"null", b'{"chosen": "acme"}', b'{"chosen": "other", "times": {}}',
        b'{"chosen": ["acme"], "times": {}}', b'{"chosen": "acme", "times": {"acme": "fast"}}',
        b'{"chosen": "acme", "times": [1]}', b"[" * 70000, b'{"chosen": "acme", "times": {}, "x": "' + b" " * 70000,
    ],
)  # fmt: skip
def test_a_damaged_file_is_none(text: bytes, tmp_path: Path) -> None:
    """It is written anew."""
    path = tmp_path / "a.json"
    path.write_bytes(text)
    assert read_choice(path, NAMES) is None
    assert write_choice(path, NAMES, Stored("acme", {}), {}) == Stored("acme", {}) == read_choice(path, NAMES)


def test_where_nothing_can_be_stored(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert write_choice(tmp_path / "file" / "a.json", NAMES, Stored("acme", {}), {}) is None


@pytest.mark.parametrize("links", [True, False])
def test_who_is_first_counts(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process writes while this one makes its text. Without hard links, the last one wins."""

    def refuses(*args: object) -> None:
        raise PermissionError

    def make() -> str:
        write_once(tmp_path / "a.txt", lambda: "theirs")
        return "ours"

    if not links:
        monkeypatch.setattr(os, "link", refuses)
    assert write_once(tmp_path / "a.txt", make).read_text() == ("theirs" if links else "ours")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_what_a_name_depends_on() -> None:
    assert digest("a", (1, 2)) == digest("a", [1, 2]) != digest("a", (1, 3))
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    with pytest.raises(TypeError, match="pass its name"):
        digest(object())


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: dict[str, Any] = {"THUNDER_CACHE_DIR": tmp_path / "a", "XDG_CACHE_HOME": tmp_path / "b", "HOME": tmp_path}
    for name in wanted:
        monkeypatch.setenv(name, str(wanted[name]))
    assert cache_folder() == tmp_path / "a"
    monkeypatch.delenv("THUNDER_CACHE_DIR")
    assert cache_folder() == tmp_path / "b" / "thunder"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache" / "thunder"
