# SPDX-License-Identifier: Apache-2.0
"""Progress of long compilations on a terminal."""

from __future__ import annotations

import _thread
import io
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import thunder
from thunder.frontend import progress


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def slow(x):
    """Take a while to trace, and count the threads."""
    for i in range(3_000_000):  # in Python, so that other threads run meanwhile
        n = i
    return x + threading.active_count() + n * 0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(progress, "_INTERVAL", 0.05)


@pytest.mark.usefixtures("impatient")
def test_a_long_compilation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, with the seconds; the program does not see the thread that reports."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)

    def start(report: Any, args: Any) -> None:
        """Start the thread, and let the compilation take as long as its first report."""
        _thread.start_new_thread(report, args)
        while not stream.getvalue():
            time.sleep(0.001)

    monkeypatch.setattr(progress, "_INTERVAL", 60.0)  # in which the last line is printed
    monkeypatch.setattr(
        progress, "_thread", SimpleNamespace(start_new_thread=start, allocate_lock=_thread.allocate_lock)
    )
    jitted = thunder.jit(slow)
    assert jitted(torch.zeros(1)).item() == threading.active_count()
    first, *_, last = stream.getvalue().replace("\n", "").split("\r")[1:]
    assert first == "thunder.jit(slow): compiling (0 s)"
    assert last.startswith("thunder.jit(slow): compiled in ")
    stream.seek(0)
    stream.truncate()
    jitted(torch.zeros(1))
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("impatient")
def test_nothing_is_printed_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """E.g. into a file."""
    thunder.jit(slow)(torch.zeros(1))
    assert capsys.readouterr().err == ""


def test_short_compilations_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take less than two seconds."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.progress("x"):
        pass
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("impatient")
def test_a_terminal_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not disturb the compilation."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.progress("x"):
        stream.close()
        time.sleep(0.2)
