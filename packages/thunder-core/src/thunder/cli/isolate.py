# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder conformance NAME --isolate`: run the suite with a separate process for each family of operators.

A kernel that crashes ends its process. A kernel with an invalid memory access can corrupt a GPU's context for all later
tests. With separate processes, only the kernel's family fails, and the report names it. Each process logs the start and
the end of each test. Results from before a crash therefore count, and the crashing test is known. `--isolate=4` runs
four processes at a time.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from thunder.cli.child import death

__all__ = ["OPTION", "REPORT", "SHARD", "SUITE", "Session", "print_tables", "run", "take_option"]

OPTION = "--isolate"
SUITE = "thunder.tests"
REPORT, FAMILY, SHARD = "--thunder-report", "--thunder-family", "--thunder-shard"
#: The exit statuses of pytest if tests have run, or if there were none.
ENDED = (0, 1, 5)


class Session(NamedTuple):
    """The result of one process."""

    family: str
    status: int
    outcomes: list[tuple[str, dict[str, Any], str]]
    running: str | None  # the test during which the process died
    output: str
    selected: int = 0
    finished: int = 0
    matrix: str | None = None  # a digest of the tests of all shards

    @property
    def crash(self) -> str | None:
        """A description of the crash; None if it did not crash."""
        return None if self.status in ENDED else death(self.status)


def take_option(rest: Sequence[str], option: str) -> tuple[str | None, list[str]]:
    """Split off `option` (`--x` or `--x=v`). Return its value ("" if it has none) and the other arguments."""
    found, others = None, []
    for argument in rest:
        name, _, value = argument.partition("=")
        if name == option:
            found = value
        else:
            others.append(argument)
    return found, others


def run(executor: str, rest: Sequence[str], at_once: str) -> int:
    """Run the suite for one executor. Return 0 if every process exited normally and every test passed."""
    # The import is local because it imports torch, and other commands work without torch.
    from thunder.tests.target import WHOLE

    report, arguments = take_option(rest, REPORT)
    wanted, arguments = take_option(arguments, FAMILY)
    with tempfile.TemporaryDirectory(prefix="thunder-conformance-") as folder:
        families = wanted.split(",") if wanted else [WHOLE, *families_of(executor, Path(folder))]
        print(f"{executor}: {len(families)} processes, {at_once or 1} at a time", flush=True)
        with ThreadPoolExecutor(int(at_once or 1)) as pool:
            sessions = list(pool.map(lambda f: _told(_session(executor, f, arguments, Path(folder))), families))
    outcomes = [each for session in sessions for each in _outcomes_of(session, executor)]
    if report:
        _write_outputs(sessions, Path(report).parent)
    return _summarize(outcomes, report, _run_of(sessions, executor, rest, at_once))


def families_of(executor: str, folder: Path) -> list[str]:
    """Return an executor's families of operators. A separate process finds them, because plugins may crash."""
    target = folder / "families.json"
    command = [sys.executable, "-X", "faulthandler", "-m", __name__, str(target), executor]
    done = subprocess.run(command, check=False, stdout=sys.stderr)
    if done.returncode or not target.exists():
        raise SystemExit(f"thunder conformance: the process that lists operators {death(done.returncode)}")
    found: list[str] = json.loads(target.read_text(encoding="utf-8"))
    return found


def _session(executor: str, family: str, arguments: Sequence[str], folder: Path) -> Session:
    log, output = folder / f"{family}.jsonl", folder / f"{family}.txt"
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "--pyargs", SUITE, "--executor", executor]
    command += ["-q", "-p", "no:cacheprovider", f"{FAMILY}={family}", f"--thunder-log={log}", *arguments]
    with output.open("w") as stream:
        status = subprocess.run(command, check=False, stdout=stream, stderr=subprocess.STDOUT).returncode
    outcomes: list[tuple[str, dict[str, Any], str]] = []
    running, selected, finished, matrix = None, 0, 0, None
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        told = json.loads(line)
        if "start" in told:
            running = told["start"]
        elif "end" in told:
            running = None
            finished += 1
        elif "selected" in told:
            selected, matrix = told["selected"], told["matrix"]
        else:
            outcomes.append((told["outcome"], told["counted"], told["nodeid"]))
    text = output.read_text(encoding="utf-8", errors="replace")
    return Session(family, status, outcomes, running, text, selected, finished, matrix)


