# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine.report`: a zip with all that a maintainer needs, and none of the user's data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch
from faulty import operator_executor

import thunder
from thunder.core.tracebacks import keeps_all_frames

SECRET = 3.14159265


class Net(torch.nn.Module):
    """A module with parameters, whose forward has a line that tests look for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[index].tanh()  # the user's line


def read(path: Path) -> dict[str, str]:
    """Return the files of a zip."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def example() -> tuple[Net, torch.Tensor, torch.Tensor]:
    """Return a module and arguments, all elements of which are secret."""
    net = Net()
    torch.nn.init.constant_(net.layer.weight, SECRET)
    torch.nn.init.constant_(net.layer.bias, SECRET)
    return net, torch.full((3, 4), SECRET), torch.tensor([0, 2])


def test_a_call_that_fails(tmp_path: Path) -> None:
    """The summary says what differs, and the script shows it."""
    net, x, index = example()
    with operator_executor(tanh=lambda a: torch.tanh(a) * 1.01) as wrong:
        found = thunder.examine.report(thunder.jit(net, executors=[wrong]), x, index, file=tmp_path / "r.zip")
    files = read(tmp_path / "r.zip")
    assert str(found).splitlines()[-1] == f"report: {tmp_path / 'r.zip'} ({len(files)} files)"
    assert "result 0 differs from eager mode" in files["summary.txt"]
    assert "executors: it fails with 'wrong'" in files["summary.txt"]
    assert "wrong_tanh of executor 'wrong'" in files["summary.txt"]
    assert "ltorch.tanh" in files["program/reproduce.py"]
    assert json.loads(files["program/options.json"])["options"]["executors"] == ["wrong"]
    assert json.loads(files["environment.json"])["distributions"]["torch"]
    assert isinstance(json.loads(files["plugins.json"]), list)
    assert json.loads(files["program/events.json"])[0]["kind"] == "compile"
    assert "def prologue(" in files["program/guards.py"]
    passes = [name for name in files if name.startswith("program/forward/")]
    assert passes[0] == "program/forward/00 captured.py" and passes[-1].endswith("Delete Last Used.py")
    assert any(name.startswith("program/backward/") for name in files)
    assert set(found.to_dict()["files"]) | {"README.txt"} == set(files)
    assert not any("3.1415" in text for text in files.values())
    assert not keeps_all_frames()


def test_a_call_that_is_right(tmp_path: Path) -> None:
    """The script contains the captured program, and runs in another process."""
    thunder.examine.report(*example(), file=tmp_path / "r.zip")
    files = read(tmp_path / "r.zip")
    assert "the compiled program and eager mode agree" in files["summary.txt"]
    script = tmp_path / "reproduce.py"
    script.write_text(files["program/reproduce.py"])
    assert "tensor((3, 4), (4, 1), torch.float32" in script.read_text()
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.stdout == "no difference\n", done.stderr


def test_a_function_that_was_called(tmp_path: Path) -> None:
    """Without arguments, its last program and all its events."""
    f = thunder.jit(lambda x, n: x * n)
    for n in (2, 3):
        f(torch.ones(2), n)
    thunder.examine.report(f, file=tmp_path / "r.zip")
    files = read(tmp_path / "r.zip")
    assert "n was 2 and is 3" in files["program/explain.txt"] and "2 calls" in files["summary.txt"]
    assert [e["kind"] for e in json.loads(files["program/events.json"])] == ["compile", "guard", "compile"]
    assert f._stats.calls == 2


def test_an_error(tmp_path: Path) -> None:
    """Its traceback has all frames; the home directory is not in the files."""

    def raises(a: Any) -> Any:
        raise RuntimeError(f"no kernel in {os.path.expanduser('~')}/x")

    with operator_executor(cos=raises) as wrong:
        thunder.examine.report(thunder.jit(torch.cos, executors=[wrong]), torch.ones(2), file=tmp_path / "r.zip")
    files = read(tmp_path / "r.zip")
    assert "RuntimeError: no kernel in ~/x" in files["error.txt"] and "frontend/jit.py" in files["error.txt"]
    assert files["summary.txt"].startswith("RuntimeError: no kernel in ~/x")


def test_a_call_without_a_program(tmp_path: Path) -> None:
    """It runs eagerly: there are no traces, and the explanation says why."""

    @thunder.disable
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    thunder.examine.report(lambda x: inner(x), torch.ones(2), file=tmp_path / "r.zip")
    files = read(tmp_path / "r.zip")
    assert "partly eager" in files["program/explain.txt"] and "program/guards.py" not in files
