# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder ops`: list the operations that an executor can run, and the operator or transform that runs each.

A particular call also depends on the checker, which needs the arguments: see `thunder.examine`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from thunder.core.tables import format_table
from thunder.plugins import manager

__all__ = ["Claim", "add_parser", "claims_of", "run"]


class Claim(NamedTuple):
    """One operation that an executor runs.

    id: the operation's id.
    kind: `operator` (an operator of the executor), `implementation` (an operation of thunder that the executor
      implements), `gradient` (the executor has only a gradient rule for the operation), or `fusion` (the executor can
      include the operation in fusions).
    runs: the operator or transform that replaces the operation.
    checker: whether claiming depends on the arguments.
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
        "ops", help="list the operations that an executor can run", description=__doc__
    )
    parser.add_argument("--executor", metavar="NAME", required=True, help="torch, python, or a plugin's executor")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """List the operations."""
    error = manager().env.torch_error
    if error is not None:
        print(f"thunder ops: executors need torch, which cannot be imported: {error}", file=sys.stderr)
        return 1
    # The import is local because it imports torch, and other commands work without torch.
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


def _mark(value: bool) -> str:
    return "yes" if value else ""


def _text(identifier: Any) -> str:
    """Format an operation's id, which may be any hashable value."""
    if isinstance(identifier, tuple):
        return ".".join(map(_text, identifier))
    return identifier.__name__ if callable(identifier) and hasattr(identifier, "__name__") else str(identifier)


def claims_of(executor: Any) -> Iterator[Claim]:
    """Yield the operations that an executor can run. Its checkers are not called."""
    # The import is local because it imports torch, and other commands work without torch.
    from thunder.core.prims import all_prims
    from thunder.core.symbol import BoundSymbol
    from thunder.torch import all_torchsymbols

    taken = dict(executor.implmap)
    for symbol in (*all_prims().values(), *all_torchsymbols().values()):
        # An executor may derive implementations from the operation (as the torch executor does), so each operation is
        # queried.
        how = executor.implementation(BoundSymbol(symbol, (), {}, None))
        if how is not None:
            taken.setdefault(symbol.id, how)
    serving = {how.op for how in taken.values()}
    for symbol in executor.opmap.values():
        if symbol not in serving:  # the other operators are listed with the operation that they implement
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
