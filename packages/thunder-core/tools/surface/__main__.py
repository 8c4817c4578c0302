# SPDX-License-Identifier: Apache-2.0
"""Test torch's public names and print a table of how thunder handles them. Exit with 1 if a name differs from torch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from surface.page import HEADER, page, rows
from surface.walk import walk
from thunder.core.tables import format_table

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Test the names that the arguments select, and report the results."""
    parser = argparse.ArgumentParser(prog="surface", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="test only names that contain this text")
    parser.add_argument("--write", metavar="PATH", help="write the results as a page of Markdown")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    findings = []
    for finding in walk(lambda entry: args.only in entry.path):
        findings.append(finding)
        for failure in finding.failures:
            print(f"{finding.entry.path}: {failure}", file=sys.stderr, flush=True)
    failing = [finding for finding in findings if finding.failures]
    if args.json:
        print(json.dumps([{**vars(f), "entry": f.entry.path} for f in findings], indent=2))
    else:
        print(format_table(HEADER, rows(findings)))
        print(f"\n{len(findings) - len(failing)} of {len(findings)} names agree with torch")
    if args.write:
        Path(args.write).write_text(page(findings), encoding="utf-8")
    return 1 if failing or not findings else 0


if __name__ == "__main__":
    sys.exit(main())
