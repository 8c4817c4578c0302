# SPDX-License-Identifier: Apache-2.0
"""The judge of soundness: programs are what their records say, failures are found, shrunk and printed as scripts."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder
from soak import run as running
from soak.__main__ import main
from soak.classes import class_features, public_classes, unmade_classes
from soak.feature import ENTRIES, Feature, assigned_names, prefixed
from soak.features import all_features
from soak.freeze import difference, freeze
from soak.generate import enumerated_programs, random_program, steps_with, wrappers_of
from soak.known import NOT_CACHED, NOT_CACHED_WRAPPERS, is_ordinary, known_names, without_known
from soak.pool import Worker, judge_all
from soak.program import Program, Source, Use
from soak.report import Report
from soak.run import Verdict, execute, judge
from soak.shrink import described, shrink
from soak.wrappers import WRAPPERS

NUMBER = Feature("number", "o$ = Holder()\no$.v = 2.0", "o$.v", mutate=("o$.v += 1.0",), write=("o$.v += 0.5",))
ITEM = Feature("item", "l$ = [1.0]", "l$[0]", mutate=("l$[0] = 5.0",), keep=("l$.append(1.0)",))
CHANGED = steps_with(("mutate", 0, 0))


def eagerly(program: Program) -> list[Any]:
    """Return what calls in eager compute, as frozen values."""
    return [call.result for call in execute(program)]


class Stale:
    """A compiler that never runs a function twice."""

    def __init__(self, fn: Any, **options: Any) -> None:
        self.fn, self.results, self.hits = fn, [], 0

    def __call__(self, *args: Any) -> Any:
        if self.results:
            self.hits += 1
        else:
            self.results.append(self.fn(*args))
        return self.results[0]


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge `Stale` instead of thunder."""
    monkeypatch.setattr(thunder, "jit", Stale)
    monkeypatch.setattr(thunder, "cache_hits", lambda fn: fn.hits)
    monkeypatch.setattr(thunder, "cache_misses", lambda fn: len(fn.results))
    monkeypatch.setattr(thunder, "explain", lambda fn: "not cached: never")


def test_names() -> None:
    """What a set-up assigns, and where those names stand in other text."""
    text = "a = 1\nclass C:\n    b = 2\nc, d = 1, 2\no.e = 3\nfor i in []: pass"
    assert sorted(assigned_names(text)) == ["a", "c", "d", "i"]
    assert prefixed("v0 + o.v0 + v01 + f(v0)", ["v0"], "self.") == "self.v0 + o.v0 + v01 + f(self.v0)"
    assert NUMBER.numbered(3).mutate == ("o3.v += 1.0",)


@pytest.mark.parametrize("feature", all_features(), ids=lambda f: f.name)
def test_features_assign_names_with_their_number(feature: Feature) -> None:
    """Two of them in one program share no variable, e.g. no parameter of an entry."""
    one, other = (assigned_names(feature.numbered(i).setup) for i in (1, 2))
    assert not {*one} & {*other}


def test_what_reads_the_current_thread_starts_no_thread() -> None:
    """The names of threads that a program starts differ from call to call."""
    (feature,) = (f for f in all_features() if f.name == "name of the current thread")
    assert not {"thread", "executor"} & {*wrappers_of(feature, "function")}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_and_entries(wrapper: str, entry: str) -> None:
    """All of them compute the same in eager."""
    program = Program((Use(NUMBER, wrapper), Use(ITEM)), CHANGED, entry)
    plain = Program((Use(NUMBER), Use(ITEM)), CHANGED, "function")
    assert eagerly(program) == eagerly(plain)


@pytest.mark.parametrize("entry", ENTRIES)
def test_writes(entry: str) -> None:
    """A program's writes are in the state of the next call."""
    program = Program((Use(NUMBER, write=0),), (("call", 0),) * 3, entry)
    assert [result[1][1][1] for result in eagerly(program)] == ["2.0", "2.5", "3.0"]


