# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder conformance [NAME] [pytest arguments]`: test the operators of an executor, or of every plugin.

Runs the suite of thunder-core (`thunder.tests`) in pytest, with one session per executor. Further arguments are passed
to pytest: `python -m thunder conformance acme -n 2 -k softmax --thunder-dtypes float32`. `--isolate` runs each family
of operators in a separate process, so that a crash does not affect the other families (`thunder.cli.isolate`).
`--shard I/N` runs one of N parts, and `--merge REPORT.json…` makes one table of the reports of all parts
(`--thunder-report=PATH` writes it).
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from thunder.cli import isolate
from thunder.cli.child import look
from thunder.cli.plugins import quiet_records
from thunder.plugins import PluginState

__all__ = ["add_parser", "run", "split"]

COMMAND = "conformance"
MERGE = "--merge"
#: Options of this command, with their names in pytest, where another plugin may have an option `--shard`.
NAMES = {"--shard": isolate.SHARD}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        COMMAND,
        help="run the conformance suite for an executor, or for every plugin",
        description=__doc__,
        usage=f"thunder {COMMAND} [-h] [NAME] [pytest arguments]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the executor to test (default: every installed plugin)"
    )
    parser.set_defaults(run=run)
    return parser


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate this command's arguments from pytest's arguments.

    Some options of pytest have values (`-n 2`). argparse does not know these options, and would parse such a value as
    NAME. Therefore NAME must be the first argument, and all other arguments are pytest's.
    """
    arguments = list(arguments)
    if arguments[:1] != [COMMAND]:
        return arguments, []
    own = 2 if arguments[1:2] and (not arguments[1].startswith("-") or arguments[1] in ("-h", "--help")) else 1
    rest = arguments[own:]
    return arguments[:own], rest[1:] if rest[:1] == ["--"] else rest


def run(args: argparse.Namespace) -> int:
    """Run the suite and return 0 if every session passed."""
    if importlib.util.find_spec("pytest") is None:
        print(
            "thunder conformance: the suite runs in pytest, which is not installed. "
            "Install pytest and the suite's other requirements: python -m pip install 'thunder-core[tests]'",
            file=sys.stderr,
        )
        return 2
    rest = _joined(args.rest)
    merging, files = isolate.take_option(rest, MERGE)
    if merging is not None:
        return merge([merging, *files] if merging else files)
    if args.name is not None:
        return test(args.name, rest)
    outcomes = list(_every_plugin(rest))
    if not outcomes:
        print("thunder conformance: no executor plugin is installed; name an executor to test, such as torch")
        return 0
    print("\nconformance of every plugin")
    for name, _, words in outcomes:
        print(f"  {name}: {words}")
    return max(status for _, status, _ in outcomes)


def _joined(rest: Sequence[str]) -> list[str]:
    """Return the arguments with `--option value` as `--option=value`, for the options that this command reads."""
    joined: list[str] = []
    wanted = (*NAMES, *NAMES.values(), isolate.REPORT, isolate.FAMILY)
    for argument in rest:
        if joined and joined[-1] in wanted:
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    parts = [argument.partition("=") for argument in joined]
    return [f"{NAMES.get(name, name)}{equals}{value}" for name, equals, value in parts]


def merge(arguments: Sequence[str]) -> int:
    """Make one table of the reports of all shards. Return 0 if no test failed, and every test ended."""
    # The import is local because it imports torch, and other commands work without torch.
    from thunder.tests import shards
    from thunder.tests.report import write_report

    report, files = isolate.take_option(arguments, isolate.REPORT)
    try:
        if not files:
            raise shards.BadShards(f"{MERGE} needs the reports of the shards: {MERGE} 1.json 2.json")
        summary, run = shards.merge({file: shards.read(Path(file)) for file in files})
    except shards.BadShards as error:
        print(f"thunder conformance: {error}", file=sys.stderr)
        return 2
    isolate.print_tables(summary)
    print("\n".join(["", *run.lines()]))
    if report:
        write_report(summary, Path(report), run)
        print(f"written to {report}")
    return 0 if run.complete and not summary.failed else 1


def test(executor: str, rest: Sequence[str]) -> int:
    """Run the suite for one executor, in one pytest session or, with `--isolate`, in one session per family.

    The suite's pytest plugin is an entry point, so `-p` is not needed.
    """
    at_once, rest = isolate.take_option(rest, isolate.OPTION)
    if at_once is not None:
        return isolate.run(executor, rest, at_once)
    command = [sys.executable, "-m", "pytest", "--pyargs", isolate.SUITE, "--executor", executor, *rest]
    print(f"$ python {' '.join(command[1:])}", flush=True)
    return subprocess.run(command, check=False).returncode


def _every_plugin(rest: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """Test every plugin that can run here. Report the reason for each plugin that cannot."""
    for record in quiet_records():
        told = record.to_dict()
        if record.state is PluginState.COMPATIBLE:
            seen = look(record.name)
            told = {**told, "state": "crashed", "reason": seen["crash"]} if "crash" in seen else seen["record"]
        if told["state"] == PluginState.READY.value:
            for executor in told["executors"]:
                status = test(executor["name"], rest)
                yield executor["name"], status, "passed" if status == 0 else f"pytest ended with status {status}"
        else:
            # A plugin that is disabled or lacks its hardware is not a failure, but a broken plugin is.
            harmless = told["state"] in (PluginState.BLOCKED.value, PluginState.UNAVAILABLE.value)
            yield record.name, 0 if harmless else 1, f"not tested: {told['state']} ({told['reason']})"
