# SPDX-License-Identifier: Apache-2.0
"""How many models of the tables of `nox -s models` a second process finds saved: `python saved_models.py TABLE`.

TABLE is "own", "transformers" or "litgpt"; the last two need the packages that the session `models` installs. Each row
is called in evaluation and in training, by one process and then by another, whose hashes of texts differ. Printed are
the rows that did not hit, with the reasons, and those whose results differ in a bit between the processes, and the
largest deviations from eager mode. Many cores run many rows at the same time: `--workers 28`. Rows have an order
such that those that are done within `--limit` seconds are a sample of the table.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import thunder

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))
from zoo.checks import loss_of, tensors_of

TABLES = {"own": "zoo.own_models", "transformers": "zoo.transformers_models", "litgpt": "zoo.litgpt_models"}
MODES = ("evaluation", "training")


def results(entry: Any, mode: str, jit: Callable[[Any], Any]) -> tuple[list[torch.Tensor | None], Any]:
    """Call a new model until it compiles nothing more; return outputs and gradients, and what was called."""
    torch.manual_seed(0)
    model = entry.module()
    model.train(mode == "training")
    called = jit(model)
    found: list[torch.Tensor | None] = []
    for step in range(2 + entry.settling + entry.settling_in_eval):
        torch.manual_seed(step)
        inputs = entry.inputs(entry.dtype, step, False)
        with torch.set_grad_enabled(mode == "training"):
            out = called(**inputs)
        if mode == "training":
            loss_of(out).backward()
        found += [x.detach().clone() for x in tensors_of(out)]
    return [*found, *(p.grad for p in model.parameters())], called


def digest(found: list[torch.Tensor | None]) -> str:
    """Return a text that changes with each bit."""
    parts = hashlib.sha256()
    for x in found:
        parts.update(b"None" if x is None else repr((x.dtype, x.shape)).encode() + _bytes(x))
    return parts.hexdigest()


def _bytes(x: torch.Tensor) -> bytes:
    return x.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def deviation(found: list[torch.Tensor | None], expected: list[torch.Tensor | None]) -> float:
    """Return the largest difference of two lists of results, by the largest value of each tensor."""
    if [x is None for x in found] != [x is None for x in expected]:
        return float("inf")
    largest = 0.0
    for a, b in zip(found, expected):
        if a is not None and b is not None and a.numel():
            x, y = a.detach().double(), b.detach().double()
            scale = y.nan_to_num(0, 0, 0).abs().max().item() or 1.0
            largest = max(largest, (x - y).nan_to_num(0, 0, 0).abs().max().item() / scale)
            largest = largest if torch.equal(x.isfinite(), y.isfinite()) else float("inf")
    return largest


def measured(entry: Any, mode: str, folder: str, *, compares: bool) -> dict[str, Any]:
    """Call a model, compare it with eager mode if asked to, and report what became of its programs."""
    found, jitted = results(entry, mode, lambda model: thunder.jit(model, save=folder))
    stats = thunder.compile_stats(jitted)
    notes = [e.reason for e in stats.events.of("saved")]
    backward = next((x for x in notes if x.startswith("backward not saved")), None)
    compiler = "thunder.frontend.compiler" in sys.modules
    report = {
        "digest": digest(found),
        "hits": stats.saved_hits,
        "misses": stats.cache_misses,
        "not cached": stats.uncacheable or (None if stats.cache_hits + stats.saved_hits else "partly eager"),
        "notes": notes,
        "backward": backward,
        "compiler": compiler,
    }
    if compares:
        expected, _ = results(entry, mode, lambda model: model)
        report |= {"same as eager": digest(found) == digest(expected), "deviation": deviation(found, expected)}
    return report


def rows(table: str, pattern: str, every: int) -> dict[str, tuple[Any, str]]:
    """Return the models of a table and how they are called, by names. Any part of the order is a sample of them."""
    found = {}
    for entry in importlib.import_module(TABLES[table]).MODELS[::every]:
        for mode in MODES:
            name = f"{entry.name} {mode}"
            if pattern in name and (mode == "evaluation" or entry.gradients):
                found[name] = entry, mode
    return {name: found[name] for name in sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())}


# -- a process that measures rows --------------------------------------------------------------------------------------
def serve(args: argparse.Namespace) -> None:
    """Print the names of the rows; then measure each whose name is read, in a fork of this process that has imported
    everything, and print a line of JSON for it. The second process compares results with eager mode.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    known = rows(args.table, args.k, args.every)
    print(f"ROWS{json.dumps([*known])}", flush=True)
    running: dict[int, str] = {}
    lines = open(0, "rb", buffering=0)  # noqa: SIM115  (without a buffer, so that `select` sees all that is there)
    while True:
        if select.select([lines], [], [], 0.05)[0]:
            name = lines.readline().decode().strip()
            if not name:
                return
            forked = os.fork()
            if not forked:
                _measure_and_exit(*known[name], _folder(args.folder, name), compares=args.serve == 1)
            running[forked] = name
        process, status = os.waitpid(-1, os.WNOHANG) if running else (0, 0)
        if process:
            name = running.pop(process)
            report = Path(_folder(args.folder, name) + f"-{process}.json")
            found = report.read_text() if report.exists() else json.dumps({"error": f"exit status {status}"})
            print(f"ROW[{json.dumps(name)}, {found}]", flush=True)


def _folder(parent: str, name: str) -> str:
    return f"{parent}/{name.replace(' ', '-').replace('/', '-')}"


