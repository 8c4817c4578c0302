# SPDX-License-Identifier: Apache-2.0
"""Check what mypy, with torch's own types, says of the program of a user of thunder (`nox -s user_types`)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mypy import api

PROGRAM = Path(__file__).with_name("program.py")
# torch's annotations need a newer syntax than the oldest Python that thunder supports.
OPTIONS = ["--strict", "--follow-imports=silent", "--python-version=3.12", "--no-error-summary", "--config-file="]
EXPECTED = re.compile(r"  # (?P<what>type|error): (?P<text>.+)$")
REPORTED = re.compile(
    r':(?P<line>\d+): (?:note: Revealed type is "(?P<type>.+)"|error: (?P<message>.+)  \[(?P<code>.+)\])$'
)


def expectations(program: str) -> dict[tuple[int, str], str]:
    """Return what the comments say, by line and by what is said."""
    found = {}
    for number, line in enumerate(program.splitlines(), start=1):
        if comment := EXPECTED.search(line):
            found[number, comment["what"]] = comment["text"]
    return found


def reports(output: str) -> dict[tuple[int, str], str]:
    """Return what mypy says, in the same form; types without the modules that they are in."""
    found = {}
    for line in output.splitlines():
        if report := REPORTED.search(line):
            number = int(report["line"])
            if report["type"]:
                found[number, "type"] = re.sub(r"\b(?:\w+\.)+(?=\w)", "", report["type"])
            else:
                found[number, "error"] = report["code"]
    return found


def main() -> int:
    """Compare, print each difference, and return 1 if there is one."""
    output, errors, _ = api.run([*OPTIONS, str(PROGRAM)])
    expected, reported = expectations(PROGRAM.read_text(encoding="utf-8")), reports(output)
    differing = sorted(key for key in {*expected, *reported} if expected.get(key) != reported.get(key))
    for line, what in differing:
        key = line, what
        print(f"{PROGRAM.name}:{line}: expected {what} {expected.get(key)}, mypy says {reported.get(key)}")
    if differing or not reported:
        print(output, errors, sep="\n", file=sys.stderr)
        return 1
    print(f"mypy says of {PROGRAM.name} what its {len(expected)} comments say")
    return 0


if __name__ == "__main__":
    sys.exit(main())
