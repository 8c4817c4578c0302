# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder explain`: a script runs as usual, and a report follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import thunder.api
from thunder.cli import main

SCRIPT = """
import sys, torch, thunder

def f(x):
    return x + int(sys.argv[1])

print("result", thunder.jit(f)(torch.ones(1)).item(), __name__)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(thunder.api, "_jitted", thunder.api._jitted)
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_report(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """After the output of the script, also for functions that no longer exist."""
    assert main(["explain", script, "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["result 3.0 __main__", "thunder.jit(f), 1 call: 0 cache hits, 1 compilation"]


def test_json(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Only JSON on stdout."""
    assert main(["explain", "--json", script, "2"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["functions"][-1]["function"] == "thunder.jit(f)"
    last = found["events"][-1]
    assert (last["kind"], last["program"], last["reason"]) == ("compile", "thunder.jit(f)", "no program was cached")
    assert "result 3.0" in err


def test_scripts_that_fail(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The traceback, the report and the status."""
    assert main(["explain", script]) == 1
    assert "IndexError" in capsys.readouterr().err
    (tmp_path / "exits.py").write_text("raise SystemExit(3)")
    assert main(["explain", str(tmp_path / "exits.py")]) == 3
    assert "called thunder.jit for no function" in capsys.readouterr().out
    assert main(["explain", str(tmp_path / "missing.py")]) == 2
    assert "there is no file" in capsys.readouterr().err