def _told(session: Session) -> Session:
    failed = sum(outcome == "failed" for outcome, _, _ in session.outcomes)
    if session.status == 5:
        return session  # there is nothing to test
    words = f"{len(session.outcomes) - failed} passed" + (f", {failed} failed" if failed else "")
    if session.crash:
        words += f", {session.crash}" + (f" in {session.running.rpartition('::')[2]}" if session.running else "")
    elif session.status == 1 and not failed:
        words += ", failed"
    print(f"  {session.family}: {words}", flush=True)
    return session


def _outcomes_of(session: Session, executor: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    yield from session.outcomes
    quiet = session.status == 1 and not any(outcome == "failed" for outcome, _, _ in session.outcomes)
    if session.crash is not None or quiet:
        where = session.running or session.family
        operator = f"({session.crash or 'a test that does not belong to an operator failed'})"
        counted = {"operator": operator, "family": session.family, "executor": executor, "claimed": False}
        yield "failed", counted, where


def _write_outputs(sessions: Sequence[Session], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for session in sessions:
        if session.status not in (0, 5):
            (folder / f"{session.family.replace(' ', '_')}.txt").write_text(session.output, encoding="utf-8")


def _run_of(sessions: Sequence[Session], executor: str, rest: Sequence[str], at_once: str) -> Any:
    """Describe how the results were made, as a session of pytest does for its own."""
    # The import is local because it imports torch, and other commands work without torch.
    from pytest_thunder import environment
    from thunder.tests.report import Run, command_line

    shard, _ = take_option(rest, SHARD)
    isolated = f"{OPTION}={at_once}" if at_once else OPTION
    dealt = "\n".join(f"{session.family} {session.matrix}" for session in sessions)
    return Run(
        command_line(["--pyargs", SUITE, "--executor", executor, isolated, *rest]),
        environment(),
        selected=sum(session.selected for session in sessions),
        finished=sum(session.finished for session in sessions),
        matrix=None if shard is None else hashlib.sha256(dealt.encode()).hexdigest(),
        shard=shard,
    )


def _summarize(outcomes: Sequence[tuple[str, dict[str, Any], str]], report: str | None, run: Any) -> int:
    # The import is local because it imports torch, and other commands work without torch.
    from thunder.tests.report import Outcome, Summary, write_report

    summary = Summary(Outcome(*each) for each in outcomes)
    failed = sorted({nodeid for outcome, _, nodeid in outcomes if outcome == "failed"})
    for nodeid in failed:
        print(f"FAILED {nodeid}")
    print_tables(summary)
    if report:
        write_report(summary, Path(report), run)
        print(f"written to {report}")
    return 1 if failed else 0 if outcomes else 5  # as pytest if no test was selected


def print_tables(summary: Any) -> None:
    """Print the table of each executor."""
    for name in sorted(summary.executors):
        print(f"\nconformance of {name}")
        print("\n".join([*summary.text(name), *summary.notes(name)]))


def main(arguments: Sequence[str]) -> int:
    """Run the child that lists families."""
    # The import is local because it imports torch, and other commands work without torch.
    from thunder.plugins import conformance_profile
    from thunder.tests.opinfos import all_opinfos
    from thunder.tests.target import executors_named

    target, name = arguments
    infos = list(all_opinfos())
    try:
        for executor in executors_named(name):
            profile = conformance_profile(executor.name)
            infos += profile.opinfos() if profile is not None and profile.opinfos is not None else ()
    except ValueError:
        pass  # This is an option of another pytest plugin. If it is unknown, every session reports it.
    Path(target).write_text(json.dumps(sorted({info.family for info in infos})), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
