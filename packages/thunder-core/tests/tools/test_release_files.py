# SPDX-License-Identifier: Apache-2.0
"""What `nox -s release_check` refuses in a wheel and in an sdist, and that it sees two builds that differ."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from release_files import check_sdist, check_wheel, differences, main

NAME = "thunder-ex-acme"
PROJECT = """[project]
name = "thunder-ex-acme"
version = "1.0"
dependencies = ["thunder-core>=0.1,<0.3"]
[project.entry-points."thunder.executors.v1"]
acme = "thunder_ex_acme.plugin"
"""
INFO = "thunder_ex_acme-1.0.dist-info"
WHEEL = {
    "thunder_ex_acme/__init__.py": "",
    "thunder_ex_acme/py.typed": "",
    f"{INFO}/licenses/LICENSE": "licence",
    f"{INFO}/METADATA": "Name: thunder-ex-acme\nVersion: 1.0\nRequires-Dist: thunder-core<0.3,>=0.1\n"
    'Requires-Dist: pytest; extra == "tests"\n',
    f"{INFO}/entry_points.txt": "[thunder.executors.v1]\nacme = thunder_ex_acme.plugin\n",
}
SDIST = ["pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO", "src/a.py", "tests/test_a.py"]


def project() -> dict[str, Any]:
    return {
        "version": "1.0",
        "dependencies": ["thunder-core>=0.1,<0.3"],
        "entry-points": {"thunder.executors.v1": {"acme": "thunder_ex_acme.plugin"}},
    }


def wheel(folder: Path, files: dict[str, str], name: str = "thunder_ex_acme-1.0-py3-none-any.whl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return folder / name


def sdist(folder: Path, files: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "thunder_ex_acme-1.0.tar.gz"
    with tarfile.open(path, "w") as archive:
        for name in files:
            archive.addfile(tarfile.TarInfo(f"thunder_ex_acme-1.0/{name}"), io.BytesIO())
    return path


def without(name: str) -> dict[str, str]:
    return {path: text for path, text in WHEEL.items() if path != name}


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (WHEEL, None),
        (without("thunder_ex_acme/py.typed"), "it lacks thunder_ex_acme/py.typed"),
        (without(f"{INFO}/licenses/LICENSE"), f"it lacks {INFO}/licenses/LICENSE"),
        (
            without(f"{INFO}/entry_points.txt"),
            "it has no entry point acme = thunder_ex_acme.plugin in [thunder.executors.v1]",
        ),
        ({**WHEEL, "tests/test_a.py": ""}, "it would also install tests"),
        ({**WHEEL, "thunder_ex_acme/a.pyc": ""}, "thunder_ex_acme/a.pyc does not belong there"),
        ({**WHEEL, "thunder_ex_acme/.env": ""}, "thunder_ex_acme/.env does not belong there"),
        (
            {**WHEEL, f"{INFO}/METADATA": "Version: 1.0\nRequires-Dist: numpy\n"},
            "it requires numpy instead of thunder-core<0.3,>=0.1",
        ),
    ],
)
def test_wheels(files: dict[str, str], problem: str | None, tmp_path: Path) -> None:
    assert list(check_wheel(NAME, project(), wheel(tmp_path, files))) == ([] if problem is None else [problem])


def test_names_of_wheels(tmp_path: Path) -> None:
    """Another version, and a wheel for one machine."""
    path = wheel(tmp_path, WHEEL, "thunder_ex_acme-1.1-py3-none-any.whl")
    assert list(check_wheel(NAME, project(), path)) == ["its version is not 1.0"]
    path = wheel(tmp_path, WHEEL, "thunder_ex_acme-1.0-cp311-cp311-linux_x86_64.whl")
    assert list(check_wheel(NAME, project(), path)) == ["it is for some machines only: our wheels are pure Python"]


@pytest.mark.parametrize("missing", ["LICENSE", "tests/test_a.py", None])
def test_sdists(missing: str | None, tmp_path: Path) -> None:
    found = list(check_sdist(sdist(tmp_path, [name for name in SDIST if name != missing])))
    assert found == ([] if missing is None else [f"it lacks {missing.replace('test_a.py', '')}"])


def test_two_builds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same bytes, or the names of the files that are not."""
    folder = tmp_path / "packages" / NAME
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    for build in ("one", "two"):
        wheel(tmp_path / build / NAME, WHEEL)
        sdist(tmp_path / build / NAME, SDIST)
    arguments = [NAME, "--dist", str(tmp_path / "one"), "--again", str(tmp_path / "two")]
    assert main(arguments, tmp_path) == 0, capsys.readouterr().out
    wheel(tmp_path / "two" / NAME, {**WHEEL, "thunder_ex_acme/__init__.py": "x = 1"})
    assert main(arguments, tmp_path) == 1
    assert capsys.readouterr().out.endswith("thunder_ex_acme-1.0-py3-none-any.whl: two builds differ\n")
    (tmp_path / "two" / NAME / "thunder_ex_acme-1.0.tar.gz").unlink()
    assert len(list(differences(tmp_path / "one" / NAME, tmp_path / "two" / NAME))) == 2
