# SPDX-License-Identifier: Apache-2.0
"""Run changes in three rounds of processes, and print what is wrong."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from saved_changes.change import Change, changes

__all__ = ["check"]

_TOOLS = str(Path(__file__).resolve().parents[1])

# Each round: a title, the version that runs, and whether its programs are expected to be compiled.
ROUNDS = [("first process", 0, True), ("same again", 0, False), ("changed", 1, True)]


def check(selected: Iterable[Change]) -> list[str]:
    """Return what is wrong with the programs of the selected changes."""
    selected = [*selected]
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for title, version, compiled in ROUNDS:
            found = _round(version, folder, [c.name for c in selected], compiled)
            for change in selected:
                report = found.get(change.name, {"wrong": "no report", "hits": 0, "notes": []})
                if report["wrong"]:
                    failures.append(f"{change.name}, {title}: {report['wrong']} {report['notes']}")
                elif title == "same again" and change.is_saved not in (None, bool(report["hits"])):
                    expected = "is not found" if change.is_saved else "is found, although it is marked as not saved"
                    failures.append(f"{change.name}, {title}: the saved program {expected}: {report['notes']}")
    return failures


def _round(version: int, folder: str, names: list[str], compiled: bool) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("THUNDER_")} | {"OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [_TOOLS, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "saved_changes.rounds", str(version), folder, json.dumps(names)]
    done = subprocess.run(
        command + ["--compiler"] * compiled, capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(line) for line in done.stdout.splitlines())


def main() -> int:
    """Run the changes that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m saved_changes", description=__doc__)
    parser.add_argument("-k", metavar="PATTERN", default="", help="run the changes whose names match")
    pattern = parser.parse_args().k
    selected = [change for change in changes() if re.search(pattern, change.name)]
    failures = check(selected)
    print("\n".join([*failures, f"{len(selected)} changes, {len(failures)} failures"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