def test_json() -> None:
    """Programs travel to workers as JSON."""
    program = random_program(all_features(), 1, 2)
    assert Program.from_json(program.to_json()) == program


def test_random_programs_are_reproducible() -> None:
    """The same seed, the same programs; a third of them mutates nothing."""
    features = all_features()
    programs = [random_program(features, 5, i) for i in range(300)]
    assert programs == [random_program(features, 5, i) for i in range(300)]
    calm = sum(all(step[0] == "call" for step in program.steps) for program in programs)
    assert 60 < calm < 160


def test_features() -> None:
    """There are many; their names, wrappers and entries make enough programs, which all compile."""
    programs = list(enumerated_programs(all_features()))
    assert len(programs) > 10_000
    for program in programs[::50]:
        compile(Source(program).module, "program", "exec")


def test_freeze() -> None:
    """Types, values, aliases; tensors up to rounding."""
    assert freeze(1) != freeze(1.0) != freeze(True)
    assert difference(freeze(0.0), freeze(-0.0)) is not None
    assert difference(freeze(torch.ones(2)), freeze(torch.ones(2) + 1e-7)) is None
    assert difference(freeze(torch.ones(2)), freeze(torch.ones(2) + 1e-2)) is not None
    assert difference(freeze(torch.ones(2)), freeze(torch.ones(2).double())) is not None
    shared: list[int] = []
    assert difference(freeze([shared, shared]), freeze([[], []])) is not None
    shared.append(shared)  # type: ignore[arg-type]
    freeze(shared)


def test_what_is_right() -> None:
    """A change is seen, a repeated call hits."""
    verdict = judge(Program((Use(NUMBER), Use(ITEM)), CHANGED, "module"))
    assert verdict.kind == ""
    assert verdict.hits == verdict.repeats == 3


