# SPDX-License-Identifier: Apache-2.0
"""`nox -s operators`: a sample of it, and what it reports about calls that differ from torch.

The database is a part of torch's own tests, which changes with each version: only the version that the stored numbers
are of is tested.
"""

from __future__ import annotations

import json
import random
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder
from operator_database import check as checking
from operator_database import pool, report
from operator_database.__main__ import main
from operator_database.calls import FORMS, Batch, Call, batch, calls_of, operators
from operator_database.check import EAGER, OPAQUE, SYMBOLS, check
from operator_database.results import FAILED, Result, append, examine, read
from thunder.tests.comparison import Mismatch

STORED = json.loads(Path(report.__file__).with_name("compiled.json").read_text(encoding="utf-8"))
OPERATORS = operators()
WARNINGS = ("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
pytestmark = [
    pytest.mark.filterwarnings(*WARNINGS),
    pytest.mark.skipif(STORED["torch"] != torch.__version__.partition("+")[0], reason="the database of another torch"),
]


def test_a_sample_of_every_operator() -> None:
    """One call of each in float32 agrees with torch, and as many as ever are compiled by symbols."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, op in OPERATORS.items():
            if op.supports_dtype(torch.float32, "cpu"):
                found.append(examine(name, op, "float32", forms=FORMS[:1], samples=1))
    assert [failure for result in found for failure in result.failures] == []
    assert report.fallen(found) == []


def test_some_operators_in_all_forms() -> None:
    """Operators in a random order, in a dtype and with samples of each form, for ten seconds."""
    seed = random.randrange(10**6)
    order = random.Random(seed)
    pairs = [(name, dtype) for name, op in OPERATORS.items() for dtype in STORED["compiled"]
             if op.supports_dtype(getattr(torch, dtype), "cpu")]  # fmt: skip
    end = time.monotonic() + 10
    while time.monotonic() < end:
        name, dtype = order.choice(pairs)
        result = examine(name, OPERATORS[name], dtype, samples=2)
        assert result.failures == [], f"seed {seed}"


def test_handlings() -> None:
    """By symbols, with an operation that torch runs, or eagerly."""
    for name, handling in (("sin", SYMBOLS), ("linalg.eig", OPAQUE), ("sparse.mm.reduce", EAGER)):
        result = examine(name, OPERATORS[name], "float32", forms=FORMS[:1], samples=1)
        assert (result.handling, result.first, result.failures) == (handling, handling, [])


WRONGS = {
    "values": (lambda x: x + 1, "differ"),
    "dtype": (lambda x: x.double(), "dtype"),
    "no gradient": (lambda x: x.detach(), "require grad"),
    "another gradient": (lambda x: x.detach() + (x - x.detach()) * 2, "gradients: "),
    "a tuple": (lambda x: (x,), "should be"),
}


@pytest.mark.parametrize("wrong", WRONGS)
def test_what_is_wrong_is_found(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that differs is a failure that says how."""
    change, word = WRONGS[wrong]

    def jit(fn: Any) -> Any:
        jitted = thunder.jit(fn)

        def call(*args: Any, **kwargs: Any) -> Any:
            return change(jitted(*args, **kwargs))

        call._stats = jitted._stats  # type: ignore[attr-defined]
        return call

    monkeypatch.setattr(checking, "thunder", type("Stub", (), {"jit": staticmethod(jit)}))
    (call, *_) = calls_of(OPERATORS["sin"], torch.float32, "gradients")
    with pytest.raises(AssertionError, match=word):
        check(OPERATORS["sin"], call)


def test_calls_in_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call counts. One that differs, or that torch rejects, is found and reported alone."""
    alone = examine("std", OPERATORS["std"], "float32", samples=5)
    together = examine("std", OPERATORS["std"], "float32", samples=5, together=4)
    assert together == alone and sum(together.calls.values()) > 5

    def differs(op: Any, call: Any) -> str | None:
        if isinstance(call, Batch) or call.number == 2:
            raise Mismatch("differ")
        return SYMBOLS

    monkeypatch.setattr("operator_database.results.check", differs)
    result = examine("sin", OPERATORS["sin"], "float32", forms=FORMS[:1], samples=5, together=4)
    assert result.calls == {SYMBOLS: 4} and result.failed == 1
    assert result.failures[0].startswith("function 2: ")


def test_bitwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch executor's results equal eager's; a difference in the last bit is a failure only with `bitwise`."""
    assert examine("tanh", OPERATORS["tanh"], "float32", samples=2, bitwise=True).failures == []
    jit = thunder.jit

    def inexactly(fn: Any, **options: Any) -> Any:
        jitted = jit(fn, **options)

        def call(*args: Any) -> Any:
            return jitted(*args) * (1 + 2**-23)

        call._stats = jitted._stats  # type: ignore[attr-defined]
        return call

    monkeypatch.setattr(checking, "thunder", type("Stub", (), {"jit": staticmethod(inexactly)}))
    (call, *_) = calls_of(OPERATORS["tanh"], torch.float32, "gradients")
    assert check(OPERATORS["tanh"], call) == SYMBOLS
    with pytest.raises(Mismatch):
        check(OPERATORS["tanh"], call, bitwise=True)


@pytest.mark.parametrize("wrong", WRONGS)
def test_what_is_wrong_in_one_of_several_calls(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of several calls fails if the last one differs."""
    change, _ = WRONGS[wrong]
    calls = list(calls_of(OPERATORS["sin"], torch.float32, "gradients"))[:3]
    assert check(OPERATORS["sin"], batch(calls)) == SYMBOLS

    def jit(fn: Any) -> Any:
        jitted = thunder.jit(fn)

        def call(*args: Any) -> Any:
            results = jitted(*args)
            return [*results[:-1], change(results[-1])]

        call._stats = jitted._stats  # type: ignore[attr-defined]
        return call

    monkeypatch.setattr(checking, "thunder", type("Stub", (), {"jit": staticmethod(jit)}))
    with pytest.raises(AssertionError):
        check(OPERATORS["sin"], batch(calls))


def test_copies_of_arguments() -> None:
    """They have the values, strides and conjugation of the arguments, and share memory where these do."""
    x = torch.arange(24.0).reshape(4, 6)
    c = torch.complex(x, x + 1)
    given = (x, x[::2, 1:], x.t(), c, c.conj(), c.conj().imag, x.expand(2, 4, 6), x)
    (copies, kwargs) = Call("function", 0, torch.add, (given,), {"x": x}).arguments()
    for a, b in zip((*copies[0], kwargs["x"]), (*given, x)):
        assert torch.equal(a, b) and a.stride() == b.stride() and a is not b
        assert (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg())
    assert copies[0][0] is copies[0][-1] is kwargs["x"]
    (meta,), _ = Call("error", 0, torch.add, (torch.ones(2, 3, device="meta").t(),), {}).arguments()
    assert (meta.device.type, meta.stride()) == ("meta", (1, 3))
    copies[0][0].zero_()
    assert not copies[0][1].any() and not copies[0][6].any() and copies[0][3].any() and x.any()


def test_errors_are_compared() -> None:
    """Calls that torch rejects: thunder raises the same type."""
    result = examine("narrow", OPERATORS["narrow"], "float32", forms=["error"])
    assert result.calls == {"error": 9} and not result.failed


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It keeps results in a file and goes on where that ends."""
    path = tmp_path / "results.jsonl"
    options = ["-k", "^sin$", "--dtype", "float32", "--samples", "1", "--workers", "1", "--results", str(path)]
    assert main(options) == 0
    assert [(r.name, r.handling) for r in read(path).values()] == [("sin", SYMBOLS)]
    append(path, Result("sin", "float32", failed=1, failures=["sin is wrong"]))
    assert main(options) == 1  # what is in the file counts
    assert FAILED in capsys.readouterr().out
    assert main([*options, "--retry"]) == 0
    assert main(["-k", "^no such operator$"]) == 1


def test_a_process_that_takes_too_long() -> None:
    """It is ended, and the next operator has another process."""
    results = list(pool.run([("sin", "float32"), ("no such operator", "float32")], {}, workers=1, timeout=0.5))
    assert [r.handling for r in results] == [FAILED, FAILED]
    assert "no result after 0.5 seconds" in results[0].failures[0]


def test_numbers_that_fall() -> None:
    """They are compared with those of the file."""
    dtype, number = next(iter(STORED["compiled"].items()))
    results = [Result(str(i), dtype, first=SYMBOLS) for i in range(number)]
    assert report.fallen(results) == []
    assert f"{number} were" in report.fallen(results[1:])[0]
