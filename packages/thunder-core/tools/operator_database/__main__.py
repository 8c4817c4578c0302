# SPDX-License-Identifier: Apache-2.0
"""Compare PyTorch's operator database with eager and print how each operator is handled; exit with 1 on a failure."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from operator_database.calls import DTYPES, FORMS, operators
from operator_database.pool import run
from operator_database.report import fallen, summary, table, write
from operator_database.results import Result, append, read

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Examine the operators that the arguments select, and report the results."""
    args = _parser().parse_args(argv)
    path = None if args.results is None else Path(args.results)
    known = {} if path is None else read(path)
    if args.retry:
        known = {key: result for key, result in known.items() if not result.failed}
    found: list[Result] = []
    tasks = []
    for dtype in args.dtype or DTYPES:
        for name, op in operators().items():
            if re.search(args.k, name) and op.supports_dtype(DTYPES[dtype], "cpu"):
                if (name, dtype) in known:
                    found.append(known[name, dtype])
                else:
                    tasks.append((name, dtype))
    options = {"forms": args.form or FORMS, "samples": args.samples, "together": args.together, "bitwise": args.bitwise}
    for done, result in enumerate(run(tasks, options, workers=args.workers, timeout=args.timeout), 1):
        found.append(result)
        if path is not None:
            append(path, result)
        if args.verbose:
            print(f"{done}/{len(tasks)} {result.name} {result.dtype}: {result.handling}", file=sys.stderr, flush=True)
        for failure in result.failures:
            print(f"{result.name} {result.dtype}: {failure}", file=sys.stderr, flush=True)
    print(table(found) + "\n")
    print(summary(found))
    problems = [] if args.k or "function" not in (args.form or FORMS) else fallen(found)
    for problem in problems:
        print(problem, file=sys.stderr)
    if args.store:
        write(found)
    return 1 if problems or not found or any(result.failed for result in found) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="operators", description=__doc__)
    parser.add_argument("-k", metavar="PATTERN", default="", help="only operators whose name matches, a regex")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="only this dtype; may be repeated")
    parser.add_argument("--form", action="append", choices=FORMS, help="only this form of calls; may be repeated")
    parser.add_argument("--samples", type=int, help="at most that many samples of each form")
    parser.add_argument("--together", type=int, default=16, help="at most that many calls in one program (16)")
    parser.add_argument(
        "--bitwise", action="store_true", help="compare the torch executor's results bit by bit with eager's"
    )
    parser.add_argument("--workers", type=int, default=2, help="how many processes (2)")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for an operator in a dtype (600)")
    parser.add_argument("--results", metavar="PATH", help="keep results in this file and go on where it ends")
    parser.add_argument("--retry", action="store_true", help="run what failed in the file again")
    parser.add_argument("--store", action="store_true", help="store the number of operators compiled by symbols")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each operator as it is done")
    return parser


if __name__ == "__main__":
    sys.exit(main())
