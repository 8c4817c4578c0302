# SPDX-License-Identifier: Apache-2.0
"""`python packages/thunder-core/tools/project_urls.py ADDRESS`: set the address of the repository, everywhere.

CITATION.cff has the address (`repository-code`). The table [project.urls] of every package, which package indexes
show, follows from it. `nox -s release_check` says if a package has other addresses.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main", "repository_of", "urls_of", "write"]

ROOT = Path(__file__).resolve().parents[3]
COMMAND = "python packages/thunder-core/tools/project_urls.py https://github.com/OWNER/thunder"
_CITATION = re.compile(r'^repository-code: "?([^"\s]+)"?\n', re.MULTILINE)
_TABLE = re.compile(r"^\[project\.urls\]\n(?:[^\[\n].*\n)*\n?", re.MULTILINE)
_NEXT_TABLE = re.compile(r"^(?=\[project\.(?:optional-dependencies|entry-points))", re.MULTILINE)
_ADDRESS = re.compile(r"https://[\w.-]+(/[\w.-]+){2,}")


def repository_of(root: Path = ROOT) -> str | None:
    """Return the address of the repository, or None if nobody has named one yet."""
    found = _CITATION.search((root / "CITATION.cff").read_text(encoding="utf-8"))
    return found and found[1]


def urls_of(repository: str, package: str) -> dict[str, str]:
    """Return the addresses of a package, by the labels that package indexes know."""
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Source": f"{repository}/tree/main/packages/{package}",
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/packages/{package}/CHANGELOG.md",
    }


def write(repository: str, root: Path = ROOT) -> list[Path]:
    """Write the address to CITATION.cff and to the metadata of all packages. Return the files that changed."""
    citation = root / "CITATION.cff"
    text = _CITATION.sub("", citation.read_text(encoding="utf-8"))
    texts = {citation: f'{text.rstrip()}\nrepository-code: "{repository}"\n'}
    for path in sorted((root / "packages").glob("*/pyproject.toml")):
        lines = [f'{label} = "{url}"\n' for label, url in urls_of(repository, path.parent.name).items()]
        text = _TABLE.sub("", path.read_text(encoding="utf-8"))
        # Before the next table, so that the order of the files stays the same in all packages.
        before, after = _NEXT_TABLE.split(text, maxsplit=1)
        texts[path] = f"{before}[project.urls]\n{''.join(lines)}\n{after}"
    changed = [path for path, text in texts.items() if path.read_text(encoding="utf-8") != text]
    for path in changed:
        path.write_text(texts[path], encoding="utf-8")
    return changed


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Set the address of the repository, and print the files that changed."""
    parser = argparse.ArgumentParser(prog="project_urls", description=__doc__)
    parser.add_argument("address", metavar="ADDRESS", help="e.g. https://github.com/OWNER/thunder")
    address = parser.parse_args(arguments).address.rstrip("/")
    if not _ADDRESS.fullmatch(address) or "/OWNER/" in address:
        parser.error(f"{address} is not the address of a repository, such as https://github.com/OWNER/thunder")
    for path in write(address, root):
        print(path.relative_to(root).as_posix())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
