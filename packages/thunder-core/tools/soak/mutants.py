# SPDX-License-Identifier: Apache-2.0
"""`python -m soak.mutants`: take one mending out of thunder's sources at a time, and check that the judge finds it.

Each mutant replaces text in a temporary copy of the sources. The judge then runs the enumerated programs of some
features, or some tests, until one of them is wrong. If nothing finds a mutant, the judge lacks a feature.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import thunder
from soak.feature import Feature
from soak.features import all_features
from soak.generate import enumerated_programs, steps_with
from soak.pool import Worker
from soak.program import Program, Use

SOURCES = Path(thunder.__file__).parent
TOOLS = Path(__file__).resolve().parents[1]
TESTS = TOOLS.parent / "tests"
_MOST_SECONDS_OF_TESTS = 300
_TRIVIAL = Program((Use(Feature("nothing", "k$ = 1.0", "1.0")),), steps_with(None))


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A mending that is taken out: `old` becomes `new` in the file `path` of thunder's sources.

    Enumerated programs of the features that match `features` have to find it, in the entries and wrappers that match
    `only_in`. Where programs cannot (e.g. for two processes), one of the `tests` has to.
    """

    name: str
    path: str
    old: str
    new: str
    features: str = ""
    only_in: str = "^function plain$"
    tests: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What found a mutant, empty if it survived, and why an outcome does not count, e.g. if thunder does not start."""

    found_by: str = ""
    invalid: str = ""

    def __str__(self) -> str:
        if self.invalid:
            return f"INVALID   {self.invalid}"
        return f"FOUND     by {self.found_by}" if self.found_by else "SURVIVED"


def mutated(text: str, mutant: Mutant) -> str:
    """Return the text of a file with the mutant's replacement, and raise if its old text is not there exactly once."""
    count = text.count(mutant.old)
    if count != 1:
        raise ValueError(f"{mutant.name}: {mutant.path} contains the text to replace {count} times: {mutant.old!r}")
    found = text.replace(mutant.old, mutant.new)
    compile(found, mutant.path, "exec")
    return found


def check_table(mutants: Sequence[Mutant]) -> None:
    """Raise if a mutant does not apply to the sources, or if nothing could find it."""
    names = [m.name for m in mutants]
    features = [f.name for f in all_features()]
    for mutant in mutants:
        mutated((SOURCES / mutant.path).read_text(), mutant)
        if names.count(mutant.name) > 1:
            raise ValueError(f"two mutants have one name: {mutant.name}")
        if bool(mutant.features) == bool(mutant.tests):
            raise ValueError(f"{mutant.name}: either features or tests find it")
        if mutant.features and not any(re.search(mutant.features, name) for name in features):
            raise ValueError(f"{mutant.name}: no feature matches {mutant.features}")
        for test in mutant.tests:
            if not (TESTS / test.partition("::")[0]).exists():
                raise ValueError(f"{mutant.name}: there is no {test}")


def copy_sources(folder: Path) -> Path:
    """Copy thunder's sources into a folder for `sys.path`, and return the copy's package."""
    target = folder / "thunder"
    shutil.copytree(SOURCES, target)  # with the times of the files, so that compiled files stay valid
    return target


def programs_of(mutant: Mutant) -> Iterator[Program]:
    """Yield the enumerated programs that have to find a mutant."""
    features = [f for f in all_features() if re.search(mutant.features, f.name)]
    for program in enumerated_programs(features):
        if re.search(mutant.only_in, f"{program.entry} {' '.join(use.wrapper for use in program.uses)}"):
            yield program


def outcome(mutant: Mutant, package: Path, original: Worker) -> Outcome:
    """Apply a mutant to a copy of the sources, run what has to find it, and restore the copy."""
    file = package / mutant.path
    text = file.read_text()
    file.write_text(mutated(text, mutant))
    try:
        return _tested(mutant, package) if mutant.tests else _judged(mutant, package, original)
    finally:
        file.write_text(text)


def _judged(mutant: Mutant, package: Path, original: Worker) -> Outcome:
    """Judge programs until one of them is wrong with the mutant and right without it."""
    worker, judged, wrong_anyway = Worker(sources=package.parent), 0, 0
    try:
        try:
            trivial = worker.judge(_TRIVIAL)
        except RuntimeError as error:
            return Outcome(invalid=f"{error}")
        if trivial.kind:
            return Outcome(invalid=f"every program is wrong: {trivial.thunder}")
        for program in programs_of(mutant):
            judged += 1
            verdict = worker.judge(program)
            if verdict.kind in ("", "invalid"):
                continue
            if original.judge(program).kind == "":
                return Outcome(f"{program} ({verdict.kind}, program {judged})")
            wrong_anyway += 1
    finally:
        worker.close()
    if not judged or wrong_anyway == judged:
        return Outcome(invalid=f"{judged} programs, {wrong_anyway} of them wrong without the mutant, too")
    return Outcome()


def _tested(mutant: Mutant, package: Path) -> Outcome:
    """Run the tests that have to fail with the mutant and pass without it."""
    failed = _test(mutant.tests, package.parent)
    if failed and _test(mutant.tests, SOURCES.parent):
        return Outcome(invalid=f"fails without the mutant, too: {failed}")
    return Outcome(failed)


def _test(tests: Sequence[str], sources: Path) -> str:
    """Run tests with the sources in a folder, and return the first that fails."""
    arguments = [
        "--import-mode=importlib",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "-rfE",
        f"--rootdir={TESTS}",
    ]
    try:
        found = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments, *(str(TESTS / test) for test in tests)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(sources), *(p for p in sys.path if p)])},
            cwd=TESTS,
            capture_output=True,
            text=True,
            timeout=_MOST_SECONDS_OF_TESTS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{tests[0]} (hangs)"
    if found.returncode == 0:
        return ""
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", found.stdout, re.MULTILINE)
    if not failed:
        raise RuntimeError(f"pytest ended with {found.returncode}:\n{found.stdout}{found.stderr}")
    return failed[0]


def main(argv: list[str] | None = None) -> int:
    """Apply each mutant, print what found it, and return 1 if one survived or does not count."""
    from soak.mutant_table import MUTANTS

    parser = argparse.ArgumentParser("soak.mutants", description=main.__doc__)
    parser.add_argument("-k", dest="name", default="", help="only mutants whose names match this regular expression")
    parser.add_argument("--list", action="store_true", help="list the mutants, and check that they apply")
    options = parser.parse_args(argv)
    check_table(MUTANTS)
    chosen = [m for m in MUTANTS if re.search(options.name, m.name)]
    if not chosen:
        parser.error(f"no mutant matches {options.name!r}")
    if options.list:
        print("\n".join(f"{m.name}: {m.path}" for m in chosen))
        return 0
    bad: list[str] = []
    original = Worker()
    try:
        with tempfile.TemporaryDirectory() as folder:
            package = copy_sources(Path(folder))
            for mutant in chosen:
                start = time.monotonic()
                found = outcome(mutant, package, original)
                print(f"{mutant.name:45} {found} [{time.monotonic() - start:.0f} s]", flush=True)
                if not found.found_by:
                    bad.append(mutant.name)
    finally:
        original.close()
    print(f"{len(chosen)} mutants: {len(chosen) - len(bad)} found" + (f"; not found: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
