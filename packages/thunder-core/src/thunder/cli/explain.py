# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder explain SCRIPT [ARGUMENT…]`: run a script, and report what thunder did.

The report contains `thunder.explain` of each function that the script has jitted. With `--json`, it contains the events
(`core/events.py`), and the output of the script goes to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import Any

from thunder.cli.script import every_jitted, run_script

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "explain", help="run a script, and report what was compiled, recompiled or ran eagerly", description=__doc__
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("script", metavar="SCRIPT", help="the script to run")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the script and print the report. Return the status of the script."""
    # The import is local because it imports torch, and other commands work without torch.
    from thunder.core.events import recent_events

    if not os.path.isfile(args.script):
        print(f"thunder explain: there is no file {args.script!r}", file=sys.stderr)
        return 2
    to_stderr = contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()
    with every_jitted() as jitted, to_stderr:
        status = run_script(args.script, args.arguments)
    if args.json:
        functions = [{"function": repr(f), "explain": f._stats.explain().splitlines()} for f in jitted]
        events = [event.to_dict() for event in recent_events()]
        print(json.dumps({"functions": functions, "events": events}, indent=2))
    else:
        print("\n\n".join(str(f._stats) for f in jitted) or "the script called thunder.jit for no function")
    return status
