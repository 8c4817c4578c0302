# SPDX-License-Identifier: Apache-2.0
"""Run all that needs several processes of one machine: the tests of ranks, then `distributed.py` and `simulation.py`.

    python packages/thunder-core/benchmarks/ranks.py [--ranks 2] [--backend gloo|nccl] [--only TEXT...] [--jobs N]
        [--seconds N] [--log FILE]

With NCCL, each rank needs a GPU. Tests that need more ranks than there are GPUs are skipped. Parts run in the order
below, tests several at a time with `--jobs`. The screen shows benchmarks, and what failed in short; the file of `--log`
contains the whole output. A table of all parts comes last.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/frontend/test_sharded_steps.py", "tests/frontend/test_data_parallel.py",
    "tests/frontend/test_fully_sharded.py", "tests/capture/dispatch/test_dtensors.py",
    "tests/capture/dispatch/test_collectives.py", "tests/frontend/test_check_ranks.py",
    "tests/frontend/test_rank_agreement.py", "tests/frontend/test_adverse_ranks.py",
    "tests/examine/test_measured_collectives.py",
)  # fmt: skip
BENCHMARKS: dict[str, list[str]] = {
    "benchmarks/distributed.py": [],
    "benchmarks/simulation.py": ["--layers", "4"],
}  # with their options
SHOWN = 60  # lines of a part's output on the screen


RUNNING: list[subprocess.Popen[str]] = []  # and those that have ended


def kill(process: subprocess.Popen[str]) -> None:
    """End a command with the ranks that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


class Part:
    """A command with its output, how it ended, and how long it took."""

    def __init__(self, name: str, args: argparse.Namespace):
        self.name, self.args = name, args
        self.status, self.output, self.seconds = "not run", "", 0.0

    @property
    def command(self) -> list[str]:
        if self.name in TESTS:
            return [sys.executable, "-m", "pytest", "-q", "--tb=short", "--import-mode=importlib", self.name]
        options = ["--ranks", str(self.args.ranks), "--backend", self.args.backend, *BENCHMARKS[self.name]]
        return [sys.executable, self.name, *options]

    def run(self) -> None:
        """Run the command in the package's folder, show what matters, and add the whole output to the log."""
        start = time.perf_counter()
        # In a session of its own, the time limit also ends the ranks, which are its children.
        process = subprocess.Popen(
            self.command, cwd=ROOT, env={**os.environ, "THUNDER_RANKS_BACKEND": self.args.backend}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, errors="replace",
        )  # fmt: skip
        RUNNING.append(process)
        try:
            self.output, _ = process.communicate(timeout=self.args.seconds)
            self.status = "passed" if process.returncode == 0 else f"exit {process.returncode}"
        except subprocess.TimeoutExpired:
            kill(process)
            self.output, _ = process.communicate()
            self.status = "timeout"
        self.seconds = time.perf_counter() - start
        heading = f"==== {self.name}: {self.status}, {self.seconds:.0f} s"
        if self.args.log:
            with open(self.args.log, "a", encoding="utf-8") as log:
                log.write(f"{heading}\n{self.output}\n")
        print("\n".join([heading, *self.shown()]), flush=True)

    def shown(self) -> list[str]:
        """Return the lines for the screen: all of a benchmark, of tests what failed, each message once."""
        lines = self.output.splitlines()
        if self.name in TESTS:
            if self.status == "passed":
                return lines[-1:]
            failed = [line for line in lines if line.startswith(("E  ", "FAILED", "ERROR"))]
            lines = [*dict.fromkeys(failed or lines), *lines[-1:]]
        if len(lines) > SHOWN:
            lines = [*lines[: SHOWN // 3], f"... {len(lines) - SHOWN} lines ...", *lines[-(SHOWN - SHOWN // 3) :]]
        return [line[:240] for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="nccl" if torch.cuda.is_available() else "gloo")
    parser.add_argument("--only", nargs="*", default=[""], help='only parts whose name contains one, e.g. "tests/"')
    parser.add_argument("--jobs", type=int, default=1, help="how many files of tests run at once")
    parser.add_argument("--seconds", type=float, default=600, help="the limit of each part")
    parser.add_argument("--log", default="", help="also write the output of all parts to this file")
    args = parser.parse_args()
    chosen = [name for name in (*TESTS, *BENCHMARKS) if any(text in name for text in args.only)]
    if args.log:
        Path(args.log).write_text("", encoding="utf-8")
    parts = [Part(name, args) for name in chosen]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    pool = ThreadPoolExecutor(args.jobs)
    try:
        list(pool.map(Part.run, [part for part in parts if part.name in TESTS]))
        for part in parts:
            if part.name in BENCHMARKS:
                part.run()
    except BaseException:  # also Ctrl-C and a time limit of the caller
        pool.shutdown(wait=False, cancel_futures=True)
        for process in RUNNING:
            kill(process)
        raise
    print(f"\n{args.ranks} ranks, {args.backend}\n\n| part | result | seconds |\n|---|---|---|")
    for part in parts:
        print(f"| {part.name} | {part.status} | {part.seconds:.0f} |")
    sys.exit(any(part.status != "passed" for part in parts))


if __name__ == "__main__":
    main()
