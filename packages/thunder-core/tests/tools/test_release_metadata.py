# SPDX-License-Identifier: Apache-2.0
"""`nox -s release_check`: version, tag, changelog, metadata and range of a package."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import project_urls
from release_check import check_changelog, check_metadata, check_range, check_urls, check_version, verdict
from release_files import project_of

NAME = "thunder-ex-acme"
REPOSITORY = "https://example.org/people/thunder"
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

[project.entry-points."thunder.executors.v1"]
acme = "thunder_ex_acme.plugin"
"""
CORE = '[project]\nname = "thunder-core"\nversion = "0.1.0"\n\n[project.optional-dependencies]\ntests = []\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose package can be released."""
    files = {
        "LICENSE": "licence",
        ".ci/environments.py": 'PYTHONS = ["3.10", "3.11"]\n',
        "CITATION.cff": "cff-version: 1.2.0\n",
        "packages/thunder-core/pyproject.toml": CORE,
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
    project_urls.main([REPOSITORY], tmp_path)
    return tmp_path


def commit(root: Path, message: str, when: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    env = {**os.environ, "GIT_COMMITTER_DATE": f"{when}T12:00:00+00:00"}
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "--allow-empty", "-m", message]):
        start = ["git", "-C", str(root)]
        subprocess.run([*start, *command], check=True, capture_output=True, env=env)


def change(root: Path, name: str, old: str, new: str) -> None:
    path = root / "packages" / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize("check", [check_version, check_changelog, check_metadata, check_urls, check_range])
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

    commit(root, "one", "2026-11-28")
    subprocess.run(["git", "-C", str(root), "tag", f"{NAME}-1.0"], check=True)
    assert check_version(root, NAME) == []
    commit(root, "two", "2026-11-28")
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


def test_the_date_of_a_changelog(root: Path) -> None:
    """Not before the last commit of the package, which others do not count for, and not in the future."""
    commit(root, "one", "2026-11-28")
    (root / "packages" / "thunder-core" / "README.md").write_text("# core")
    commit(root, "two", "2026-11-29")
    assert check_changelog(root, NAME) == []
    (root / "packages" / NAME / "README.md").write_text("# acme!")
    commit(root, "three", "2026-11-29")
    told = f"packages/{NAME}/CHANGELOG.md has the date {{}}, and the package was last changed on 2026-11-29"
    assert check_changelog(root, NAME) == [told.format("2026-11-28")]
    change(root, f"{NAME}/CHANGELOG.md", "2026-11-28", "3026-11-28")
    assert check_changelog(root, NAME) == [told.format("3026-11-28")]


def test_no_address(root: Path) -> None:
    """The one place to set it is named."""
    (root / "CITATION.cff").write_text("cff-version: 1.2.0\n")
    (found,) = check_urls(root, NAME)
    assert found == f"the repository has no address yet: who owns it sets it with\n    {project_urls.COMMAND}"


def test_addresses(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are set in all packages at once, a second time too, and another one is named."""
    assert f"{REPOSITORY}/blob/main/packages/{NAME}/CHANGELOG.md" in project_of(NAME, root)["urls"]["Changelog"]
    moved = "https://example.org/others/thunder"
    capsys.readouterr()
    assert project_urls.main([f"{moved}/"], root) == 0
    files = ["CITATION.cff", "packages/thunder-core/pyproject.toml", f"packages/{NAME}/pyproject.toml"]
    assert capsys.readouterr().out.splitlines() == files
    assert project_of(NAME, root)["urls"]["Issues"] == f"{moved}/issues"
    assert project_of(NAME, root)["entry-points"] == {"thunder.executors.v1": {"acme": "thunder_ex_acme.plugin"}}
    assert check_urls(root, "thunder-core") == check_urls(root, NAME) == []
    assert project_urls.write(moved, root) == []
    change(root, f"{NAME}/pyproject.toml", f"{moved}/issues", "https://example.org")
    (found,) = check_urls(root, NAME)
    assert found.startswith(f"[project.urls] has another Issues than {moved}: run\n    python packages/")
    assert found.endswith(f"project_urls.py {moved}")


@pytest.mark.parametrize(
    "address", ["http://example.org/a/b", "https://example.org", "https://github.com/OWNER/thunder"]
)
def test_no_addresses(root: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        project_urls.main([address], root)
    assert "is not the address of a repository" in capsys.readouterr().err


def test_verdicts() -> None:
    """What nobody can mend in the sources is reported apart from what is wrong there."""
    address, table = "the repository has no address yet: who", "docs/conformance/acme-cuda.md:3: old"
    assert verdict([]) == "can be released"
    assert verdict(["__version__ is wrong", table]) == "cannot be released"
    assert verdict([address]) == "cannot be released before the repository has an address; all else is right"
    assert verdict([table, address]) == (
        "cannot be released before the repository has an address and its conformance tables are made anew; "
        "all else is right"
    )


def test_an_empty_section(root: Path) -> None:
    change(root, f"{NAME}/CHANGELOG.md", "The first.\n", "")
    assert check_changelog(root, NAME) == [f"packages/{NAME}/CHANGELOG.md says nothing about 1.0"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
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
