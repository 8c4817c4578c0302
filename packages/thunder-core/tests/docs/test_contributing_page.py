# SPDX-License-Identifier: Apache-2.0
"""The files that docs/contributing.md adds, as they are written there, pass the conformance suite."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import thunder

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "contributing.md"
FILE = re.compile(
    r"the whole of\s`(thunder/\S+\.py)`[^`]*(?:`[^`]*`)?[^`]*:\n\n```\{code-block\} python\n(.*?)^```", re.S | re.M
)


SCRIPT = """
import pickle, subprocess, sys
import torch, thunder
import thunder.numpy as lnp
import thunder.torch as ltorch
from thunder import clang, prims

assert prims.inverse.vjp_rule and prims.inverse.batch_rule and ltorch.inv and clang.tanh and lnp.tanh
inverse = thunder.jit(torch.linalg.inv)
x = 2 * torch.eye(2).repeat(3, 1, 1)
assert torch.equal(thunder.vmap(inverse)(x), x / 4)
jacobian = thunder.jacrev(inverse)(x[0])
torch.testing.assert_close(jacobian, torch.func.jacrev(torch.linalg.inv)(x[0]))
assert "prims.inverse(" in str(thunder.trace()(torch.linalg.inv, x))
load = f"import pickle; assert pickle.loads({pickle.dumps(prims.inverse)!r}).name == 'inverse'"
subprocess.run([sys.executable, "-c", load], check=True)
"""


def copy_with_files(folder: Path, files: dict[str, str]) -> None:
    """Copy thunder's sources, where the page's files are the only change."""
    sources = Path(thunder.__file__).parents[1]
    shutil.copytree(sources, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for name, text in files.items():
        assert not (folder / name).exists(), f"{name} is there already: let the page add something else"
        (folder / name).write_text(text, encoding="utf-8")


def in_copy(folder: Path, *command: str) -> str:
    """Run Python on the copy; returns what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "THUNDER_DISABLE_PLUGINS": "1"}
    result = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


def test_the_pages_files(tmp_path: Path) -> None:
    """One file declares an operation of a new family: gradient, batching and samples. No other file has to know it."""
    files = dict(FILE.findall(PAGE.read_text("utf-8")))
    assert set(files) == {"thunder/torch/inverses.py", "thunder/core/prims/elementwise_tanh.py"}
    lines = [line for line in files["thunder/torch/inverses.py"].splitlines() if line.strip()]
    assert len(lines) <= 40, f"{len(lines)} lines: more than the page promises"
    copy_with_files(tmp_path, files)
    # The page's tanh takes the place of thunder's own.
    own = tmp_path / "thunder/core/prims/elementwise_math.py"
    text, removed = re.subn(r"^tanh = _function\(.*?^\)\n", "", own.read_text("utf-8"), flags=re.S | re.M)
    assert removed == 1
    own.write_text(text, encoding="utf-8")

    in_copy(tmp_path, "-c", SCRIPT)
    chosen = "inverse or inv-torch or tanh-torch"
    options = ("--thunder-dtypes", "int64,float32,float64,complex64", "-q", "-p", "no:cacheprovider", "-k", chosen)
    report = in_copy(tmp_path, "-m", "thunder", "conformance", "torch", *options)
    for family in ("inverses", "prims.inverses", "elementwise_tanh", "prims.elementwise_tanh"):
        assert re.search(rf"^{re.escape(family)} .* 0 +\d+$", report, re.M), report


def test_the_fields_of_a_block() -> None:
    """Those that the page names are there."""
    from dataclasses import fields

    from thunder.core.prims.elementwise_base import Elementwise

    page = PAGE.read_text("utf-8")
    section = page[page.index("### An elementwise operation") : page.index("### For one, two and three dimensions")]
    known = {field.name for field in fields(Elementwise)}
    named = {*re.findall(r"^    (\w+)=", section, re.M), *re.findall(r"`(\w+)=", section)}
    assert named and named <= known, named - known
