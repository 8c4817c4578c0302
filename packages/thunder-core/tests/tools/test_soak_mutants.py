# SPDX-License-Identifier: Apache-2.0
"""Mutants: all of them apply to the sources, and what finds one is reported. `nox -s mutants` runs the whole table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak import mutants
from soak.mutant_table import MUTANTS
from soak.mutants import Outcome, check_table, copy_sources, main, mutated, outcome, programs_of
from soak.pool import Worker

SIGN = next(m for m in MUTANTS if m.name == "the sign of zero")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of thunder's sources."""
    return copy_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def original() -> Iterator[Worker]:
    """Yield a process with thunder's own sources."""
    worker = Worker()
    yield worker
    worker.close()


def test_the_table() -> None:
    """Every replacement applies exactly once, and every feature and test exists."""
    check_table(MUTANTS)
    assert len(MUTANTS) > 50


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"old": "no such text"}, "contains the text to replace 0 times"),
        ({"old": "return"}, "times: 'return'"),
        ({"features": "no such feature"}, "no feature matches"),
        ({"tests": ("no_such_test.py",)}, "either features or tests"),
        ({"features": "", "tests": ("no_such_test.py",)}, "there is no no_such_test.py"),
    ],
)
def test_errors_in_the_table(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_table([dataclasses.replace(SIGN, **changed)])  # type: ignore[arg-type]


def test_two_mutants_with_one_name() -> None:
    with pytest.raises(ValueError, match="one name"):
        check_table([SIGN, SIGN])


def test_replacements_are_valid_python() -> None:
    with pytest.raises(SyntaxError):
        mutated(f"{SIGN.old}\n", dataclasses.replace(SIGN, new="if:"))


def test_a_mutant_is_found(package: Path, original: Worker) -> None:
    """By the first wrong program. The copy is as before afterwards, and a mutant that changes nothing survives."""
    before = (package / SIGN.path).read_text()
    found = outcome(SIGN, package, original)
    assert "negative zero [plain] in function" in found.found_by
    assert (package / SIGN.path).read_text() == before
    harmless = dataclasses.replace(SIGN, new=SIGN.old + "\n")
    assert all(p.entry == "function" for p in programs_of(harmless))
    assert outcome(harmless, package, original) == Outcome()


def test_a_mutant_that_breaks_thunder_does_not_count(package: Path, original: Worker) -> None:
    start = "__all__ = [\n"
    broken = dataclasses.replace(SIGN, old=start, new=f"raise ImportError('broken')\n{start}")
    assert "ImportError: broken" in outcome(broken, package, original).invalid


def test_a_test_finds_a_mutant(
    package: Path, original: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that fails in both cases does not count."""
    monkeypatch.setattr(mutants, "TESTS", tmp_path / "tests")
    (tmp_path / "tests").mkdir()
    text = "from thunder.runtime.guards import same_value\ndef test_it():\n    assert not same_value(-0.0, 0.0)\n"
    (tmp_path / "tests" / "test_sign.py").write_text(text)
    (tmp_path / "tests" / "test_wrong.py").write_text("def test_it():\n    assert False\n")
    by_test = dataclasses.replace(SIGN, features="", tests=("test_sign.py",))
    assert outcome(by_test, package, original).found_by == "test_sign.py::test_it"
    wrong = dataclasses.replace(by_test, tests=("test_wrong.py",))
    assert "fails without the mutant" in outcome(wrong, package, original).invalid


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Returns 1 if a mutant survives."""
    monkeypatch.setattr(mutants, "copy_sources", lambda folder: folder)
    for found, code in ((Outcome("x [plain]"), 0), (Outcome(), 1), (Outcome(invalid="no program"), 1)):
        monkeypatch.setattr(mutants, "outcome", lambda *_, found=found: found)
        assert main(["-k", "the sign of zero"]) == code
        assert str(found) in capsys.readouterr().out
    assert main(["--list", "-k", "the sign of zero"]) == 0
    with pytest.raises(SystemExit):
        main(["-k", "no such mutant"])
