# SPDX-License-Identifier: Apache-2.0
"""How many models of the tables of `nox -s models` a second process finds saved: `python saved_models.py TABLE`.

TABLE is "own", "transformers" or "litgpt"; the last two need the packages that the session `models` installs. Each row
is called in evaluation and in training, by one process and then by another. Printed are the rows that did not hit, with
the reasons, and those whose results differ in a bit between the processes, and the largest deviations from eager mode.
Many cores run many rows at the same time: `--workers 28`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
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
    """Return the models of a table and how they are called, by names."""
    found = {}
    for entry in importlib.import_module(TABLES[table]).MODELS[::every]:
        for mode in MODES:
            name = f"{entry.name} {mode}"
            if pattern in name and (mode == "evaluation" or entry.gradients):
                found[name] = entry, mode
    return found


def child(args: argparse.Namespace) -> None:
    """Measure all rows, each in a fork of this process, and print a line of JSON for each.

    So that no worker is left with a long row at the end, rows that took long in the process before come first. Only
    the second process compares with eager mode.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    known: dict[str, float] = json.loads(args.seconds)
    todo = rows(args.table, args.k, args.every)
    names = sorted(todo, key=lambda name: -known.get(name, 0.0 if todo[name][1] == "evaluation" else 1.0))
    running: dict[int, str] = {}
    while names or running:
        while names and len(running) < args.workers:
            name = names.pop(0)
            forked = os.fork()
            if not forked:
                _measure_and_exit(*todo[name], _folder(args.child, name), compares=bool(known))
            running[forked] = name
        process, status = os.wait()
        name = running.pop(process)
        report = _folder(args.child, name) + ".json"
        found = Path(report).read_text() if os.path.exists(report) else json.dumps({"error": f"exit status {status}"})
        Path(report).unlink(missing_ok=True)
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
        Path(folder + ".json").write_text(json.dumps(report | {"seconds": time.perf_counter() - start}))
    finally:
        os._exit(0)


def run_twice(args: argparse.Namespace) -> list[dict[str, dict[str, Any]]]:
    """Return the reports of both processes, by the names of rows. They are written to the report as they come."""
    rounds: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            seconds = {name: row.get("seconds", 0.0) for name, row in rounds[0].items()} if rounds else {}
            command = [sys.executable, __file__, args.table, "-k", args.k, "--every", str(args.every)]
            command += ["--child", folder, "--workers", str(args.workers), "--seconds", json.dumps(seconds)]
            rounds.append({})
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith("ROW"):
                        name, row = json.loads(line[3:])
                        rounds[-1][name] = row
                        if args.report:
                            Path(args.report).write_text(json.dumps(rounds))
            if process.returncode:
                sys.exit(f"the process ended with status {process.returncode}")
    return rounds


def summarize(table: str, first: dict[str, dict[str, Any]], second: dict[str, dict[str, Any]]) -> None:
    """Print the rows that did not hit, with reasons, and how many did."""
    cacheable = hits = equal = same = 0
    deviations = []
    for name, row in sorted(second.items()):
        before = first.get(name, {"error": "not in the first process"})
        if "error" in row or "error" in before or before["not cached"]:
            print(f"- {name}: not cacheable: {row.get('error') or before.get('error') or row['not cached']}")
            continue
        cacheable += 1
        hit = row["hits"] > 0 and row["misses"] == 0
        hits += hit
        if not hit:
            print(f"- {name}: {before['notes'][-1:]} {row['notes'][:2]}")
        elif row["compiler"]:
            print(f"- {name}: hit, and compiled a part: {before['backward']}")
        if row["digest"] != before["digest"]:
            print(f"- {name}: other bits than in the first process")
        same += row["digest"] == before["digest"]
        equal += row["same as eager"]
        deviations.append((row["deviation"], name))
    print(
        f"{table}: {hits} of {cacheable} cacheable rows hit; {same} have the bits of the first process, "
        f"{equal} those of eager mode"
    )
    print(
        "largest deviations from eager mode:", *(f"{x:.1e} {name}" for x, name in sorted(deviations)[-3:]), sep="\n- "
    )


def main() -> None:
    """Print the rows that did not hit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("-k", default="", help="only rows whose names contain this")
    parser.add_argument("--every", type=int, default=1, help="only each n-th model")
    parser.add_argument("--workers", type=int, default=1, help="how many rows run at the same time, each with a thread")
    parser.add_argument("--report", help="write all that was found to this file, as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", default="{}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
    else:
        summarize(args.table, *run_twice(args))


if __name__ == "__main__":
    main()
