# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder conformance [NAME] [pytest arguments]`: test the operators of an executor, or of every plugin.

Runs the suite of thunder-core (`thunder.tests`) in pytest, with one session per executor. Further arguments are passed
to pytest: `python -m thunder conformance acme -n 2 -k softmax --thunder-dtypes float32`. `--isolate` runs each family
of operators in a separate process, so that a crash does not affect the other families (`thunder.cli.isolate`).
`--shard I/N` runs one of N parts, and `--merge REPORT.json…` makes one table of the reports of all parts
(`--thunder-report=PATH` writes it). `--json` prints the results as JSON, and everything else to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from thunder.cli import isolate
from thunder.cli.child import look
from thunder.cli.plugins import quiet_records
from thunder.plugins import PluginState

__all__ = ["add_parser", "run", "split"]

COMMAND = "conformance"
MERGE = "--merge"
JSON = "--json"
#: The exit status of pytest if no test was selected.
NOTHING_RAN = 5
#: Options of this command, with their names in pytest, where another plugin may have an option `--shard`.
NAMES = {"--shard": isolate.SHARD}


class Job(NamedTuple):
    """The outcome of testing one executor, or of a plugin that was not tested."""

    name: str
    status: int
    state: str  # passed, failed, skipped, not tested
    reason: str | None = None

    @property
    def words(self) -> str:
        """The outcome in the summary of several jobs."""
        return f"{self.state}: {self.reason}" if self.reason else self.state


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        COMMAND,
        help="run the conformance suite for an executor, or for every plugin",
        description=__doc__,
        usage=f"thunder {COMMAND} [-h] [NAME] [{JSON}] [pytest arguments]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the executor to test (default: every installed plugin)"
    )
    # It is declared for the help. `split` leaves it among pytest's arguments, where `run` takes it.
    parser.add_argument(JSON, action="store_true", help="print JSON")
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
    as_json, rest = isolate.take_option(_joined(args.rest), JSON)
    merging, files = isolate.take_option(rest, MERGE)
    if as_json is None:
        return merge([merging, *files] if merging else files) if merging is not None else _print(_jobs(args.name, rest))
    if merging is not None or isolate.take_option(rest, isolate.REPORT)[0] is not None:
        option = MERGE if merging is not None else isolate.REPORT
        print(f"thunder conformance: {JSON} cannot be combined with {option}, which writes a report", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="thunder-conformance-") as folder:
        with contextlib.redirect_stdout(sys.stderr):
            jobs = list(_jobs(args.name, rest, Path(folder)))
        print(json.dumps({"ok": _status(jobs) == 0, "jobs": [_as_data(job, Path(folder)) for job in jobs]}, indent=2))
    return _status(jobs)


def _print(jobs: Iterator[Job]) -> int:
    """Run jobs and return the exit status. Print a summary if there are several."""
    done = list(jobs)
    if not done:
        print("thunder conformance: no executor plugin is installed; name an executor to test, such as torch")
    elif len(done) > 1 or done[0].state in ("skipped", "not tested"):
        print("\nconformance, by executor or plugin")
        for job in done:
            print(f"  {job.name}: {job.words}")
    return _status(done)


def _status(jobs: Sequence[Job]) -> int:
    """Return the exit status. A job in which nothing ran is no failure if other jobs ran tests."""
    if jobs and all(job.state == "skipped" for job in jobs):
        return NOTHING_RAN
    return max((job.status for job in jobs if job.state != "skipped"), default=0)


def _as_data(job: Job, folder: Path) -> dict[str, Any]:
    report = folder / f"{job.name}.json"
    content = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
    return {"name": job.name, "state": job.state, "reason": job.reason, "report": content}


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
    # With --json, our standard output is redirected. The child's output goes the same way.
    output = sys.stderr if sys.stdout is sys.stderr else None
    return subprocess.run(command, check=False, stdout=output).returncode


def _jobs(name: str | None, rest: Sequence[str], folder: Path | None = None) -> Iterator[Job]:
    """Test an executor, or every plugin that can run here; with a folder, write a report there for each executor."""
    if name is not None:
        yield _job(name, rest, folder)
        return
    for record in quiet_records():
        told = record.to_dict()
        if record.state is PluginState.COMPATIBLE:
            seen = look(record.name)
            told = {**told, "state": "crashed", "reason": seen["crash"]} if "crash" in seen else seen["record"]
        if told["state"] == PluginState.READY.value:
            for executor in told["executors"]:
                yield _job(executor["name"], rest, folder)
        else:
            # A plugin that is disabled or lacks its hardware is not a failure, but a broken plugin is.
            harmless = told["state"] in (PluginState.BLOCKED.value, PluginState.UNAVAILABLE.value)
            yield Job(record.name, 0 if harmless else 1, "not tested", f"{told['state']} ({told['reason']})")


def _job(executor: str, rest: Sequence[str], folder: Path | None) -> Job:
    report = [] if folder is None else [f"{isolate.REPORT}={folder / executor}.json"]
    status = test(executor, [*rest, *report])
    if status == NOTHING_RAN:
        return Job(executor, status, "skipped", "no test was selected")
    if status:
        return Job(executor, status, "failed", f"pytest ended with status {status}")
    return Job(executor, status, "passed")
