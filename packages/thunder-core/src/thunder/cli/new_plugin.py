# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder new-plugin NAME`: write the repository of a new executor plugin.

The repository is complete: a plugin with an operator, its gradient and samples (`--fusion`: a fusion executor), tests,
the conformance suite as a test, a CI workflow, and the metadata of the wheel. Its files are those of the plugin `acme`
in `plugin_template/`, with the name replaced.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from pathlib import Path
from typing import Any

from thunder.cli.plugins import quiet_records
from thunder.plugins.discovery import core_version
from thunder.plugins.env import major_and_minor

__all__ = ["add_parser", "files_of", "run", "why_bad"]

COMMAND = "new-plugin"
TEMPLATE = Path(__file__).parent / "plugin_template"
#: The ending of the template's files, so that no tool takes them for files of this project.
SUFFIX = ".template"
#: The names in the template that `files_of` replaces. A longer name comes before its parts.
NAME, DISTRIBUTION, CORE_RANGE = "acme", "thunder-ex-acme", "thunder-core>=0.1,<0.3"
#: Names of executors and packages of thunder-core.
RESERVED = frozenset({"core", "python", "thunder", "torch", "torch_compile"})
LONGEST = 30


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        COMMAND, help="write the repository of a new executor plugin", description=__doc__
    )
    parser.add_argument("name", metavar="NAME", help="the plugin's name: lower-case letters, digits and underscores")
    parser.add_argument("--fusion", action="store_true", help="a fusion executor instead of an operator")
    parser.add_argument(
        "--into", type=Path, metavar="DIR", help="the new directory (default: thunder-ex-NAME in the current one)"
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Write the files. Return 2 if the name cannot be used or the directory has files."""
    target = args.into or Path(distribution_of(args.name))
    reason = why_bad(args.name) or why_taken(target)
    if reason is not None:
        print(f"thunder {COMMAND}: {reason}", file=sys.stderr)
        return 2
    for path, text in files_of(args.name, fusion=args.fusion).items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(file)
    print(f"\nNext: cd {target} && python -m pip install --editable '.[tests]' && python -m pytest")
    return 0


def why_bad(name: str) -> str | None:
    """Return why a plugin cannot have this name; None if it can."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        return f"{name!r} is not a plugin's name: use lower-case letters, digits and underscores, such as acme_kernels"
    if len(name) > LONGEST:
        return f"{name!r} has {len(name)} characters; the most is {LONGEST}"
    if name in RESERVED or keyword.iskeyword(name):
        return f"{name!r} is reserved by thunder or Python; choose another name"
    for record in quiet_records():
        if record.name == name:
            return f"{record.source} already provides a plugin named {name!r}; choose another name, or uninstall it"
    return None


def why_taken(target: Path) -> str | None:
    """Return why the files cannot be written to this directory; None if they can. Nothing is ever overwritten."""
    if target.exists() and not target.is_dir():
        return f"{target} is not a directory; name another one with --into"
    if target.exists() and any(target.iterdir()):
        return f"{target} already has files, which are never overwritten; name another directory with --into"
    return None


def distribution_of(name: str) -> str:
    """Return the name of the plugin's distribution, which users install."""
    return f"thunder-ex-{name.replace('_', '-')}"


def files_of(name: str, *, fusion: bool) -> dict[str, str]:
    """Return the texts of the new repository by their paths."""
    found = {}
    for folder in (TEMPLATE / "both", TEMPLATE / ("fusion" if fusion else "operator")):
        for file in sorted(folder.rglob(f"*{SUFFIX}")):
            path = file.relative_to(folder).as_posix().removesuffix(SUFFIX)
            found[_renamed(path, name)] = _renamed(file.read_text(encoding="utf-8"), name)
    return found


def _renamed(text: str, name: str) -> str:
    new = {CORE_RANGE: f"thunder-core{_core_range()}", DISTRIBUTION: distribution_of(name), NAME: name}
    return re.sub("|".join(map(re.escape, new)), lambda found: new[found[0]], text)


def _core_range() -> str:
    """Return the range of this thunder-core and the next minor version, in which deprecated names still work."""
    major, minor = major_and_minor(core_version() or "0.1")
    return f">={major}.{minor},<{major}.{minor + 2}"
