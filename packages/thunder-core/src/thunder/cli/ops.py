# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder ops`: the operations that an executor says it can run, and how; or torch's whole surface.

`--executor NAME`: whether it takes a particular call is for its checker to say, which sees the arguments;
`thunder.examine` asks it. `--surface`: every public name of torch is called through `thunder.jit` and compared with
torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from thunder.cli.table import format_table
from thunder.plugins import manager

__all__ = ["Claim", "add_parser", "claims_of", "run"]


class Claim(NamedTuple):
    """One operation that an executor runs.

    id: the operation's id. kind: `operator` (one that the executor brings), `implementation` (an operation of thunder
    that it takes over), `gradient` (it only brings another gradient rule), or `fusion` (it takes the operation into
    its fusions). runs: the operator or transform that stands in for it. checker: whether it looks at the arguments
    first.
    """

    id: str
    kind: str
    runs: str
    checker: bool
    gradient: bool
    priority: int | None


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "ops", help="list the operations that an executor can run, or torch's surface", description=__doc__
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--executor", metavar="NAME", help="torch, python, or an installed plugin's")
    what.add_argument("--surface", action="store_true", help="walk every public name of torch and compare with torch")
    parser.add_argument("--only", metavar="TEXT", default="", help="with --surface: only names with this in them")
    parser.add_argument("--write", metavar="PATH", help="with --surface: write what was found as a page of Markdown")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """List the operations."""
    error = manager().env.torch_error
    if error is not None:
        print(f"thunder ops: executors need torch, which cannot be imported: {error}", file=sys.stderr)
        return 1
    if args.surface:
        return walk_surface(args)
    from thunder.extend import get_executor

    executor = get_executor(args.executor)
    claims = sorted(claims_of(executor))
    if args.json:
        told = {"executor": executor.name, "version": executor.version, "operations": [c._asdict() for c in claims]}
        print(json.dumps(told, indent=2))
        return 0
    header = ("operation", "kind", "runs", "checks", "gradient", "priority")
    rows = [(c.id, c.kind, c.runs, _mark(c.checker), _mark(c.gradient), c.priority) for c in claims]
    print(format_table(header, rows))
    version = f" {executor.version}" if executor.version else ""
    print(f"\n{executor.name}{version} claims {len(claims)} operations")
    return 0


def walk_surface(args: argparse.Namespace) -> int:
    """Walk torch's public names; 1 where one of them differs from torch."""
    from thunder.tests.surface.page import HEADER, page, rows
    from thunder.tests.surface.walk import walk

    findings = []
    for finding in walk(lambda entry: args.only in entry.path):
        findings.append(finding)
        for failure in finding.failures:
            print(f"{finding.entry.path}: {failure}", file=sys.stderr, flush=True)
    failing = [finding for finding in findings if finding.failures]
    if args.json:
        told = [{**vars(f), "entry": f.entry.path} for f in findings]
        print(json.dumps(told, indent=2))
    else:
        print(format_table(HEADER, rows(findings)))
        print(f"\n{len(findings) - len(failing)} of {len(findings)} names agree with torch")
    if args.write:
        Path(args.write).write_text(page(findings), encoding="utf-8")
    return 1 if failing or not findings else 0


def _mark(value: bool) -> str:
    return "yes" if value else ""


def _text(identifier: Any) -> str:
    """An operation's id as a person would write it; any hashable value can be one."""
    if isinstance(identifier, tuple):
        return ".".join(map(_text, identifier))
    return identifier.__name__ if callable(identifier) and hasattr(identifier, "__name__") else str(identifier)


def claims_of(executor: Any) -> Iterator[Claim]:
    """The operations that an executor runs, whatever the arguments: its checkers are not asked."""
    from thunder.core.prims import all_prims
    from thunder.core.symbol import BoundSymbol
    from thunder.torch import all_torchsymbols

    taken = dict(executor.implmap)
    for symbol in (*all_prims().values(), *all_torchsymbols().values()):
        # An executor may derive what it runs from the operation (the torch executor does), so it is asked about each.
        how = executor.implementation(BoundSymbol(symbol, (), {}, None))
        if how is not None:
            taken.setdefault(symbol.id, how)
    serving = {how.op for how in taken.values()}
    for symbol in executor.opmap.values():
        if symbol not in serving:  # the others are told with the operation that they run
            yield Claim(_text(symbol.id), "operator", symbol.name, False, False, None)
    for identifier, how in taken.items():
        runs = "" if how.op is None else how.op.name
        if how.execution_transform is not None:
            runs = getattr(how.execution_transform, "__name__", repr(how.execution_transform))
        kind = "implementation" if how.executable else "gradient"
        checked, gradient = how.checker is not None, how.grad_transform is not None
        yield Claim(_text(identifier), kind, runs, checked, gradient, how.priority)
    for identifier, checker in getattr(executor, "_supported", {}).items():
        yield Claim(_text(identifier), "fusion", "", checker is not None, False, None)
