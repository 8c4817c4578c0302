# SPDX-License-Identifier: Apache-2.0
"""Canaries: each name of torch that the two files of private names use exists in this torch.

Most of these names have a fallback, so that nothing fails where a torch lacks them, but something is slower or is not
seen. These tests fail then, and `nox -s nightly` runs them with torch's nightly build. docs/maintaining.md says what to
do.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import thunder.runtime.torch_private
import thunder.torch.private

FILES = [thunder.torch.private, thunder.runtime.torch_private]
#: The versions of torch that have a name, where not all supported ones do.
VERSIONS = {
    "torch.fx._symbolic_trace._is_fx_tracing_flag": "<2.15",
    "torch.fx._symbolic_trace._get_is_fx_tracing": ">=2.15",
}
#: Parts of names that only builds with CUDA have.
CUDA = ("_cuda_", "_StaticCudaLauncher", "_empty_strided_cuda")


def chain(node: ast.AST) -> str | None:
    """Return `torch._C._x` for the expression; None if it does not start with torch."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(["torch", *reversed(parts)]) if isinstance(node, ast.Name) and node.id == "torch" else None


def module_of(node: ast.AST) -> str | None:
    """Return the module of `sys.modules.get("torch.x")` or `importlib.import_module("torch.x")`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sys.modules.get", "importlib.import_module"):
        name = node.args[0]
        return name.value if isinstance(name, ast.Constant) and str(name.value).startswith("torch") else None
    return None


def names_of(tree: ast.AST, owners: dict[str, str]) -> Iterator[str]:
    """Yield the names that a piece of code uses. `owners` are its variables that are modules of torch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            owner = module_of(node.value)
            if owner is not None:
                owners[node.targets[0].id] = owner
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch"):
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Attribute) and (name := chain(node)):
            yield name
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            owner_node, attribute = node.args[:2]
            owner = chain(owner_node) or module_of(owner_node) or owners.get(ast.unparse(owner_node))
            if owner is not None and isinstance(attribute, ast.Constant):
                yield f"{owner}.{attribute.value}"
        if (found := module_of(node)) is not None:
            yield found


def every_name() -> list[str]:
    """Return the names of both files that have a private part."""
    found: set[str] = set()
    for module in FILES:
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        for each in tree.body:
            found |= set(names_of(each, {}))
    return sorted(name for name in found if any(part.startswith("_") for part in name.split(".")))


def resolve(name: str) -> Any:
    """Return the object, after importing the modules on the way."""
    found: Any = torch
    path = "torch"
    for part in name.split(".")[1:]:
        path += f".{part}"
        if not hasattr(found, part):
            importlib.import_module(path)
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", every_name())
def test_a_name_of_torch(name: str) -> None:
    """It is there, or this version or build is known to lack it."""
    if any(part in name for part in CUDA) and not torch.backends.cuda.is_built():
        pytest.skip("this torch was built without CUDA")
    if Version(torch.__version__).base_version not in SpecifierSet(VERSIONS.get(name, "")):
        pytest.skip(f"torch{VERSIONS[name]} has it")
    resolve(name)


def test_the_names_are_found() -> None:
    """By each of the ways in which the files name them."""
    names = every_name()
    assert "torch._C._set_sdp_priority_order" in names  # an attribute
    assert "torch._C._is_any_autocast_enabled" in names  # getattr with a fallback
    assert "torch._subclasses.fake_tensor.DynamicOutputShapeException" in names  # an import
    assert "torch._dynamo.eval_frame._stance" in names  # of a module that may not be loaded
    assert len(names) > 50
