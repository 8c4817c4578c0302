# SPDX-License-Identifier: Apache-2.0
"""`nox -s release_check [-- PACKAGE...]`: check what must hold when a package is released.

Version, tag and changelog must name one release. The metadata must have addresses (`project_urls.py` sets them),
classifiers for all Pythons that are tested, and, for a plugin, a range of thunder-core (`nox -s compat` finds it out).
The conformance tables of a package (`docs/conformance/NAME-*.md`, where NAME is its plugin, or torch and python for
thunder-core) must have been made from its sources as they are now, must be complete, and must have no failed rows.
What waits for an owner or for a machine with a GPU is reported apart from what is wrong in the sources.

A check is a function `(root, package) -> problems`. Add further checks to `CHECKS`.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from project_urls import COMMAND, repository_of, urls_of
from release_files import module_of, project_of
from thunder.plugins.sources import hash_of_sources

__all__ = [
    "CHECKS", "Page", "Table", "check", "check_changelog", "check_metadata", "check_range", "check_tables",
    "check_urls", "check_version", "main", "page_of", "verdict",
]  # fmt: skip

CORE, PREFIX = "thunder-core", "thunder-ex-"
TABLES = Path("docs", "conformance")
HEADER = "| family | claimed | passed | known failures | failed | total |"
FAILED = HEADER.strip("|").split("|").index(" failed ")

_COMMAND = re.compile(r"`((?:[A-Z_]+=\S+ )*python -m thunder conformance\b[^`]*)`")
_SOURCES = re.compile(r"Sources: (?P<distribution>\S+)(?: \S+)?, (?P<hash>sha256:[0-9a-f]{64})\.$")
_CHANGED = ("Sources: ", "Incomplete: ", "Failed, and not in the table: ")


@dataclass
class Table:
    """One conformance table of a page. `lines` are those below the table that say how it was made."""

    number: int
    rows: list[list[str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def problems(self, package: str, now: str) -> list[str]:
        """Return what is wrong with the table. `now` is the hash of the package's sources."""
        found = [f"{row[0]} has {row[FAILED]} failed" for row in self.rows if row[FAILED] != "0"]
        sources = [line for line in self.lines if line.startswith("Sources: ")]
        hashes = [match for match in map(_SOURCES.match, sources) if match is not None]
        if not hashes or len(hashes) != len(sources):
            found.append("it does not say from which sources it was made")
        elif any(match["distribution"] != package for match in hashes):
            found.append(f"it was made from the sources of another distribution than {package}")
        elif any(match["hash"] != now for match in hashes):
            found.append(f"the sources of {package} have changed since")
        return found + [line for line in self.lines if line not in sources]


@dataclass
class Page:
    """A page with conformance tables, and the commands that made them."""

    tables: list[Table] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)


def page_of(text: str) -> Page:
    """Return the tables and commands of a page."""
    page = Page(commands=list(dict.fromkeys(" ".join(each.split()) for each in _COMMAND.findall(text))))
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line == HEADER:
            page.tables.append(Table(number))
            inside = True
        elif inside and line.startswith("|"):
            if not line.startswith("|---"):
                page.tables[-1].rows.append([cell.strip() for cell in line.strip("|").split("|")])
        else:
            inside = False
            # Lines about the whole run (its tests that are in no table) follow the last table.
            if page.tables and line.startswith(_CHANGED):
                page.tables[-1].lines.append(line)
    return page


def plugins_of(package: str) -> tuple[str, ...]:
    """Return the names with which the pages of a package begin."""
    return ("torch", "python") if package == CORE else (package.removeprefix(PREFIX),)


def sources_of(root: Path, package: str) -> Path:
    """Return the folder of a package that its wheel installs."""
    return root / "packages" / package / "src" / module_of(package)


