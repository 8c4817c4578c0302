# SPDX-License-Identifier: Apache-2.0
"""Run programs of other projects under thunder.jit and report verdicts; exit with 1 if one is not compiled."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from programs.pool import load, prepare, run
from programs.projects import MODULES
from programs.report import page, problems, summary, table
from programs.results import Result, append, read

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the programs that the arguments select, and report the results."""
    args = _parser().parse_args(argv)
    known = {} if args.results is None else read(Path(args.results))
    if args.retry is not None:
        known = {key: result for key, result in known.items() if not re.search(args.retry, result.verdict)}
    found: list[Result] = []
    if not args.list:
        prepare(args.how)
    for module in MODULES:
        if not re.search(args.project, module):
            continue
        project = load(module)
        names = [name for name in project.programs if re.search(args.k, f"{project.name}/{name}")]
        if args.list:
            print("\n".join(f"{project.name}/{name}: {project.programs[name].example}" for name in names))
            continue
        done = [known[f"{project.name}/{name}"] for name in names if f"{project.name}/{name}" in known]
        pending = [name for name in names if f"{project.name}/{name}" not in known]
        found += done
        for result in run(module, pending, timeout=args.timeout, how=args.how):
            found.append(result)
            if args.results is not None:
                append(Path(args.results), result)
            print(f"{result.key}: {result.verdict} {result.reason[:300]}", file=sys.stderr, flush=True)
    if args.list:
        return 0
    print(table(found) + "\n")
    print(summary(found))
    if args.page:
        Path(args.page).write_text(page(found), encoding="utf-8")
    return 1 if problems(found) or not found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="programs", description=__doc__)
    parser.add_argument("-k", metavar="PATTERN", default="", help="only programs whose PROJECT/NAME matches, a regex")
    parser.add_argument("--project", metavar="PATTERN", default="", help="only projects whose module matches, a regex")
    parser.add_argument("--list", action="store_true", help="list the programs and their examples")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for a program (180)")
    parser.add_argument("--how", choices=["eager", "thunder", "dynamo"], default="dynamo",
                        help="eager: only check the examples; thunder: without torch.compile (dynamo)")  # fmt: skip
    parser.add_argument("--results", metavar="PATH", help="keep results in this file and go on where it ends")
    parser.add_argument("--retry", metavar="PATTERN", help="run the file's programs with such verdicts again, a regex")
    parser.add_argument("--page", metavar="PATH", help="write the results as a page of Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main())
