# SPDX-License-Identifier: Apache-2.0
"""`nox -s saved_versions`: what it calls wrong. Its processes are played by this one, once with its own versions."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

import saved_versions as versions
from thunder.frontend import saved_programs


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of this process in place of another one."""
    for name in ("THUNDER_VERIFY", "THUNDER_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(saved_programs, "registrants", set())  # of other tests
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(versions, "run", lambda _, folder, exporting=False: versions.child(folder, exporting))


@pytest.mark.usefixtures("alone")
def test_one_interpreter(tmp_path: Path) -> None:
    """An interpreter reads its own programs, and runs its own file."""
    assert versions.check(["python"], tmp_path) == []


REPORT: dict[str, Any] = {
    "versions": ["3.12.1", "2.11.0"],
    "programs": {"f": {"values": ["0x1p0"], "hits": 0, "compilations": 1, "notes": ["miss: nothing", "saved: 1"]}},
    "loaded": {"of0.exported.thunder": [1.0]},
}


def changed(report: dict[str, Any], **program: Any) -> dict[str, Any]:
    """Return a report about a program of which something differs."""
    report = copy.deepcopy(report)
    report["programs"]["f"].update(program)
    return report


HIT = changed(REPORT, hits=1, compilations=0, notes=["hit: 1"])
REFUSED = changed(REPORT, notes=["miss: 1 is damaged: its content has another hash", "saved: 1"])


@pytest.mark.parametrize(
    "report, options, message",
    [
        (REPORT, {"hit": False}, None),
        (HIT, {"hit": True}, None),
        (REFUSED, {"hit": False, "refused": True}, None),
        (changed(HIT, values=["0x1p1"]), {"hit": True}, "other values"),
        (REPORT, {"hit": True}, "it is compiled"),
        (HIT, {"hit": False}, "a program is found"),
        (changed(REPORT, notes=["saved: 1"]), {"hit": False}, "not every miss is explained"),
        (REPORT, {"hit": False, "refused": True}, "not refused"),
    ],
)
def test_what_is_wrong_with_programs(report: Any, options: Any, message: str | None) -> None:
    """Other values, a program that is not found, or one that must not be found."""
    failures = versions.wrong(versions.Interpreter("", Path(), REPORT), report, "again", **options)
    assert not failures if message is None else message in failures[0]


@pytest.mark.parametrize(
    "found, message",
    [
        ([1.0000001], None),
        ([1.1], "differs by"),
        ("it was exported with Python 3.12.1 and torch 2.11.0", None),
        ("it is damaged", "is refused"),
    ],
)
def test_what_is_wrong_with_files(found: Any, message: str | None) -> None:
    """Other results than the writer's, or an error that does not name the writer's versions."""
    writer = versions.Interpreter("", Path("of0"), REPORT)
    reader = versions.Interpreter("", Path("of1"), REPORT | {"versions": ["3.14.0", "2.15.0"]})
    failures = versions.wrong_files(reader, {"loaded": {"of0.exported.thunder": found}}, [writer])
    assert not failures if message is None else message in failures[0]


def test_files_in_the_place_of_others(tmp_path: Path) -> None:
    """Each folder of the reader gets the files of the other interpreter."""
    for interpreter, keys in (("mine", "ab"), ("theirs", "c")):
        for key in keys:
            (tmp_path / interpreter / key).mkdir(parents=True)
            (tmp_path / interpreter / key / hashlib.sha256(key.encode()).hexdigest()).write_text(key)
    found = versions.relabelled([tmp_path / "theirs"], tmp_path / "mine", tmp_path / "target")
    assert sorted(file.parent.name + file.read_text() for file in found.glob("*/*")) == ["ac", "bc"]
    assert found.stat().st_mode & 0o777 == 0o700
