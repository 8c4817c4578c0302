# SPDX-License-Identifier: Apache-2.0
"""`nox -s bench [-- --json FILE] [--against FILE]`: time compilation and calls, and compare with an earlier run.

The suites are scripts in `benchmarks/`, which measure on the CPU in CPU time. With `--against`, a row fails if a number
of thunder's is more than 5 % slower than in the file. Such rows are measured again, twice, and the best number counts,
so that other processes on the machine do not fail them. Numbers of eager mode and of peers are not compared.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["SUITES", "best_of", "main", "measure", "seconds_of", "slower"]

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SUITES = ("acquisition", "passes", "symbols")
LIMIT = 1.05
AGAIN = 2
_PEER = re.compile(r"eager|torch|lightning|compile\(", re.IGNORECASE)
_TIME = re.compile(r"([\d.]+)\s?(ms|µs|s)\b")
_UNIT = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}

Rows = dict[str, dict[str, float]]  # the seconds of each column, by the name of the row


def seconds_of(data: dict[str, Any]) -> Rows:
    """Return thunder's times in what a benchmark has written: the columns that start with a time, without peers'."""
    found: Rows = {}
    for row in data["rows"]:
        for column, text in row["cells"].items():
            time = _TIME.match(text)
            if time is not None and not _PEER.search(column):
                found.setdefault(row["name"], {})[column] = float(time[1]) * _UNIT[time[2]]
    return found


def measure(suite: str, rows: str = "", options: Sequence[str] = ()) -> dict[str, Any]:
    """Run a benchmark and return what it has written. `rows` is a part of the names of rows."""
    with tempfile.TemporaryDirectory(prefix="thunder-bench-") as folder:
        file = Path(folder) / "numbers.json"
        selected = ["--rows", rows] if rows else []
        command = [sys.executable, str(FOLDER / f"{suite}.py"), "--json", str(file), *selected, *options]
        status = subprocess.run(command, check=False).returncode
        if not file.exists():
            raise SystemExit(f"bench: {suite} ended with status {status} and has written no numbers")
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found


def best_of(first: Rows, second: Rows) -> Rows:
    """Return the best number of each row and column."""
    return {
        name: {column: min(time, second.get(name, {}).get(column, time)) for column, time in columns.items()}
        for name, columns in first.items()
    }


def slower(before: Rows, now: Rows) -> dict[str, list[str]]:
    """Return the rows that became slower than the limit allows, with a line for each column."""
    found: dict[str, list[str]] = {}
    for name, columns in now.items():
        for column, time in columns.items():
            old = before.get(name, {}).get(column)
            if old is not None and time > LIMIT * old:
                found.setdefault(name, []).append(f"{name}: {column} {time / old:.2f} x as long as before")
    return found


def compare(suite: str, before: Rows, now: Rows, again: Callable[[str, str], dict[str, Any]]) -> list[str]:
    """Return a line for each number that is slower, also when it is measured again."""
    for _ in range(AGAIN):
        for name in slower(before, now):
            now = best_of(now, seconds_of(again(suite, name)))
    return [f"{suite}: {line}" for lines in slower(before, now).values() for line in lines]


def main(arguments: Sequence[str], measure: Callable[..., dict[str, Any]] = measure) -> int:
    """Run the suites, write or compare the numbers, and return 0 if nothing became slower."""
    parser = argparse.ArgumentParser(prog="nox -s bench --", description=__doc__)
    parser.add_argument("--suite", action="append", choices=SUITES, help=f"default: {', '.join(SUITES)}")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--repetitions", default="7", help="how often each row is measured (default: 7)")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--against", type=Path, help="compare with the numbers of this file, from the same machine")
    given = parser.parse_args(arguments)
    before = json.loads(given.against.read_text(encoding="utf-8")) if given.against else {}
    options = ["--repetitions", given.repetitions]
    found = {suite: measure(suite, given.rows, options) for suite in given.suite or SUITES}
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if not before:
        return 0
    problems = []
    for suite, data in found.items():
        old = before.get(suite)
        if old is None:
            problems.append(f"{suite}: {given.against} has no numbers of it")
        elif old["machine"] != data["machine"]:
            problems.append(f"{suite}: measured on another machine, {old['machine']} instead of {data['machine']}")
        else:
            problems += compare(suite, seconds_of(old), seconds_of(data), lambda s, row: measure(s, row, options))
    print("\n".join(problems) or f"no row is more than {LIMIT - 1:.0%} slower than in {given.against}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