def _measure_and_exit(entry: Any, mode: str, folder: str, *, compares: bool) -> None:
    start = time.perf_counter()
    try:
        report = measured(entry, mode, folder, compares=compares)
    except BaseException as error:
        report = {"error": f"{type(error).__name__}: {error}"[:300]}
    try:
        Path(f"{folder}-{os.getpid()}.json").write_text(json.dumps(report | {"seconds": time.perf_counter() - start}))
    finally:
        os._exit(0)


# -- all processes -----------------------------------------------------------------------------------------------------
Reports = dict[str, dict[str, Any]]  # by the names of rows


class Rounds:
    """Measures rows by a first process, by a second one as soon as the first is done with a row, and by a third one if
    a set has another order in the second, so that it has compiled another program. Hashes of texts differ in each.
    """

    def __init__(self, args: argparse.Namespace, folder: str):
        self._args, self._folder = args, folder
        self.reports: list[Reports] = [{}, {}, {}]
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._lines: queue.Queue[tuple[int, str]] = queue.Queue()
        self._waiting: list[tuple[int, str]] = []  # the numbers of processes, and rows; the next one is the last
        self.names: list[str] = []
        self._running = 0

    def run(self) -> None:
        """Measure all rows, or those that are done within the limit."""
        end = time.monotonic() + self._args.limit
        self._start(0)
        self._start(1)
        while not self.names or self._waiting or self._running:
            try:
                number, line = self._lines.get(timeout=max(end - time.monotonic(), 0.0))
            except queue.Empty:
                break
            self._read(number, line)
            while self._waiting and self._running < self._args.workers:
                self._send(*self._waiting.pop())
        for process in self._processes.values():
            os.killpg(process.pid, signal.SIGKILL)

    def _read(self, number: int, line: str) -> None:
        if line.startswith("ROWS") and number == 0:
            self.names = json.loads(line[4:])
            self._waiting = [(0, name) for name in reversed(self.names)]
        elif line.startswith("ROW["):
            name, row = json.loads(line[3:])
            self.reports[number][name] = row
            self._running -= 1
            other_order = any("another order" in note for note in row.get("notes", ()))
            if (number == 0 and "error" not in row) or (number == 1 and other_order):
                self._waiting.append((number + 1, name))
            if self._args.report:
                Path(self._args.report).write_text(json.dumps(self.reports))
        elif not line:
            sys.exit(f"process {number} has ended")

    def _send(self, number: int, name: str) -> None:
        if number not in self._processes:
            self._start(number)
        stdin = self._processes[number].stdin
        assert stdin is not None
        stdin.write(name + "\n")
        stdin.flush()
        self._running += 1

    def _start(self, number: int) -> None:
        args = self._args
        command = [sys.executable, __file__, args.table, "-k", args.k, "--every", str(args.every)]
        command += ["--serve", str(number), "--folder", self._folder]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._processes[number] = process
        threading.Thread(target=self._receive, args=(number, process.stdout), daemon=True).start()

    def _receive(self, number: int, lines: Any) -> None:
        for line in lines:
            self._lines.put((number, line))
        self._lines.put((number, ""))


def summarize(table: str, rounds: Rounds) -> None:
    """Print the rows that did not hit, with reasons, and how many did."""
    first, second, third = rounds.reports
    cacheable = hits = later = equal = same = 0
    deviations = []
    for name, row in sorted(second.items()):
        before = first[name]
        if "error" in row or before["not cached"]:
            print(f"- {name}: not cacheable: {row.get('error') or before['not cached']}"[:200])
            continue
        cacheable += 1
        hit = row["hits"] > 0 and row["misses"] == 0
        hits += hit
        if not hit:
            again = third.get(name, {"hits": 0})
            later += again["hits"] > 0 and again["misses"] == 0 and again["digest"] in (before["digest"], row["digest"])
            notes = " / ".join([*before["notes"][-1:], *row["notes"][:2], *again.get("notes", ())[:1]])
            print(f"- {name}: {notes}"[:300])
        elif row["compiler"]:
            print(f"- {name}: hit, and compiled a part: {before['backward']}")
        if row["digest"] != before["digest"]:
            print(f"- {name}: other bits than in the first process")
        same += row["digest"] == before["digest"]
        equal += row["same as eager"]
        deviations.append((row["deviation"], name))
    errors = [f"- {name}: {row['error']}" for name, row in sorted(first.items()) if "error" in row]
    unsaved = sum(any(note.startswith("not saved") for note in row.get("notes", ())) for row in first.values())
    print(*errors, "largest deviations from eager mode:", sep="\n")
    print(*(f"- {x:.1e} {n}" for x, n in sorted(deviations)[-3:]), sep="\n")
    print(f"{table}, first process: {len(first)} of {len(rounds.names)} rows, {_seconds(first):.1f} s each")
    print(f"{len(errors)} failed, {unsaved} were not saved")
    print(f"second process: {len(second)} rows, {_seconds(second):.1f} s each")
    print(f"{hits} of {cacheable} cacheable rows hit, {later} more in a third process")
    print(f"{same} have the bits of the first process, {equal} those of eager mode")


def _seconds(reports: Reports) -> float:
    seconds: float = sum(row.get("seconds", 0.0) for row in reports.values())
    return seconds / max(len(reports), 1)


def main() -> None:
    """Print the rows that did not hit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("-k", default="", help="only rows whose names contain this")
    parser.add_argument("--every", type=int, default=1, help="only each n-th model")
    parser.add_argument("--workers", type=int, default=1, help="how many rows run at the same time, each with a thread")
    parser.add_argument("--report", help="write all that was found to this file, as JSON")
    parser.add_argument("--limit", type=float, default=1e6, help="end after this many seconds; what is done is printed")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(args, folder)
        rounds.run()
    summarize(args.table, rounds)


if __name__ == "__main__":
    main()
