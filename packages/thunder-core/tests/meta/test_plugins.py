# SPDX-License-Identifier: Apache-2.0
"""Our own plugins have one skeleton, so that who knows one knows where things are in the others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from thunder.plugins import HOOKS

PACKAGES = sorted((Path(__file__).resolve().parents[4] / "packages").glob("thunder-ex-*/src/thunder_ex_*"))


def functions(path: Path) -> list[str]:
    """The functions of a module, in their order."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_the_skeleton(package: Path) -> None:
    """`plugin.py` has the hooks in the order of their calls, `probe.py` why it cannot run, `samples.py` the OpInfos."""
    hooks = [name for name in functions(package / "plugin.py") if name.startswith("thunder_")]
    assert hooks == [name for name in HOOKS if name in hooks]
    assert {"thunder_probe", "thunder_register_executors", "thunder_conformance_profile"} <= set(hooks)
    assert functions(package / "plugin.py") == hooks, "plugin.py holds hooks and nothing else"
    assert {"why_not", "unusable_device"} <= set(functions(package / "probe.py"))
    assert any(name.endswith("opinfos") for name in functions(package / "samples.py"))
    executors = [path for path in package.rglob("*.py") if path.name in ("executor.py", "operators.py")]
    subjects = [path for path in package.rglob("*.py") if "register" in functions(path)]
    assert executors or subjects, "no module brings an executor, operators or implementations"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_tests_mirror_it(package: Path) -> None:
    """The hooks and the probe have tests of their own."""
    tests = package.parents[1] / "tests"
    assert all((tests / name).exists() for name in ("conftest.py", "test_plugin.py", "test_probe.py"))
