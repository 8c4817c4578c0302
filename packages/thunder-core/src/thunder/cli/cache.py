# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder cache ls|show|verify|prune`: the programs that are saved on this machine.

`ls` lists them, `show NAME` prints the texts of one of them, `verify` checks every file as a process does that reads
it, and `prune` removes those that were not used for the longest time, or all.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from thunder.core.tables import format_table

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "cache", help="list, print, check or remove the programs that are saved", description=__doc__
    )
    parser.add_argument("--dir", help="the directory (default: THUNDER_CACHE_DIR, or the user's cache directory)")
    commands = parser.add_subparsers(dest="what", metavar="ls|show|verify|prune", required=True)
    for name, help in (("ls", "list the programs"), ("verify", "check all files")):
        commands.add_parser(name, help=help).add_argument("--json", action="store_true", help="print JSON")
    commands.add_parser("show", help="print a program").add_argument("name", help="the beginning of its name")
    prune = commands.add_parser("prune", help="remove the programs that were not used for the longest time")
    prune.add_argument("--all", action="store_true", help="remove all programs")
    prune.add_argument("--max-bytes", type=int, help="keep at most so many bytes")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run one of the subcommands."""
    # The imports are local: they load torch, and other commands work without torch.
    from thunder.saved.store import Store, default_directory
    from thunder.saved.verify import Refused

    store = Store(args.dir or default_directory())
    try:
        return {"ls": _list, "show": _show, "verify": _verify, "prune": _prune}[args.what](store, args)
    except Refused as error:
        print(f"thunder cache: {error}", file=sys.stderr)
        return 1


def _entries(store: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the files of the store with their contents, or with the reason why they are refused."""
    from thunder.saved.verify import Refused  # imports torch

    for file in store.files():
        if not file.name.startswith("."):
            try:
                yield file, store.read(file.key, file.name)
            except Refused as error:
                yield file, error


def _list(store: Any, args: argparse.Namespace) -> int:
    rows = []
    for file, content in _entries(store):
        if isinstance(content, Exception) or content.get("kind") != "program":
            continue
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.used))
        rows.append(
            (file.name[:12], content.get("title"), content.get("operations"), content.get("seconds"), file.size, used)
        )
    header = ("program", "function", "operations", "seconds to compile", "bytes", "last used")
    if args.json:
        print(json.dumps([dict(zip(header, row)) for row in rows], indent=2))
    elif rows:
        print(format_table(header, rows))
    else:
        print(f"No program is saved in {store.directory}.")
    return 0


def _show(store: Any, args: argparse.Namespace) -> int:
    for file, content in _entries(store):
        if file.name.startswith(args.name) and not isinstance(content, Exception):
            for program in (
                *content.get("programs", {}).values(),
                *([content["program"]] if "program" in content else ()),
            ):
                print(f"{program['text']}\n")
            return 0
    print(f"thunder cache: no program begins with {args.name!r}", file=sys.stderr)
    return 1


def _verify(store: Any, args: argparse.Namespace) -> int:
    """Check names, owners and texts of all files, without resolving what they refer to."""
    from thunder.saved.programs import SavedText  # imports torch
    from thunder.saved.verify import Refused  # imports torch

    refused, checked = [], 0
    for file, content in _entries(store):
        checked += 1
        try:
            if isinstance(content, Exception):
                raise content
            for kind, program in content.get("programs", {}).items():
                _, signed = store.read_signed(file.key, file.name)
                SavedText(program).check("prologue" if kind == "prologue" else "program", signed)
            if content.get("source"):
                SavedText(content["source"]["program"]).check("source")
            if "program" in content:
                SavedText(content["program"]).check("program")
        except (Refused, KeyError, TypeError, AttributeError) as error:
            refused.append((file.name[:12], str(error)))
    if args.json:
        print(json.dumps({"checked": checked, "refused": dict(refused)}, indent=2))
    else:
        print(
            format_table(("file", "refused because"), refused) if refused else f"{checked} files are as they should be."
        )
    return 1 if refused else 0


def _prune(store: Any, args: argparse.Namespace) -> int:
    removed = store.prune(0 if args.all else args.max_bytes)
    print(f"removed {removed} bytes of {store.directory}")
    return 0
