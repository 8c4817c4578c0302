# SPDX-License-Identifier: Apache-2.0
"""`python -m soak`: judge random programs for some minutes, or every enumerated one."""

from __future__ import annotations

import argparse
import itertools
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from soak.classes import class_programs
from soak.features import all_features
from soak.generate import enumerated_programs, random_program
from soak.known import known_names, without_known
from soak.pool import Worker, judge_all
from soak.program import Program
from soak.report import Report
from soak.shrink import described, shrink


def main(argv: list[str] | None = None) -> int:
    """Judge programs, print what was found, and return 1 if something is wrong."""
    options = _options(argv)
    features = all_features()
    if options.features:
        features = [f for f in features if re.search(options.features, f.name)]
    if options.new:
        features = without_known(features)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    if options.classes:
        programs: Iterator[Program] = class_programs(options.features)
    elif options.enumerate:
        programs = enumerated_programs(features)
    else:
        print(f"seed {seed}", flush=True)
        indices = [options.only] if options.only is not None else itertools.count(options.first)
        programs = (random_program(features, seed, i) for i in indices)
    if options.enumerate or options.classes:
        if options.seed is not None:
            programs = iter(random.Random(seed).sample(everything := list(programs), len(everything)))
        programs = itertools.islice(programs, options.first, None)
    if options.only_in:
        programs = (
            p for p in programs if re.search(options.only_in, f"{p.entry} {' '.join(u.wrapper for u in p.uses)}")
        )
    if options.programs:
        programs = itertools.islice(programs, options.programs)
    limited = options.minutes if options.minutes or options.programs or options.only is not None else 1.0
    report = run(programs, options.minutes if options.enumerate or options.classes else limited, options)
    print(report)
    if options.enumerate and (mended := sorted(known_names() & set(report.judged) - set(report.failed))):
        print(f"\nlisted as wrong, and right here: {', '.join(mended)}")
    return 1 if report.wrong or report.invalid else 0


def run(programs: Iterator[Program], minutes: float | None, options: argparse.Namespace) -> Report:
    """Judge programs, at most for so long, and print each new failure, shrunk."""
    report, worker, start = Report(), Worker(), time.monotonic()
    shown: set[tuple[str, ...]] = set()

    def timed() -> Iterator[Program]:
        for program in programs:
            if minutes is not None and time.monotonic() - start > minutes * 60:
                return
            yield program

    try:
        for program, verdict in judge_all(timed(), options.workers):
            if report.add(program, verdict):
                smallest = (program, verdict)
                if options.shrink and verdict.kind != "hang":
                    smallest = shrink(program, verdict, worker.judge)
                names = (verdict.kind, *(text for u in smallest[0].uses for text in (u.feature.name, u.wrapper)))
                if names not in shown:
                    shown.add(names)
                    _show(described(*smallest), options.write, len(shown))
            elif options.verbose:
                print(f"right: {program}", flush=True)
            if report.programs % 500 == 0:
                print(f"... {report.programs} programs, {report.wrong} wrong", file=sys.stderr, flush=True)
    finally:
        worker.close()
    return report


def _show(text: str, folder: Path | None, number: int) -> None:
    if folder is None:
        print(text, end="\n\n", flush=True)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"wrong_{number:04}.py").write_text(text)
        print(text.splitlines()[0], flush=True)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("soak", description=main.__doc__)
    parser.add_argument("--minutes", type=float, help="stop after so long (1 unless --programs is given)")
    parser.add_argument("--programs", type=int, help="stop after so many programs")
    parser.add_argument("--seed", type=int, help="of random programs (a fresh one is printed); of the order of others")
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--only", type=int, help="judge the random program with this number")
    parser.add_argument("--enumerate", action="store_true", help="judge each feature with each change and wrapper")
    parser.add_argument("--new", action="store_true", help="leave out what known.py lists as wrong")
    parser.add_argument("--classes", action="store_true", help="judge the classes of torch and the standard library")
    parser.add_argument("--features", help="only features whose names match this regular expression")
    parser.add_argument("--only-in", help="only programs whose entry and wrappers, `function plain`, match this")
    parser.add_argument("--workers", type=int, default=2, help="number of processes")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="print failures as they are")
    parser.add_argument(
        "--write", type=Path, help="write scripts of failures into this folder instead of printing them"
    )
    parser.add_argument("--verbose", action="store_true", help="print programs that are right, too")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
