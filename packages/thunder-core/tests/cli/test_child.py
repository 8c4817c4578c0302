# SPDX-License-Identifier: Apache-2.0
"""A look from another process: what it reports, and what is told when it dies."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from thunder.cli import child
from thunder.plugins import Env


def pretend(monkeypatch, act) -> None:
    """Replace the child process by a function of its report's path, which returns status and output."""

    def run(command: list[str], *, timeout: float, **options: object) -> subprocess.CompletedProcess:
        status, output = act(Path(command[5]), timeout)
        return subprocess.CompletedProcess(command, status, output)

    monkeypatch.setattr(subprocess, "run", run)


def test_what_it_saw(monkeypatch) -> None:
    """The report is the answer, whatever was printed."""

    def act(report: Path, timeout: float):
        report.write_text(json.dumps({"env": {"torch": "2.99"}, "record": None}), encoding="utf-8")
        return 0, b"{noise"

    pretend(monkeypatch, act)
    assert child.look() == {"env": {"torch": "2.99"}, "record": None}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-11, "crashed: killed by SIGSEGV"),
        (-6, "crashed: killed by SIGABRT"),
        (-200, "crashed: killed by signal 200"),
        (3, "ended the process with status 3"),
        (0, "ended the process with status 0"),
        (0xC0000005, "crashed: exit status 0xc0000005"),
    ],
)
def test_how_it_died(monkeypatch, status: int, words: str) -> None:
    """By signal, by status, or silently; with the last lines of what it said."""
    output = "\n".join(f"line {n}" for n in range(40)).encode() + b"\xff"
    pretend(monkeypatch, lambda report, timeout: (status, output))
    seen = child.look("acme")
    assert seen["crash"] == words
    assert seen["output"].splitlines()[0] == "line 25"


def test_a_crash_with_a_traceback(monkeypatch) -> None:
    """What faulthandler says begins with what matters."""
    output = ["noise", "Fatal Python error: Segmentation fault", "  File acme.py, line 3", *["  more"] * 30]
    pretend(monkeypatch, lambda report, timeout: (-11, "\n".join(output).encode()))
    assert child.look("acme")["output"].splitlines()[:2] == output[1:3]


def test_it_does_not_end(monkeypatch) -> None:
    """A plugin that hangs is told like one that crashes."""

    def act(report: Path, timeout: float):
        raise subprocess.TimeoutExpired("child", timeout, output=b"waiting for a licence")

    pretend(monkeypatch, act)
    assert child.look("acme", 2.5) == {"crash": "did not end within 2.5 seconds", "output": "waiting for a licence"}


@pytest.fixture
def manager(monkeypatch):
    """What the child's side asks, without an installed plugin."""

    class Manager:
        env = Env()
        error: Exception | None = None

        def find(self, name: str) -> None:
            return None

    Manager.env.__dict__["_torch"] = (None, "ImportError: broken")
    found = Manager()

    def load_named(name: str) -> None:
        if found.error is not None:
            raise found.error

    monkeypatch.setattr("thunder.plugins.manager", lambda: found)
    monkeypatch.setattr("thunder.plugins.load_named", load_named)
    return found


@pytest.mark.parametrize("names", [[], ["acme"]])
def test_the_childs_side(manager, tmp_path, names: list[str]) -> None:
    """It writes environment and record."""
    assert child.main([str(tmp_path / "report"), *names]) == 0
    told = json.loads((tmp_path / "report").read_text(encoding="utf-8"))
    assert told["env"]["torch_error"] == "ImportError: broken"
    assert told["record"] is None
    assert "error" not in told


def test_thunder_itself_is_broken(manager, tmp_path) -> None:
    """An error that is not the plugin's is told apart."""
    manager.error = ImportError("thunder.extend is broken")
    assert child.main([str(tmp_path / "report"), "acme"]) == 0
    told = json.loads((tmp_path / "report").read_text(encoding="utf-8"))
    assert told["error"].endswith("ImportError: thunder.extend is broken\n")
