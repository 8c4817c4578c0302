# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder report FILE.py:NAME`, or `report SCRIPT.py [ARGUMENT…]`: write a zip for a bug report.

The zip contains versions, options, the states of plugins, traces, guards, and a script that reproduces the failure with
random inputs of the same metadata. It contains no element of a tensor. With FILE.py:NAME, the call is compared with
eager mode. A script runs as usual, and the zip describes all functions that it has jitted and, if a call of one of them
fails, this call.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import Any

from thunder.cli.script import every_jitted, run_script
from thunder.cli.target import BadTarget, add_target_parser, file_to_write, load_target

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = add_target_parser(
        subparsers,
        "report",
        __doc__,
        run,
        help="write a zip for a bug report, without data of the user",
        metavar="FILE.py:NAME | SCRIPT.py",
    )
    parser.add_argument("arguments", metavar="ARGUMENT", nargs="*", help="arguments of the script")
    parser.add_argument(
        "--output",
        default="thunder_report.zip",
        metavar="PATH",
        type=file_to_write,
        help="default: thunder_report.zip",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Write the report. Return 1 if the call or the script fails."""
    # The import is local because it imports torch, and other commands work without torch.
    from thunder import examine

    to_stderr = contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()
    if args.target.endswith(".py"):
        archive, status = _report_script(args, to_stderr)
    else:
        with to_stderr:
            target = load_target(args.target, args.input, args.seed)
            archive = examine.report(target.fn, *target.args, file=args.output, **target.kwargs)
        status = int(archive.failed)
    print(json.dumps(archive.to_dict(), indent=2) if args.json else archive)
    return status


def _report_script(args: argparse.Namespace, to_stderr: Any) -> tuple[Any, int]:
    # The imports are local because they import torch, and other commands work without torch.
    from thunder.core.tracebacks import all_frames
    from thunder.examine.archive import Archive, add_call, failing_call

    if not os.path.isfile(args.target):
        raise BadTarget(f"there is no file {args.target!r}")
    errors: list[BaseException] = []
    with every_jitted() as jitted, to_stderr, all_frames():
        status = run_script(args.target, args.arguments, errors)
        archive = Archive()
        failing = failing_call(errors[0]) if errors else None
        for number, function in enumerate(jitted, start=1):
            archive.add_function(f"program {number}", function)
        if failing is not None:
            function, given, named = failing
            add_call(archive, "failing call", function, given, named)
        if errors:
            archive.add_error(errors[0])
        if not jitted:
            archive.summary.append("the script called thunder.jit for no function")
    return archive.write(args.output), status
