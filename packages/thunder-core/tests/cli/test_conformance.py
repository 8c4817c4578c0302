# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder conformance`: which pytest sessions it starts, and what it makes of their outcome."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import thunder.plugins
from thunder.cli import conformance, main
from thunder.plugins import GROUP, PluginManager, PluginRecord, PluginState
from thunder.tests.report import Outcome, Run, Summary, write_report


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch):
    """The commands that were run; each ends with the status that `sessions.status` has for its executor, else 0."""

    class Sessions(list):
        status: dict[str, int]

    commands = Sessions()
    commands.status = {}

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess:
        commands.append(command)
        return subprocess.CompletedProcess(command, commands.status.get(command[command.index("--executor") + 1], 0))

    monkeypatch.setattr(subprocess, "run", run)
    return commands


@pytest.mark.parametrize(
    ("arguments", "own", "rest"),
    [
        (["conformance"], ["conformance"], []),
        (["conformance", "acme"], ["conformance", "acme"], []),
        (["conformance", "-n", "2"], ["conformance"], ["-n", "2"]),
        (["conformance", "acme", "-k", "add or mul", "-x"], ["conformance", "acme"], ["-k", "add or mul", "-x"]),
        (["conformance", "acme", "--", "-x"], ["conformance", "acme"], ["-x"]),
        (["conformance", "--", "-x"], ["conformance"], ["-x"]),
        (["conformance", "--help"], ["conformance", "--help"], []),
        (["doctor", "acme", "--json"], ["doctor", "acme", "--json"], []),
        ([], [], []),
    ],
)
def test_what_is_pytests(arguments: list[str], own: list[str], rest: list[str]) -> None:
    """NAME stands right behind the command; the value of a pytest option is never taken for it."""
    assert conformance.split(arguments) == (own, rest)


def test_one_executor(sessions, capsys) -> None:
    """The suite by its package name, the executor by its own, no `-p`; the status is pytest's."""
    sessions.status["acme"] = 5
    assert main(["conformance", "acme", "-n", "2", "--thunder-dtypes", "float32"]) == 5
    expected = [
        "-m",
        "pytest",
        "--pyargs",
        "thunder.tests",
        "--executor",
        "acme",
        "-n",
        "2",
        "--thunder-dtypes",
        "float32",
    ]
    assert sessions == [[sys.executable, *expected]]
    told = capsys.readouterr().out
    assert told.startswith(f"$ python {' '.join(expected)}\n")
    assert told.endswith("  acme: skipped: no test was selected\n")


@pytest.mark.parametrize("given", [["--shard", "2/4"], ["--shard=2/4"], ["--thunder-shard", "2/4"]], ids=str)
def test_shard(sessions, given: list[str]) -> None:
    """pytest's option has a name that no other plugin has."""
    assert main(["conformance", "acme", *given, "-k", "a=b"]) == 0
    assert sessions[0][sessions[0].index("acme") + 1 :] == ["--thunder-shard=2/4", "-k", "a=b"]


def shard(folder: Path, index: int, outcome: str = "passed") -> str:
    """Write the report of one of two shards; returns its path."""
    counted = {"executor": "acme", "operator": f"op{index}", "family": "f", "claimed": True, "sources": "acme 1"}
    run = Run("python -m thunder conformance acme", {}, selected=1, finished=1, matrix="m", shard=f"{index}/2")
    path = folder / f"{index}.json"
    write_report(Summary([Outcome(outcome, counted, "test_x")]), path, run)
    return str(path)


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_merge(sessions, capsys, tmp_path: Path, outcome: str) -> None:
    """The table of all shards is printed and written; the status is that of their tests."""
    page = tmp_path / "deep" / "acme.md"
    files = [shard(tmp_path, 1), shard(tmp_path, 2, outcome)]
    assert main(["conformance", "--merge", *files, "--thunder-report", str(page)]) == (outcome == "failed")
    shown = capsys.readouterr().out
    assert "conformance of acme" in shown and f"written to {page}" in shown
    assert f"| f | 2 | {2 - (outcome == 'failed')} | 0 | {int(outcome == 'failed')} | 2 |" in page.read_text()
    assert sessions == []


def test_merge_of_too_few(sessions, capsys, tmp_path: Path) -> None:
    """What is missing is said, and nothing is written."""
    page = tmp_path / "acme.md"
    assert main(["conformance", "--merge", shard(tmp_path, 2), f"--thunder-report={page}"]) == 2
    assert "one report of each of the 2 shards is needed, but these are of 2/2" in capsys.readouterr().err
    assert not page.exists()
    assert main(["conformance", "--merge"]) == 2
    assert "--merge needs the reports of the shards" in capsys.readouterr().err