@pytest.mark.usefixtures("stale")
def test_what_is_wrong() -> None:
    """A stale result is found, shrunk to one feature, one change and two calls, and printed as a script."""
    steps = (("call", 0), ("keep", 1, 0), ("call", 0), *CHANGED)
    program = Program((Use(NUMBER, "generator"), Use(ITEM, "thread")), steps, "closure", "symbolic values")
    verdict = judge(program)
    assert verdict.kind == "result"
    small, verdict = shrink(program, verdict, judge)
    assert small == Program((Use(NUMBER),), (("call", 0), ("mutate", 0, 0), ("call", 0)), returns_values=False)
    text = described(small, verdict)
    assert "eager [3.75, 1.5, 6.0] | thunder [2.75, 0.5, 5.0]" in text
    found = subprocess.run([sys.executable, "-c", text, "eager"], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["tensor([2.7500,", "0.5000,", "5.0000])", "tensor([3.7500,", "1.5000,", "6.0000])"]


@pytest.mark.usefixtures("stale")
@pytest.mark.parametrize(
    ("feature", "kind"),
    [
        (dataclasses.replace(NUMBER, write=("print(o$.v)",)), "output"),
        (dataclasses.replace(NUMBER, write=("o$.v = 7.0", "o$.w = 1")), "result"),
        (Feature("list", "l$ = []", "1.0", write=("l$.append(1)",)), "state"),
        (Feature("raises", "k$ = 1", "1 / k$", mutate=("k$ = 0",)), "result"),
    ],
)
def test_kinds_of_failures(feature: Feature, kind: str) -> None:
    """Output, results, state, exceptions."""
    assert judge(Program((Use(feature, write=0 if feature.write else -1),), CHANGED)).kind == kind


def test_state_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is a kind of its own: eager keeps what was written before."""

    class Undone(Stale):
        def __call__(self, *args: Any) -> Any:
            raise ZeroDivisionError

    monkeypatch.setattr(thunder, "jit", Undone)
    monkeypatch.setattr(thunder, "cache_hits", lambda fn: 0)
    monkeypatch.setattr(thunder, "cache_misses", lambda fn: 0)
    monkeypatch.setattr(thunder, "explain", lambda fn: "")
    raises = Feature("raises", "l$ = []", "l$.append(1) or 1 / 0")
    assert judge(Program((Use(raises),), CHANGED)).kind == "state after an exception"


def test_failures_of_the_judge_itself() -> None:
    """A program that eager does not run twice alike is invalid, not wrong."""
    counted = Feature("time", "import time", "time.perf_counter()")
    assert judge(Program((Use(counted),), steps_with(None))).kind == "invalid"
    assert judge(Program((Use(Feature("broken", "1 / 0", "1")),), CHANGED)).kind == "invalid"


def test_hangs_and_crashes() -> None:
    """Are verdicts, and the next program has a process of its own."""
    worker = Worker(timeout=1.0)
    hangs = Feature("hangs", "import time", "time.sleep(60)")
    crashes = Feature("crashes", "import os", "os._exit(3)")
    try:
        assert worker.judge(Program((Use(hangs),), CHANGED)).kind == "hang"
        worker.timeout = 120.0
        assert worker.judge(Program((Use(crashes),), CHANGED)).kind == "crash"
        assert worker.judge(Program((Use(NUMBER),), CHANGED)).kind == ""
    finally:
        worker.close()


def test_report() -> None:
    """Counts by feature, hits, and what is not cached."""
    report = Report()
    program = Program((Use(NUMBER),), CHANGED)
    assert not report.add(program, Verdict(repeats=4, hits=3, ran_eagerly=1, not_cached="not cached: x"))
    assert report.add(program, Verdict("result"))
    assert report.hit_rate == 0.75
    for part in ("2 programs: 1 wrong", "3 of 4", "1 ran eagerly", "1 of     2  number", "number: not cached: x"):
        assert part in str(report)


def test_classes() -> None:
    """All public classes have a recipe or a reason; reads and changes are what they have."""
    assert len(public_classes()) > 300
    assert unmade_classes() == []
    features = {f.name: f for f in class_features(r"^threading\.Event$")}
    assert features["threading.Event: is_set()"].mutate[0] == "h$.v.set()"


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the seed and the counts; failures become files."""
    monkeypatch.setattr("soak.__main__.judge_all", lambda programs, workers: ((p, running.judge(p)) for p in programs))
    arguments = ["--programs", "2", "--seed", "3", "--features", "^item of a list$", "--no-shrink"]
    main(arguments)
    out = capsys.readouterr().out
    assert "seed 3" in out
    assert "2 programs: " in out
    monkeypatch.setattr(running, "judge", lambda program: Verdict("result", step=0, eager="1", thunder="2"))
    assert main([*arguments, "--write", str(tmp_path)]) == 1
    assert "result differs: eager 1 | thunder 2" in next(tmp_path.glob("*.py")).read_text()


def test_known_failures() -> None:
    """Are features, and have causes."""
    names = {f.name for f in all_features()}
    not_cached = {name for listed in NOT_CACHED.values() for name in listed}
    assert known_names() | not_cached <= names
    assert set(NOT_CACHED_WRAPPERS) <= set(WRAPPERS)


def test_hit_rate() -> None:
    """Ordinary programs hit when they are called again unchanged."""
    report, features = Report(), without_known(all_features())
    for program in filter(is_ordinary, (random_program(features, 19, i) for i in range(80))):
        report.add(program, judge(program))
    assert report.ordinary_repeats > 200
    assert report.ordinary_hit_rate >= 0.95, str(report)


def test_random_programs() -> None:
    """Some with a fresh seed; `nox -s soak` runs more. What is known to be wrong is left out."""
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}: python -m soak --new --seed {seed} --only NUMBER")
    features, report = without_known(all_features()), Report()
    programs = (random_program(features, seed, i) for i in range(40))
    for program, verdict in judge_all(programs, workers=2):
        if report.add(program, verdict):
            pytest.fail(f"seed {seed}\n{described(program, verdict)}")
    print(report)
