# SPDX-License-Identifier: Apache-2.0
"""The script of docs/distributed.md runs by torchrun, and prints a program with the collectives that the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "distributed.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="a torch without gloo")


# After the script, skip the end of the interpreter: torch aborts there now and then with gloo, in eager mode, too
# ("terminate called without an active exception").
END = "\nimport os, sys\n\nsys.stdout.flush()\nos._exit(0)\n"


def without_numbers(line: str) -> str:
    return re.sub(r"\bt\d+", "t", line.strip())


def test_the_script_prints_its_collectives(tmp_path: Path) -> None:
    script, shown = (
        re.search(pattern, PAGE, re.DOTALL)[1]  # type: ignore[index]
        for pattern in (r"```\{code-block\} python\n(.*?)```", r"It prints the program.*?```text\n(.*?)```")
    )
    (tmp_path / "train.py").write_text(script + END, encoding="utf-8")
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    found = subprocess.run(run, cwd=tmp_path, env=settings, check=False, capture_output=True, text=True, timeout=150)
    assert found.returncode == 0, found.stderr
    printed = [without_numbers(line) for line in found.stdout.splitlines()]
    for line in shown.splitlines():
        assert without_numbers(line) in printed, found.stdout
