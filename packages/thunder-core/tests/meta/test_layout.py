# SPDX-License-Identifier: Apache-2.0
"""The repository keeps its own rules: how files open, how long they grow, what each package holds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
SPDX = "# SPDX-License-Identifier: Apache-2.0"
COMFORTABLE, LONGEST = 600, 800

# Files past the comfortable length, and why each is better whole.
LONG_FOR_A_REASON: dict[str, str] = {}

PACKAGES = sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml"))
BY_NAME = {"argvalues": PACKAGES, "ids": lambda path: path.name}


def python_files(*folders: str) -> Iterator[Path]:
    """Our Python files in these folders of every package, and the ones at the top of the repository."""
    for package in PACKAGES:
        for folder in folders:
            yield from sorted((package / folder).rglob("*.py"))
    if folders != ("src",):
        top = (ROOT / "noxfile.py", *sorted((ROOT / ".ci").glob("*.py")), ROOT / "docs" / "conf.py")
        yield from (path for path in top if path.exists())


def named(path: Path) -> str:
    """A file's path in the repository."""
    return path.relative_to(ROOT).as_posix()


def test_there_is_something_to_check() -> None:
    """The folders are where this file thinks they are."""
    assert [path.name for path in PACKAGES if path.name == "thunder-core"] == ["thunder-core"]
    assert len(list(python_files("src"))) > 20


def test_every_file_says_what_it_is_for() -> None:
    """Licence line first, then a docstring."""
    wrong = []
    for path in python_files("src", "tests", "benchmarks", "tools"):
        text = path.read_text(encoding="utf-8")
        if not text.startswith(SPDX + "\n"):
            wrong.append(f"{named(path)}: the first line is not {SPDX!r}")
        elif not ast.get_docstring(ast.parse(text)):
            wrong.append(f"{named(path)}: no docstring says what the file is for")
    assert not wrong, "\n".join(wrong)


def test_no_file_grows_too_long() -> None:
    """Past 600 lines a file needs a reason (listed above), past 800 it needs splitting."""
    wrong = []
    for path in python_files("src"):
        length = len(path.read_text(encoding="utf-8").splitlines())
        if length > LONGEST:
            wrong.append(f"{named(path)}: {length} lines, the most is {LONGEST}")
        elif length > COMFORTABLE and named(path) not in LONG_FOR_A_REASON:
            wrong.append(f"{named(path)}: {length} lines; past {COMFORTABLE}, give a reason in LONG_FOR_A_REASON")
        elif length <= COMFORTABLE and named(path) in LONG_FOR_A_REASON:
            wrong.append(f"{named(path)}: {length} lines; it no longer needs its reason in LONG_FOR_A_REASON")
    known = {named(path) for path in python_files("src")}
    wrong += [f"{name}: listed in LONG_FOR_A_REASON, and gone" for name in LONG_FOR_A_REASON if name not in known]
    assert not wrong, "\n".join(wrong)


def test_no_collections_of_strangers() -> None:
    """No utils.py, helpers.py or common.py; core/utils.py re-exports names that the outside world expects there."""
    allowed = {"packages/thunder-core/src/thunder/core/utils.py"}
    strangers = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    wrong = [named(path) for path in python_files("src", "tests") if path.name in strangers]
    assert set(wrong) <= allowed, wrong


