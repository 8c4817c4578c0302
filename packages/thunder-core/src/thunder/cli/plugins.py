# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder plugins`: list the installed executor plugins from their metadata, without importing them."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from thunder.core.tables import format_table
from thunder.plugins import GROUP, PluginRecord, records

__all__ = ["add_parser", "quiet_records", "run"]


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "plugins", help="list the executor plugins that are installed, without importing them", description=__doc__
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """List the plugins."""
    found = quiet_records()
    if args.json:
        print(json.dumps([record.to_dict() for record in found], indent=2))
    elif not found:
        print(f"No executor plugin is installed (no entry point in the group {GROUP!r}).")
    else:
        header = ("plugin", "state", "distribution", "needs thunder-core", "module", "why")
        print(format_table(header, (_row(record) for record in found)))
        print("\n`python -m thunder doctor` loads them and reports whether they can run here.")
    return 0


def _row(record: PluginRecord) -> tuple[object, ...]:
    why = record.reason or record.conflict
    return record.name, record.state.value, record.source, record.requires_core, record.entry_point.value, why


def quiet_records() -> tuple[PluginRecord, ...]:
    """Return the records without logging messages about them, because the command prints the same information."""
    with _silence():
        return records()


@contextmanager
def _silence() -> Iterator[None]:
    log = logging.getLogger("thunder.plugins")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
