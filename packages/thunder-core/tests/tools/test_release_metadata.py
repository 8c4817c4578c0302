# SPDX-License-Identifier: Apache-2.0
"""`nox -s release_check`: version, tag, changelog, metadata and range of a package."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from release_check import check_changelog, check_metadata, check_range, check_version

NAME = "thunder-ex-acme"
URLS = "".join(
    f'{name} = "https://example.org"\n' for name in ("Homepage", "Documentation", "Source", "Issues", "Changelog")
)
PROJECT = f"""[project]
name = "{NAME}"
version = "1.0"
requires-python = ">=3.10"
license = "Apache-2.0"
license-files = ["LICENSE"]
classifiers = [
    "Typing :: Typed", "Programming Language :: Python :: 3 :: Only",
    "Programming Language :: Python :: 3.10", "Programming Language :: Python :: 3.11",
]
dependencies = ["thunder-core>=0.1,<0.3"]
[project.urls]
{URLS}"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose package can be released."""
    files = {
        "LICENSE": "licence",
        ".ci/environments.py": 'PYTHONS = ["3.10", "3.11"]\n',
        "packages/thunder-core/pyproject.toml": '[project]\nname = "thunder-core"\nversion = "0.1.0"\n',
        f"packages/{NAME}/pyproject.toml": PROJECT,
        f"packages/{NAME}/LICENSE": "licence",
        f"packages/{NAME}/README.md": "# acme",
        f"packages/{NAME}/CHANGELOG.md": "# Changes\n\n## 1.0 (2026-11-28)\n\nThe first.\n\n## 0.9\n",
        f"packages/{NAME}/src/thunder_ex_acme/__init__.py": '__version__ = "1.0"\n',
        f"packages/{NAME}/src/thunder_ex_acme/py.typed": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def change(root: Path, name: str, old: str, new: str) -> None:
    path = root / "packages" / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize("check", [check_version, check_changelog, check_metadata, check_range])
def test_a_package_that_can_be_released(root: Path, check: Callable[[Path, str], list[str]]) -> None:
    assert check(root, NAME) == []


def test_versions(root: Path) -> None:
    """Of the sources, and in the normal form, which is that of the files' names."""
    change(root, f"{NAME}/src/thunder_ex_acme/__init__.py", "1.0", "1.1")
    assert check_version(root, NAME) == ["__version__ is '1.1', but pyproject.toml has the version 1.0"]
    change(root, f"{NAME}/src/thunder_ex_acme/__init__.py", "1.1", "1.0-rc1")
    change(root, f"{NAME}/pyproject.toml", 'version = "1.0"', 'version = "1.0-rc1"')
    assert check_version(root, NAME) == ["the version 1.0-rc1 is not in its normal form, 1.0rc1"]


def test_tags(root: Path) -> None:
    """The tag of this commit is right, and that of another one says that the version was released."""

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    git("tag", f"{NAME}-1.0")
    assert check_version(root, NAME) == []
    git("commit", "--allow-empty", "-m", "two")
    assert check_version(root, NAME) == [
        f"another commit has the tag {NAME}-1.0: this version was released, so choose the next"
    ]


@pytest.mark.parametrize(
    ("heading", "problem"),
    [
        ("1.0", "starts with '1.0'"),
        ("1.0 (unreleased)", "starts with '1.0 (unreleased)'"),
        ("1.1 (2026-11-28)", "starts with '1.1 (2026-11-28)'"),
    ],
)
def test_changelogs(root: Path, heading: str, problem: str) -> None:
    change(root, f"{NAME}/CHANGELOG.md", "1.0 (2026-11-28)", heading)
    (found,) = check_changelog(root, NAME)
    assert found == f"packages/{NAME}/CHANGELOG.md {problem} instead of '1.0 (YYYY-MM-DD)'"


def test_an_empty_section(root: Path) -> None:
    change(root, f"{NAME}/CHANGELOG.md", "The first.\n", "")
    assert check_changelog(root, NAME) == [f"packages/{NAME}/CHANGELOG.md says nothing about 1.0"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('Issues = "https://example.org"\n', "", "[project.urls] has no Issues"),
        ('"Typing :: Typed",', "", "there is no classifier 'Typing :: Typed'"),
        (
            ', "Programming Language :: Python :: 3.11"',
            "",
            "there is no classifier 'Programming Language :: Python :: 3.11'",
        ),
        (">=3.10", ">=3.9", "requires-python is '>=3.9', but 3.10 is the oldest that is tested"),
        ('"Apache-2.0"', '"MIT"', "the licence must be declared:"),
    ],
)
def test_metadata(root: Path, old: str, new: str, problem: str) -> None:
    change(root, f"{NAME}/pyproject.toml", old, new)
    (found,) = check_metadata(root, NAME)
    assert found.startswith(problem)


def test_files(root: Path) -> None:
    (root / "packages" / NAME / "src" / "thunder_ex_acme" / "py.typed").unlink()
    change(root, f"{NAME}/LICENSE", "licence", "another")
    assert check_metadata(root, NAME) == [
        f"there is no packages/{NAME}/src/thunder_ex_acme/py.typed",
        f"{NAME}/LICENSE is not the licence of the repository",
    ]


@pytest.mark.parametrize(
    ("allowed", "problem"),
    [
        (">=0.1,<0.2", None),
        (">=0.1", "it allows thunder-core 0.3, which may remove what is deprecated now"),
        ("<0.3", "it must say from which thunder-core on it works: thunder-core>=…"),
        (">=0.2,<0.4", "it must allow thunder-core 0.1.0, but it requires thunder-core<0.4,>=0.2"),
    ],
)
def test_ranges(root: Path, allowed: str, problem: str | None) -> None:
    change(root, f"{NAME}/pyproject.toml", ">=0.1,<0.3", allowed)
    assert check_range(root, NAME) == ([] if problem is None else [problem])