def test_without_pytest(sessions, monkeypatch, capsys) -> None:
    """What to install is said."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["conformance", "torch"]) == 2
    assert "python -m pip install 'thunder-core[tests]'" in capsys.readouterr().err
    assert sessions == []


def record(name: str, state: PluginState = PluginState.COMPATIBLE, reason: str | None = None) -> PluginRecord:
    return PluginRecord(name, EntryPoint(name, name, GROUP), f"thunder-ex-{name}", "1.0", state=state, reason=reason)


def install(monkeypatch, *records: PluginRecord, **seen: dict[str, Any]) -> None:
    found = [*records, *(record(name) for name in seen)]
    looks = {
        name: told if "crash" in told else {"record": {**record(name).to_dict(), **told}} for name, told in seen.items()
    }
    monkeypatch.setattr(thunder.plugins, "_manager", PluginManager(scan=lambda: found))
    monkeypatch.setattr(conformance, "look", lambda name: looks[name])


def ready(*executors: str) -> dict[str, Any]:
    return {"state": "ready", "executors": [{"name": name} for name in executors]}


def test_every_plugin(sessions, monkeypatch, capsys) -> None:
    """Each executor of each plugin that can run here; the others with their reason, which is no failure."""
    off = record("off", PluginState.BLOCKED, "disabled by THUNDER_DISABLE_PLUGINS")
    install(monkeypatch, off, acme=ready("acme", "acme_norms"), gpu={"state": "unavailable", "reason": "needs a GPU"})
    assert main(["conformance", "-x"]) == 0
    assert [command[6:] for command in sessions] == [["acme", "-x"], ["acme_norms", "-x"]]
    told = capsys.readouterr().out
    assert "acme: passed" in told and "acme_norms: passed" in told
    assert "gpu: not tested: unavailable (needs a GPU)" in told
    assert "off: not tested: blocked (disabled by THUNDER_DISABLE_PLUGINS)" in told


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"state": "failed", "reason": "import: ImportError"}, "acme: not tested: failed (import: ImportError)"),
        (
            {"crash": "crashed: killed by SIGSEGV", "output": ""},
            "acme: not tested: crashed (crashed: killed by SIGSEGV)",
        ),
        (ready("acme"), "acme: failed: pytest ended with status 1"),
    ],
)
def test_one_that_is_broken(sessions, monkeypatch, capsys, seen: dict[str, Any], words: str) -> None:
    """A plugin that cannot be loaded, or does not pass, fails the command, and the others are still tested."""
    sessions.status["acme"] = 1
    install(monkeypatch, acme=seen, zzz=ready("zzz"))
    assert main(["conformance"]) == 1
    told = capsys.readouterr().out
    assert words in told
    assert "zzz: passed" in told


def test_jobs_in_which_nothing_ran(sessions, monkeypatch, capsys) -> None:
    """`-k` may select tests of some executors only. The others are skipped; if all are, the status says so."""
    sessions.status.update(acme=5)
    install(monkeypatch, acme=ready("acme"), zzz=ready("zzz"))
    assert main(["conformance", "-k", "matmul"]) == 0
    told = capsys.readouterr().out
    assert "acme: skipped: no test was selected" in told and "zzz: passed" in told
    sessions.status.update(zzz=5)
    assert main(["conformance", "-k", "no_such"]) == 5


def test_json(monkeypatch, capsys) -> None:
    """Standard output is JSON alone: a job for each executor with its report, and each plugin that was not tested."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess:
        assert options["stdout"] is sys.stderr
        (path,) = (text.partition("=")[2] for text in command if text.startswith("--thunder-report="))
        counted = {"executor": "acme", "operator": "mul", "family": "f", "claimed": True, "place": "acme/mul.py:7"}
        counted["not_tested"] = ["cuda (this machine has none)"]
        write_report(Summary([Outcome("failed", counted, "test_x")]), Path(path), Run("command", {}))
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    install(monkeypatch, acme=ready("acme"), gpu={"state": "unavailable", "reason": "needs a GPU"})
    assert main(["conformance", "--json", "-x"]) == 1
    told = json.loads(capsys.readouterr().out)
    acme, gpu = told["jobs"]
    assert told["ok"] is False
    assert (acme["name"], acme["state"]) == ("acme", "failed")
    found = acme["report"]["executors"]["acme"]
    assert found["operators"]["mul"]["place"] == "acme/mul.py:7"
    assert found["not_tested"] == ["cuda (this machine has none)"]
    assert gpu == {"name": "gpu", "state": "not tested", "reason": "unavailable (needs a GPU)", "report": None}


@pytest.mark.parametrize("option", ["--merge", "--thunder-report=a.json"])
def test_json_is_a_report(sessions, capsys, option: str) -> None:
    """Options that write a report themselves are refused."""
    assert main(["conformance", "acme", "--json", option]) == 2
    assert f"--json cannot be combined with {option.partition('=')[0]}" in capsys.readouterr().err
    assert sessions == []


def test_nothing_installed(sessions, monkeypatch, capsys) -> None:
    """Said, and no failure."""
    install(monkeypatch)
    assert main(["conformance"]) == 0
    assert "no executor plugin is installed" in capsys.readouterr().out