def check_tables(root: Path, package: str) -> list[str]:
    """Check that the conformance tables are those of the sources, complete, and without failures."""
    names = plugins_of(package)
    pages = [path for path in sorted((root / TABLES).glob("*.md")) if path.stem.split("-")[0] in names]
    if not pages:
        missing = f"{TABLES.as_posix()}/{names[0]}-cuda.md"
        command = f"python -m thunder conformance {names[0]} --thunder-report={missing}"
        return [f"{missing}: there is no conformance table; make it with\n    {command}"]
    now = hash_of_sources(sources_of(root, package))
    found = []
    for path in pages:
        page = page_of(path.read_text(encoding="utf-8"))
        name = path.relative_to(root).as_posix()
        wrong = [f"{name}:{table.number}: {why}" for table in page.tables for why in table.problems(package, now)]
        if not page.tables:
            wrong = [f"{name}: has no conformance table"]
        if wrong:
            commands = page.commands or [f"python -m thunder conformance {path.stem.split('-')[0]}"]
            where = " on a GPU" if "cuda" in path.stem.split("-") else ""
            wrong.append(f"make it anew{where}, with --thunder-report=PATH for the text of the page:")
            wrong += [f"    {command}" for command in commands]
            found.append("\n".join(wrong))
    return found


# -- version, changelog, tag ------------------------------------------------------------------------------------------
def check_version(root: Path, package: str) -> list[str]:
    """Check that the sources have the version of pyproject.toml, and that no other commit has its tag."""
    version = project_of(package, root)["version"]
    found = []
    module = ast.parse((sources_of(root, package) / "__init__.py").read_text(encoding="utf-8"))
    assigned = {ast.unparse(n.targets[0]): n.value for n in module.body if isinstance(n, ast.Assign)}
    said = ast.literal_eval(assigned["__version__"]) if "__version__" in assigned else None
    if said != version:
        found.append(f"__version__ is {said!r}, but pyproject.toml has the version {version}")
    if str(Version(version)) != version:
        found.append(f"the version {version} is not in its normal form, {Version(version)}")
    tag = f"{package}-{version}"
    tagged, head = (_git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") for name in (tag, "HEAD"))
    if tagged and tagged != head:
        found.append(f"another commit has the tag {tag}: this version was released, so choose the next")
    return found


def _git(root: Path, *arguments: str) -> str:
    """Return what git prints; nothing if it fails, e.g. outside of a checkout."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def check_changelog(root: Path, package: str) -> list[str]:
    """Check that the changelog starts with the version and its date, and says something about it.

    The date must not be before the last change of the package, nor after tomorrow (of another time zone).
    """
    version = project_of(package, root)["version"]
    path = root / "packages" / package / "CHANGELOG.md"
    name = path.relative_to(root).as_posix()
    sections = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    heading, _, text = sections[0].partition("\n") if sections else ("", "", "")
    found = []
    dated = re.fullmatch(rf"{re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)", heading.strip())
    if dated is None:
        found.append(f"{name} starts with {heading.strip()!r} instead of '{version} (YYYY-MM-DD)'")
    else:
        changed = _git(root, "log", "-1", "--format=%cs", "--", path.parent.as_posix())
        if not changed <= dated[1] <= str(date.today() + timedelta(days=1)):
            found.append(f"{name} has the date {dated[1]}, and the package was last changed on {changed or '?'}")
    if not text.strip():
        found.append(f"{name} says nothing about {version}")
    return found


# -- metadata ---------------------------------------------------------------------------------------------------------
CLASSIFIERS = ("Typing :: Typed", "Programming Language :: Python :: 3 :: Only")


def pythons_of(root: Path) -> list[str]:
    """Return the versions of Python that the session `versions` tests."""
    nodes = ast.parse((root / ".ci" / "environments.py").read_text(encoding="utf-8")).body
    found = [n.value for n in nodes if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "PYTHONS"]
    names: list[str] = ast.literal_eval(found[0])
    return names


def check_metadata(root: Path, package: str) -> list[str]:
    """Check the metadata that an index shows, and the files that every package has."""
    project: Any = project_of(package, root)
    folder = root / "packages" / package
    pythons = pythons_of(root)
    wanted = [*CLASSIFIERS, *(f"Programming Language :: Python :: {version}" for version in pythons)]
    found = [f"there is no classifier {each!r}" for each in wanted if each not in project.get("classifiers", ())]
    if project.get("requires-python") != f">={pythons[0]}":
        found.append(
            f"requires-python is {project.get('requires-python')!r}, but {pythons[0]} is the oldest that is tested"
        )
    if project.get("license") != "Apache-2.0" or project.get("license-files") != ["LICENSE"]:
        found.append('the licence must be declared: license = "Apache-2.0", license-files = ["LICENSE"]')
    files = [folder / "LICENSE", folder / "README.md", sources_of(root, package) / "py.typed"]
    found += [f"there is no {file.relative_to(root).as_posix()}" for file in files if not file.is_file()]
    if (folder / "LICENSE").is_file() and (folder / "LICENSE").read_bytes() != (root / "LICENSE").read_bytes():
        found.append(f"{package}/LICENSE is not the licence of the repository")
    return found


NO_ADDRESS = "the repository has no address yet"


def check_urls(root: Path, package: str) -> list[str]:
    """Check that the metadata has the addresses that follow from the one of the repository."""
    repository = repository_of(root)
    if repository is None:
        return [f"{NO_ADDRESS}: who owns it sets it with\n    {COMMAND}"]
    given = project_of(package, root).get("urls", {})
    wrong = [label for label, url in urls_of(repository, package).items() if given.get(label) != url]
    command = COMMAND.replace("https://github.com/OWNER/thunder", repository)
    return [f"[project.urls] has another {', '.join(wrong)} than {repository}: run\n    {command}"] if wrong else []


def check_range(root: Path, package: str) -> list[str]:
    """Check that a plugin allows this thunder-core, and no version that may have removed what is deprecated now."""
    if package == CORE:
        return []
    core = Version(project_of(CORE, root)["version"])
    ranges = [Requirement(text) for text in project_of(package, root).get("dependencies", ())]
    (allowed,) = [each.specifier for each in ranges if each.name == CORE] or [None]
    if allowed is None or core not in allowed:
        return [f"it must allow {CORE} {core}, but it requires {CORE}{allowed or ''}"]
    removed = Version(f"{core.major}.{core.minor + 2}")
    found = [f"it allows {CORE} {removed}, which may remove what is deprecated now"] if removed in allowed else []
    if not any(each.operator in (">=", "==", "~=") for each in allowed):
        found.append(f"it must say from which {CORE} on it works: {CORE}>=…")
    return found


CHECKS: tuple[Callable[[Path, str], list[str]], ...] = (
    check_version, check_changelog, check_metadata, check_urls, check_range, check_tables,
)  # fmt: skip


def check(root: Path, packages: Sequence[str]) -> dict[str, list[str]]:
    """Return the problems of each package, and those of no package."""
    found = {package: [problem for one in CHECKS for problem in one(root, package)] for package in packages}
    names = {name for path in (root / "packages").glob("*/pyproject.toml") for name in plugins_of(path.parent.name)}
    strangers = [path for path in sorted((root / TABLES).glob("*.md")) if path.stem.split("-")[0] not in names]
    if strangers:
        found["this repository"] = [f"{path.relative_to(root).as_posix()} is of no package" for path in strangers]
    return found


#: What nobody can mend in the sources, by the beginning of the problem.
WAITS = {
    NO_ADDRESS: "the repository has an address",
    TABLES.as_posix(): "its conformance tables are made anew",
}


def verdict(problems: Sequence[str]) -> str:
    """Say whether a package can be released, and if not, whether that can be mended in the sources."""
    if not problems:
        return "can be released"
    if not all(problem.startswith(tuple(WAITS)) for problem in problems):
        return "cannot be released"
    missing = [words for start, words in WAITS.items() if any(problem.startswith(start) for problem in problems)]
    return f"cannot be released before {' and '.join(missing)}; all else is right"


def main(arguments: Sequence[str], root: Path = Path(__file__).resolve().parents[3]) -> int:
    """Check packages, or all of them, and return 0 if they can be released."""
    known = sorted(path.parent.name for path in (root / "packages").glob("*/pyproject.toml"))
    parser = argparse.ArgumentParser(prog="nox -s release_check --", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(known)} (default: all)")
    packages = parser.parse_args(arguments).packages or known
    if unknown := sorted(set(packages) - set(known)):
        parser.error(f"there is no package {', '.join(unknown)}; the packages are {', '.join(known)}")
    problems = check(root, packages)
    for package, found in problems.items():
        print(f"{package}: {verdict(found)}")
        for problem in found:
            print("\n".join(f"  {line}" for line in problem.splitlines()))
    return 1 if any(problems.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
