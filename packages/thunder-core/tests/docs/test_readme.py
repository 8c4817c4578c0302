# SPDX-License-Identifier: Apache-2.0
"""The README's executor is a plugin that works, and its excerpt of the demo is what the demo prints.

Its Python runs in test_docs_code.py; what it shows of Triton is checked by the tests of thunder-ex-triton.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
README = (ROOT / "README.md").read_text(encoding="utf-8")

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "thunder-ex-acme"
version = "0.1"

{entry_point}
[tool.hatch.build.targets.wheel]
packages = ["src/thunder_ex_acme"]
"""

USE = """\
import torch, thunder

silu = torch.nn.functional.silu
f = thunder.jit(silu)
x = torch.randn(3, requires_grad=True)
torch.testing.assert_close(torch.autograd.grad(f(x).sum(), x), torch.autograd.grad(silu(x).sum(), x))
f(x.detach())
print("= acme_silu(" in str(thunder.last_traces(f)[-1]))
"""


def block(language: str, containing: str) -> str:
    """Return the README's block of code that contains a text."""
    (found,) = (text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if containing in text)
    return found


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the arguments; it must succeed."""
    done = subprocess.run(
        [sys.executable, *command], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from what the README shows, and install it into a directory of its own."""
    scratch = tmp_path_factory.mktemp("acme")
    package = scratch / "src" / "thunder_ex_acme"
    package.mkdir(parents=True)
    (scratch / "pyproject.toml").write_text(PROJECT.format(entry_point=block("toml", "entry-points")), "utf-8")
    (package / "__init__.py").write_text(block("python", "hookimpl"), "utf-8")
    pip = ["-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheels = scratch / "wheels"
    run(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(wheels), str(scratch))
    run(*pip, "install", "--no-deps", "--no-index", "--target", str(scratch / "site"), *map(str, wheels.iterdir()))
    return scratch / "site"


def test_the_executor_is_used(site: Path) -> None:
    """Installing the wheel is all that it takes."""
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    assert run("-c", USE, PYTHONPATH=path, THUNDER_DISABLE_PLUGINS="").stdout.split()[-1] == "True"


def test_the_executor_conforms(site: Path) -> None:
    """The README's command proves it."""
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    (command,) = re.findall(r"^python -m thunder (conformance acme)$", README, re.MULTILINE)
    arguments = [*command.split(), "-q", "-k", "silu", "-p", "no:cacheprovider"]
    printed = run("-m", "thunder", *arguments, PYTHONPATH=path, THUNDER_DISABLE_PLUGINS="").stdout
    assert re.search(r"^all +1 +1 +0 +0 +\d+$", printed, re.MULTILINE), printed


def test_the_excerpt_of_the_demo() -> None:
    """Its lines are the demo's, but for the numbers."""
    source = (ROOT / "packages" / "thunder-core" / "tools" / "demo.py").read_text(encoding="utf-8")
    for line in block("text", "Memory saved for backward").splitlines():
        label = re.sub(r"(\s+[\d.]+)+$", "", line).strip()
        if "steady" in label and "Time" not in label:
            label = "first call"
        assert label in source, line
