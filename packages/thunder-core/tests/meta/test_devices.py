# SPDX-License-Identifier: Apache-2.0
"""Tensors that thunder makes for itself name their device.

Otherwise they are on torch's default device, which users set to a GPU or to `meta`. The number of a kernel would be
copied from there, which waits for the GPU, raises an error, or gives nothing.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[3]
FACTORIES = frozenset({
    "arange", "as_tensor", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand", "randint",
    "randn", "randperm", "scalar_tensor", "tensor", "zeros",
})  # fmt: skip
# What the traced program makes, as `torch.tensor([x, y])` does; and conformance tests, which users run.
EXEMPT = ("thunder/capture/dispatch/factories.py", "thunder/tests/")


def without_device(source: str) -> list[int]:
    """Return the lines that make a tensor with torch, and do not say on which device."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).removeprefix("torch.") in FACTORIES
        and ast.unparse(node.func).startswith("torch.")
        and not any(keyword.arg in ("device", None) for keyword in node.keywords)
    ]


def test_tensors_name_their_device() -> None:
    files = [path for path in PACKAGES.glob("*/src/**/*.py") if not any(part in path.as_posix() for part in EXEMPT)]
    assert len(files) > 100
    assert [f"{path}:{line}" for path in files for line in without_device(path.read_text(encoding="utf-8"))] == []


def test_the_check_can_fail() -> None:
    source = "torch.tensor(1)\ntorch.zeros(2, device='cpu')\ntorch.full(s, **how)\nx.zeros(1)\ntorch.rand(3)"
    assert without_device(source) == [1, 5]
