# SPDX-License-Identifier: Apache-2.0
"""`thunder trace`, `thunder bench` and `thunder report`: what they print and return."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import zipfile
from pathlib import Path

import pytest

from thunder.cli import main, terminal


def test_trace(programs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The forward and the backward program, without colors."""
    assert main(["trace", f"{programs}:MLP", "--guards"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# forward program\n# Constructed by Delete Last Used")
    assert "def backward(saved, " in out and "def prologue(" in out and "\x1b" not in out


def test_trace_passes(programs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of passes, and the trace after one of them."""
    assert main(["trace", f"{programs}:f", "--passes"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[2].split() == ["0", "capture"] and rows[-2].split()[1:4] == ["Delete", "Last", "Used"]
    for at in ("0", "capture"):
        assert main(["trace", f"{programs}:f", "--at", at]) == 0
        assert "ltorch.sin" in capsys.readouterr().out
    assert main(["trace", f"{programs}:f", "--at", "nothing"]) == 2
    assert "there is no such pass. The passes are 0 capture, 1 Dead" in capsys.readouterr().err


def test_trace_as_json(programs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Operations with executors and lines of user code."""
    assert main(["trace", f"{programs}:jitted", "--json", "--executors", "torch", "--input", "f32[2]"]) == 0
    found = json.loads(capsys.readouterr().out)["programs"]["forward"]
    assert [(op["name"], op["executor"]) for op in found["operations"]] == [("mul", "torch"), ("sin", "torch")]
    assert found["operations"][0]["where"]["text"] == "return (x * scale).sin()"
    assert found["passes"][0] == {"name": "capture", "nanoseconds": None}


def test_colors(programs: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal only, and not if the user asks for none."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert terminal.highlighted("def f(x):\n@no\n  a = '#'  # c") == (
        "\x1b[35mdef\x1b[0m f(x):\n\x1b[33m@no\x1b[0m\n  a = '#'  # c"
    )
    assert terminal.highlighted("  return a  # note") == "  \x1b[35mreturn\x1b[0m a  \x1b[2m# note\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.painted("a", "bold") == "a"


def test_bench(programs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each contender, in one run."""
    arguments = ["bench", f"{programs}:MLP", "--only", "eager,thunder", "--rounds", "1", "--seconds", "0.001"]
    assert main(arguments) == 0
    head, eager, ours = capsys.readouterr().out.splitlines()
    assert head.split() == ["first", "call", "warm", "call", "speed", "memory", "results"]
    assert eager.startswith("eager") and "1.00x" in eager
    assert ours.startswith("thunder") and ours.endswith("as in eager mode")
    assert main([*arguments, "--json", "--backward"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backward"] and found["contenders"]["thunder"]["median"] > 0


def test_bench_of_torch_compile(programs: str, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """A contender that fails is a row, and no failure of the command."""

    def fails(fn: object) -> object:
        raise RuntimeError("no C++ compiler\nand more")

    monkeypatch.setattr("torch.compile", fails)
    arguments = ["bench", f"{programs}:f", "--rounds", "1", "--seconds", "0.001"]
    assert main(arguments) == 0
    assert "fails: RuntimeError: no C++ compiler" in capsys.readouterr().out


def test_bench_that_cannot_run(programs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown contenders, and gradients of nothing."""
    assert main(["bench", f"{programs}:f", "--only", "jax"]) == 2
    assert "'jax' is none of eager, torch.compile, thunder" in capsys.readouterr().err
    assert main(["bench", f"{programs}:f", "--only", "thunder", "--backward"]) == 2
    assert "no result requires grad" in capsys.readouterr().err


def test_report_of_a_call(programs: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The zip is in the current folder, or where --output says."""
    assert main(["report", f"{programs}:MLP"]) == 0
    assert "report: thunder_report.zip" in capsys.readouterr().out and (tmp_path / "thunder_report.zip").exists()
    assert main(["report", f"{programs}:f", "--json", "--output", str(tmp_path / "r.zip")]) == 0
    assert "program/reproduce.py" in json.loads(capsys.readouterr().out)["files"]
    assert (tmp_path / "r.zip").exists()


SCRIPT = """
import sys, torch, thunder

@thunder.jit
def f(x, n):
    return x[:, n]

print("first", f(torch.ones(2, 2), 1).shape)
f(torch.ones(2, 2), int(sys.argv[1]))
"""


def test_report_of_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All jitted functions, and the call that fails, with a script that fails as well."""
    (tmp_path / "script.py").write_text(SCRIPT)
    target, output = str(tmp_path / "script.py"), str(tmp_path / "r.zip")
    assert main(["report", "--output", output, target, "0"]) == 0
    with zipfile.ZipFile(output) as archive:
        assert "error.txt" not in archive.namelist() and "program 1/reproduce.py" in archive.namelist()
    assert main(["report", "--output", output, target, "7"]) == 1
    out, err = capsys.readouterr()
    assert out.count("first torch.Size([2])") == 2 and "IndexError" in err
    with zipfile.ZipFile(output) as archive:
        assert archive.read("summary.txt").decode().startswith("IndexError: ")
        assert "frontend/jit.py" in archive.read("error.txt").decode()
        script = archive.read("failing call/explain.txt").decode()
    assert script.startswith("1 call")
    assert main(["report", str(tmp_path / "missing.py")]) == 2
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["bench", "trace"])
def test_errors_of_the_program(programs: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The traceback has the user's frames only, and a line says whose error it is."""
    assert main([command, f"{programs}:raises"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        f"thunder {command}: {programs}:raises raised an error\n\nTraceback (most recent call last):\n"
    )
    assert [line.split('"')[1] for line in err.splitlines() if line.startswith("  File ")] == [programs]
    assert "\nValueError: wrong input\n" in err


def test_errors_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be imported, and inputs that cannot be made, are the user's errors, too."""
    (tmp_path / "a_broken_program.py").write_text("def f(:")
    assert main(["trace", f"{tmp_path}/a_broken_program.py:f"]) == 1
    assert "SyntaxError: invalid syntax" in capsys.readouterr().err
    (tmp_path / "a_program_without_inputs.py").write_text("def f(x): ...\ndef f_inputs(): return 1 / 0\n")
    assert main(["report", f"{tmp_path}/a_program_without_inputs.py:f"]) == 1
    assert "in f_inputs\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trace", "--html", "no_folder/a.html"], "argument --html: there is no "),
        (["report", "--output", "."], "argument --output: . is a folder"),
        (["bench", "--rounds", "0"], "argument --rounds: 0 is not above zero"),
        (["bench", "--seconds", "few"], "argument --seconds: invalid float value: 'few'"),
        (["trace", "more", "words"], "unrecognized arguments: more words"),
    ],
)
def test_senseless_options(
    programs: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing runs, and the usage is that of the command."""
    with pytest.raises(SystemExit) as stop:
        main([arguments[0], f"{programs}:raises", *arguments[1:]])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"usage: thunder {arguments[0]} ")
    assert f"thunder {arguments[0]}: error: {message}" in err


def read_all(end: int) -> bytes:
    """Read what was written to the other end, which is closed, and close this one."""
    found = b""
    with contextlib.suppress(OSError):  # a pseudoterminal's end of file
        while part := os.read(end, 4096):
            found += part
    os.close(end)
    return found


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudoterminals")
def test_a_real_terminal(programs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace has colors there, and none in a pipe."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    texts = []
    for ends in (os.openpty, os.pipe):
        reading, writing = ends()
        with os.fdopen(writing, "w") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            assert main(["trace", f"{programs}:f", "--at", "0"]) == 0
        texts.append(read_all(reading).decode().replace("\r\n", "\n"))
    assert texts[0].startswith("\x1b[1m# forward program\x1b[0m\n")
    assert re.sub(r"\x1b\[\d+m", "", texts[0]) == texts[1]
