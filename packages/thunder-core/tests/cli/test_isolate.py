# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder conformance NAME --isolate`: a crash is the end of its family and of nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from thunder.cli import isolate
from thunder.cli.isolate import Session, take_option

# An executor whose kernel for one operator ends the process, as a crash of compiled code does.
CRASHING = """
import os, signal
import torch, thunder.torch as ltorch
from thunder.extend import OperatorExecutor, register_executor

def crash(a, index, offset=0):
    os.kill(os.getpid(), signal.SIGSEGV)

made = register_executor(OperatorExecutor("crashing"))
made.register_implementation(
    ltorch.pixel_shuffle, made.register_operator("crash", like=ltorch.pixel_shuffle.meta, fn=crash)
)
made.register_implementation(ltorch.celu, made.register_operator("own_celu", like=ltorch.celu.meta, fn=torch.celu))
made.register_implementation(ltorch.logit, made.register_operator("bad_logit", like=ltorch.logit.meta, fn=torch.sin))
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "crashing.py").write_text(CRASHING)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "thunder", "conformance", "crashing", "-p", "crashing", *options]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_crash(tmp_path: Path) -> None:
    """What passed in other processes counts; the family that crashed is reported with the test that it was in."""
    report = tmp_path / "out" / "report.json"
    options = ["--isolate=2", "--thunder-family=transposes,activations_smooth,elementwise_special"]
    only = ["-k", "(pixel_shuffle or celu or logit) and (core_vs or meta_vs) and float32"]
    done = run(tmp_path, *options, *only, f"--thunder-report={report}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "crashed: killed by SIGSEGV in test_core_vs_torch_consistency[pixel_shuffle-" in done.stdout
    assert "FAILED" in done.stdout and "logit" in done.stdout
    found = json.loads(report.read_text())["executors"]["crashing"]
    families = found["families"]
    assert families["activations_smooth"] == {"claimed": 1, "passed": 1, "known_failures": 0, "failed": 0, "total": 1}
    assert families["elementwise_special"]["failed"] == 1
    assert families["transposes"]["failed"] == 1
    assert "Fatal Python error" in (report.parent / "transposes.txt").read_text()


@pytest.mark.parametrize(
    ("given", "value", "rest"),
    [
        (["-x", "--isolate"], "", ["-x"]),
        (["--isolate=4", "-k", "a=b"], "4", ["-k", "a=b"]),
        (["-k", "x"], None, ["-k", "x"]),
    ],
)
def test_options(given: list[str], value: str | None, rest: list[str]) -> None:
    """What is not pytest's is taken out of its arguments."""
    assert take_option(given, "--isolate") == (value, rest)


def test_how_it_ended() -> None:
    """Failing tests, and having none, are no crashes."""
    assert [Session("a", status, [], None, "").crash for status in (0, 1, 5)] == [None] * 3
    assert Session("a", -11, [], None, "").crash == "crashed: killed by SIGSEGV"


def test_the_run_of_all_processes() -> None:
    """The sums of their tests, and one digest of all tests that there were to deal, whatever the shard."""
    first = [Session("a", 0, [], None, "", 3, 3, "m1"), Session("b", -11, [], "x", "", 4, 2, "m2")]
    run = isolate._run_of(first, "acme", ["-x", "--thunder-shard=1/2", "--thunder-report=r.json"], "8")
    assert run.command == "python -m thunder conformance acme --isolate=8 -x"
    assert (run.selected, run.finished, run.shard, run.complete) == (7, 5, "1/2", False)
    second = [Session("a", 0, [], None, "", 2, 2, "m1"), Session("b", 0, [], None, "", 4, 4, "m2")]
    assert isolate._run_of(second, "acme", ["--thunder-shard=2/2"], "").matrix == run.matrix
    other = [second[0], Session("b", 0, [], None, "", 4, 4, "m3")]
    assert isolate._run_of(other, "acme", ["--thunder-shard=2/2"], "").matrix != run.matrix
    assert isolate._run_of(second, "acme", [], "").matrix is None
