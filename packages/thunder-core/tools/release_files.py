# SPDX-License-Identifier: Apache-2.0
"""Check the wheels and sdists of packages, for `nox -s build` and `nox -s release_check`.

`python -m release_files PACKAGE… --dist DIST [--again OTHER]`. DIST has a folder for each package, with its wheel and
its sdist. OTHER has those of a second build, which must be the same bytes.
"""

from __future__ import annotations

import argparse
import configparser
import email
import hashlib
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

__all__ = ["check_sdist", "check_wheel", "differences", "main", "module_of", "project_of"]

CORE = "thunder-core"
ROOT = Path(__file__).resolve().parents[3]
#: Modules of a wheel beside the package's own.
BESIDE = {CORE: {"pytest_thunder.py"}}
#: Files that a wheel must have beside those of every package.
NEEDED = {CORE: ["thunder/tests/__init__.py", "pytest_thunder.py"]}
SDIST = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO")
_MISPLACED = (".so", ".pyd", ".dll", ".pyc", ".orig", ".rej", ".swp", ".log", ".key", ".pem")


def project_of(package: str, root: Path = ROOT) -> dict[str, Any]:
    """Return the table `project` of a package's pyproject.toml."""
    text = (root / "packages" / package / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text).get("project", {})
    return found


def module_of(package: str) -> str:
    """Return the name of the package that a wheel installs."""
    return "thunder" if package == CORE else package.replace("-", "_")


def check_wheel(package: str, project: Mapping[str, Any], wheel: Path) -> Iterator[str]:
    """Yield what is wrong with a wheel: its files, version, entry points, requirements and licence."""
    module = module_of(package)
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
        info = next(file.split("/")[0] for file in files if file.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        entry_points = configparser.ConfigParser(delimiters=("=",))
        if f"{info}/entry_points.txt" in files:
            entry_points.read_string(archive.read(f"{info}/entry_points.txt").decode())
    wanted = [f"{module}/__init__.py", f"{module}/py.typed", f"{info}/licenses/LICENSE", *NEEDED.get(package, ())]
    yield from (f"it lacks {file}" for file in wanted if file not in files)
    for group, entries in project.get("entry-points", {}).items():
        for key, value in entries.items():
            if entry_points.get(group, key, fallback=None) != value:
                yield f"it has no entry point {key} = {value} in [{group}]"
    if f"-{project['version']}-" not in wheel.name or metadata["Version"] != project["version"]:
        yield f"its version is not {project['version']}"
    if not wheel.name.endswith("-py3-none-any.whl"):
        yield "it is for some machines only: our wheels are pure Python"
    listed = {str(Requirement(text)) for text in project.get("dependencies", ())}
    given = {str(Requirement(text)) for text in metadata.get_all("Requires-Dist", ()) if "extra ==" not in text}
    if listed != given:
        yield f"it requires {', '.join(sorted(given))} instead of {', '.join(sorted(listed))}"
    if strangers := {file.split("/")[0] for file in files} - {module, info} - BESIDE.get(package, set()):
        yield f"it would also install {', '.join(sorted(strangers))}"
    yield from _misplaced(files)


def check_sdist(sdist: Path) -> Iterator[str]:
    """Yield what is wrong with an sdist, from which a package is built and tested again."""
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    files = {member.name.partition("/")[2] for member in members}
    yield from (f"it lacks {file}" for file in SDIST if file not in files)
    yield from (f"it lacks {each}" for each in ("src/", "tests/") if not any(file.startswith(each) for file in files))
    yield from (f"{member.name} is a link or a device" for member in members if not (member.isfile() or member.isdir()))
    yield from _misplaced(files)


def _misplaced(files: Any) -> Iterator[str]:
    for file in sorted(files):
        hidden = any(
            part.startswith(".") and part not in (".github", ".gitignore.template") for part in Path(file).parts
        )
        if (
            file.endswith(_MISPLACED)
            or "__pycache__" in file
            or (hidden and not file.endswith((".template", ".gitignore")))
        ):
            yield f"{file} does not belong there"


def differences(first: Path, second: Path) -> Iterator[str]:
    """Yield the files of two builds that are not the same bytes."""
    builds = [{path.name: path for path in folder.iterdir() if path.is_file()} for folder in (first, second)]
    for name in sorted({*builds[0], *builds[1]}):
        hashes = {hashlib.sha256(each[name].read_bytes()).hexdigest() if name in each else None for each in builds}
        if len(hashes) != 1:
            yield f"{name}: two builds differ"


def check(package: str, dist: Path, again: Path | None = None, root: Path = ROOT) -> list[str]:
    """Return what is wrong with the files of a package."""
    found = []
    for pattern in ("*.whl", "*.tar.gz"):
        files = sorted((dist / package).glob(pattern))
        if len(files) != 1:
            found.append(f"{dist / package} has {len(files)} files {pattern} instead of one")
            continue
        is_wheel = pattern == "*.whl"
        problems = check_wheel(package, project_of(package, root), files[0]) if is_wheel else check_sdist(files[0])
        found += [f"{files[0].name}: {problem}" for problem in problems]
    return found + (list(differences(dist / package, again / package)) if again is not None else [])


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Check the files of packages and return 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(prog="release_files", description=__doc__)
    parser.add_argument("packages", nargs="+", metavar="PACKAGE")
    parser.add_argument("--dist", type=Path, required=True, help="the folder of a build")
    parser.add_argument("--again", type=Path, help="the folder of a second build")
    given = parser.parse_args(arguments)
    problems = [problem for package in given.packages for problem in check(package, given.dist, given.again, root)]
    print("\n".join(problems) or f"the files of {', '.join(given.packages)} are right")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