def test_the_page_on_the_design_names_every_module_of_capture() -> None:
    """The largest part has a map, on which nothing is missing and nothing is gone."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = page.split("## Capture")[1].split("\n## ")[0]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| `")]
    source = ROOT / "packages" / "thunder-core" / "src" / "thunder"
    seen = set()
    for row in rows:
        folder = re.findall(r"`([\w/]+)/`", row[1])[0]
        named_there = set(re.findall(r"`(\w+)`", row[2]))
        modules = {path.stem for path in (source / folder).glob("*.py")} - {"__init__"}
        missing = modules - named_there
        assert not missing, f"docs/design.md does not say what the modules of {folder}/ are for: {missing}"
        seen.add(folder)
    folders = {path.relative_to(source).as_posix() for path in (source / "capture").iterdir() if path.is_dir()}
    assert {f for f in folders if not f.endswith("__pycache__")} <= seen


@pytest.mark.parametrize("package", **BY_NAME)
def test_a_package_is_complete(package: Path) -> None:
    """Each package stands on its own: metadata, words, history, licence, sources, tests, types."""
    missing = [
        name for name in ("README.md", "CHANGELOG.md", "LICENSE", "src", "tests") if not (package / name).exists()
    ]
    assert not missing, f"{package.name} lacks {missing}"
    assert list((package / "src").glob("*/py.typed")), f"{package.name} lacks py.typed"
    assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("package", **BY_NAME)
def test_the_version_is_static_and_told_once(package: Path) -> None:
    """The version stands in pyproject.toml, and the changelog opens with what it brings."""
    text = (package / "pyproject.toml").read_text(encoding="utf-8")
    versions = re.findall(r'^version = "([^"]+)"$', text, re.MULTILINE)
    assert len(versions) == 1
    assert not re.search(r"^dynamic\s*=", text, re.MULTILINE)
    entries = re.findall(r"^## (\S+)", (package / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert entries[0] in (versions[0], "Unreleased"), f"{package.name}: the changelog opens with {entries[0]}"


def test_core_names_no_plugin_in_its_imports() -> None:
    """import-linter forbids the plugins that it knows of; this sees the ones that are new."""
    core = ROOT / "packages" / "thunder-core" / "src"
    pattern = re.compile(r"^\s*(?:import|from) +thunder_ex_", re.MULTILINE)
    assert not [named(path) for path in core.rglob("*.py") if pattern.search(path.read_text(encoding="utf-8"))]


def test_no_machine_is_named() -> None:
    """Nothing here depends on, or tells of, the machine it was written on: no absolute home, work or scratch paths."""
    folders = ("home", "root", "work", "opt", "Users", "mnt", "private")
    pattern = re.compile(r"(?<![\w.}/:*-])/(?:" + "|".join(folders) + r")/\w+")
    texts = [
        *python_files("src", "tests", "benchmarks", "tools"),
        *ROOT.glob("*.md"),
        *ROOT.glob("*.toml"),
        *ROOT.glob(".ci/*"),
    ]
    texts += [path for package in PACKAGES for path in (*package.glob("*.md"), *package.glob("*.toml"))]
    texts += [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
    texts += [*(ROOT / ".github").rglob("*.md"), *(ROOT / ".github").rglob("*.yml")]
    wrong = [
        f"{named(path)}: {found[0]}"
        for path in texts
        if path.is_file() and (found := pattern.search(path.read_text(encoding="utf-8")))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_workflows_run_what_the_readme_says() -> None:
    """Public CI runs the README's commands; each session that a workflow names is in the noxfile."""
    noxfiles = [ROOT / "noxfile.py", ROOT / ".ci" / "releasing.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in noxfiles)
    sessions = set(re.findall(r"^def (\w+)\(session", text, re.MULTILINE))
    workflows = "".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    named_there = {name for line in re.findall(r"nox -s ([\w -]+)", workflows, re.MULTILINE) for name in line.split()}
    assert {name.partition("-")[0] for name in named_there} <= sessions
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^python -m nox -s (\w+)", readme, re.MULTILINE)) <= named_there
    assert {"docs", "build", "lint", "types", "imports"} <= named_there


def test_no_package_claims_free_threading() -> None:
    """docs/compatibility.md says that thunder was not tested without the GIL."""
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert "does not support them without the GIL" in page
    for package in PACKAGES:
        assert "Free Threading" not in (package / "pyproject.toml").read_text(encoding="utf-8")


def test_the_citation_has_the_version_of_core() -> None:
    """A release changes both."""
    version = re.findall(r'^version = "([^"]+)"', (ROOT / "packages/thunder-core/pyproject.toml").read_text(), re.M)
    assert re.findall(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), re.M) == version
