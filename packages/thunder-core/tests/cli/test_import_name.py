# SPDX-License-Identifier: Apache-2.0
"""Other owners of the import name: found by what they install, whatever they are called."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from thunder.cli.import_name import other_owners


def install(folder: Path, name: str, **files: str) -> None:
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    for file, text in files.items():
        (info / file.replace("__", ".")).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("files", "owns"),
    [
        ({"RECORD": "thunder/__init__.py,sha256=x,1\nlightning_thunder-1.0.dist-info/METADATA,,\n"}, True),
        ({"RECORD": "a/b.py,,\nthunder/core/x.py,,\n"}, True),
        ({"RECORD": "thunder.py,,\n"}, True),
        ({"top_level__txt": "other\nthunder\n"}, True),
        ({"SOURCES__txt": "setup.py\nthunder/__init__.py\n"}, True),
        ({"RECORD": "thunder_ex_acme/__init__.py,,\nlib/thunder/x.py,,\nthunderbird/x.py,,\n"}, False),
        ({"top_level__txt": "thunderous\n"}, False),
        ({}, False),
    ],
)
def test_owners(tmp_path: Path, files: dict[str, str], owns: bool) -> None:
    """By list of files or by top-level names."""
    install(tmp_path, "lightning-thunder", **files)
    install(tmp_path, "Thunder_Core", RECORD="thunder/__init__.py,,\n")
    found = other_owners(metadata.distributions(path=[str(tmp_path)]))
    assert found == (["lightning-thunder 1.0"] if owns else [])


def test_broken_metadata(tmp_path: Path) -> None:
    """A distribution without readable metadata owns nothing."""
    install(tmp_path, "broken", RECORD="thunder/x.py,,\n")
    (tmp_path / "broken-1.0.dist-info" / "METADATA").unlink()
    assert other_owners(metadata.distributions(path=[str(tmp_path)])) == []


def test_this_environment() -> None:
    """The environment of the tests has one owner of the name."""
    assert other_owners() == []
