# SPDX-License-Identifier: Apache-2.0
"""The hash of a package's sources: any change of a source changes it, and nothing else does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import thunder
from thunder.plugins.sources import hash_of_sources, package_of

FILES = {
    "__init__.py": b"",
    "plugin.py": b"a = 1\nb = 2\n",
    "known_failures.toml": b"# none\n",
    "kernels/norm.cu": b"__global__ void norm() {}\n",
    "table.bin": b"\0\r\n",
}


def write(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_the_same_sources_elsewhere(tmp_path: Path) -> None:
    """The place, the order in which files were made, line endings, bytecode and files of tools make no difference."""
    expected = hash_of_sources(write(tmp_path / "a" / "acme"))
    assert re.fullmatch("sha256:[0-9a-f]{64}", expected)
    other = write(tmp_path / "b" / "acme2", dict(reversed(FILES.items())))
    write(
        other,
        {
            "plugin.py": b"a = 1\r\nb = 2\r\n",
            "__pycache__/plugin.cpython-312.pyc": b"\0",
            "kernels/__pycache__/old.py": b"x",
            "old.pyc": b"\0",
            "_native.cpython-312-x86_64-linux-gnu.so": b"\0",
            "libacme.so.3": b"\0",
            ".mypy_cache/plugin.json": b"{}",
            ".DS_Store": b"\0",
        },
    )
    assert hash_of_sources(other) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"plugin.py": b"a = 1\nb = 3\n"},
        {"plugin.py": b"a = 1\n\nb = 2\n"},
        {"known_failures.toml": b"# one\n"},
        {"kernels/norm.cu": b""},
        {"table.bin": b"\0\n"},  # not a text: it has no line endings
        {"added.py": b""},
        {"kernels/__init__.py": b""},
    ],
    ids=str,
)
def test_other_sources(tmp_path: Path, changed: dict[str, bytes]) -> None:
    """A change of a file, and a further file."""
    before = hash_of_sources(write(tmp_path / "acme"))
    assert hash_of_sources(write(tmp_path / "acme", changed)) != before


def test_fewer_and_renamed_files(tmp_path: Path) -> None:
    """A file that is gone, and one with another name."""
    package = write(tmp_path / "acme")
    hashes = {hash_of_sources(package)}
    (package / "plugin.py").rename(package / "executor.py")
    hashes.add(hash_of_sources(package))
    (package / "executor.py").unlink()
    hashes.add(hash_of_sources(package))
    assert len(hashes) == 3


def test_the_package_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outermost package; below a namespace, the package in it; nothing is imported."""
    write(tmp_path, dict.fromkeys(("acme/__init__.py", "acme/ex/plugin.py", "alone_acme.py"), b"raise SystemExit"))
    write(tmp_path, dict.fromkeys(("vendors/acme/__init__.py", "vendors/acme/plugin.py"), b"raise SystemExit"))
    monkeypatch.syspath_prepend(tmp_path)
    assert package_of("acme.ex.plugin") == tmp_path / "acme"
    assert package_of("vendors.acme.plugin") == tmp_path / "vendors" / "acme"
    assert package_of("alone_acme") == tmp_path / "alone_acme.py"
    assert package_of("vendors.nonesuch.plugin") is None
    assert package_of("no_such_acme.plugin") is None
    assert package_of("sys") is None
    assert package_of("thunder.plugins") == Path(thunder.__file__).parent
    assert not {"acme", "vendors.acme", "alone_acme"} & set(sys.modules)
    assert hash_of_sources(tmp_path / "alone_acme.py") != hash_of_sources(tmp_path / "acme")
