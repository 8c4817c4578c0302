# SPDX-License-Identifier: Apache-2.0
"""The loggers of thunder, and the variables of the environment."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thunder
from thunder.core.events import KINDS, EventLog
from thunder.frontend import environment, logs


@pytest.fixture(autouse=True)
def _environment_is_read_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(environment, "_read", [])
    yield
    logs.enable_logs(())


def run() -> Any:
    """Compile a program twice."""
    jitted = thunder.jit(lambda x, n: x * n)
    jitted(torch.ones(3), 2.0)
    jitted(torch.ones(3), 3.0)
    return jitted


def lines(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == f"thunder.{name}"]


def test_nothing_is_logged_by_default(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither to handlers nor to stderr."""
    run()
    assert not caplog.records
    assert capsys.readouterr() == ("", "")


def test_loggers_of_the_standard_library(caplog: pytest.LogCaptureFixture) -> None:
    """A line for each compilation, with its reason and its duration; and the other logs."""
    caplog.set_level(logging.INFO, "thunder")
    run()
    first, second = lines(caplog, "recompiles")
    assert first.startswith("thunder.jit(")
    assert "compiled in 0." in first
    assert first.endswith(" s, because no program was cached")
    assert second.endswith(" s, because n was 2.0 and is 3.0")
    assert any("a guard failed: n was 2.0 and is 3.0" in line for line in lines(caplog, "guards"))
    assert any("def prologue(" in line for line in lines(caplog, "guards"))
    assert lines(caplog, "executors")[0].endswith("torch runs 1 operation")
    assert "Dead Code Elimination 0." in lines(caplog, "timing")[0]
    assert "t0 = torch.mul(x, 2.0)" in lines(caplog, "traces")[0]
    assert not lines(caplog, "fallbacks")
    thunder.jit(lambda x: x + id(x.untyped_storage()) * 0)(torch.ones(3))
    (line,) = lines(caplog, "fallbacks")
    assert "runs eagerly: " in line
    assert f"(at {__file__}:" in line


def test_logs_named_in_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They are printed on stderr, the others are not."""
    monkeypatch.setenv("THUNDER_LOGS", "recompiles, executors")
    run()
    text = capsys.readouterr().err.splitlines()
    assert len(text) == 4
    assert {line.split()[0] for line in text} == {"[thunder.recompiles]", "[thunder.executors]"}
    monkeypatch.delenv("THUNDER_LOGS")
    run()
    assert capsys.readouterr().err == ""


def test_unknown_logs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each call of thunder.jit, with the list of names."""
    monkeypatch.setenv("THUNDER_LOGS", "recompiles,guard")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"'guard', which is no log .* recompiles, fallbacks, guards, executors, "):
            thunder.jit(lambda x: x)


def test_unknown_variables_are_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the nearest name; variables of tests are known."""
    monkeypatch.setenv("THUNDER_TRACE_BACK", "full")
    monkeypatch.setenv("THUNDER_LOG", "x")
    monkeypatch.setenv("THUNDER_TEST_SCALE", "1")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        thunder.jit(lambda x: x)
        thunder.jit(lambda x: x)
    (warning,) = found
    assert str(warning.message) == (
        "thunder does not know the environment variables THUNDER_LOG (the nearest name is THUNDER_LOGS), "
        "THUNDER_TRACE_BACK (the nearest name is THUNDER_TRACEBACK)"
    )
    assert warning.filename == __file__


def test_every_kind_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """Of one of the loggers."""
    caplog.set_level(logging.INFO, "thunder")
    for kind in KINDS:
        caplog.clear()
        EventLog("thunder.jit(f)").add(kind, "the reason", details={"answer": True, "scope": "call"})
        assert any("thunder.jit(f)" in r.getMessage() and "the reason" in r.getMessage() for r in caplog.records)


class Doubled(torch.nn.Module):
    """A module that counts its calls."""

    calls = 0

    def forward(self, x):
        """Return twice the argument."""
        Doubled.calls += 1
        return x * 2


@pytest.mark.parametrize(("value", "disabled"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_thunder_can_be_disabled(monkeypatch: pytest.MonkeyPatch, value: str, disabled: bool) -> None:
    """Everything runs eagerly, on the same interface; also after a reset."""
    monkeypatch.setenv("THUNDER_DISABLE", value)
    jitted = thunder.jit(Doubled())
    Doubled.calls = 0
    for _ in range(3):
        assert jitted(torch.ones(2)).tolist() == [2, 2]
        assert thunder.cache_misses(jitted) == (0 if disabled else 1)
    assert "THUNDER_DISABLE is set" in thunder.explain(jitted) or not disabled
    thunder.compile_stats(jitted).cache.clear()
    jitted._jitted.reset()
    jitted(torch.ones(2))
    assert thunder.cache_misses(jitted) == (0 if disabled else 2)
    if disabled:
        assert Doubled.calls == 4
        assert thunder.compile_stats(jitted).eager_calls == thunder.compile_stats(jitted).calls == 4


def test_transformed_functions_are_never_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager mode would compute something else."""
    monkeypatch.setenv("THUNDER_DISABLE", "1")
    assert thunder.grad(lambda x: (x * x).sum())(torch.ones(2)).tolist() == [2, 2]
