# SPDX-License-Identifier: Apache-2.0
"""What the tests of the documents share: what a document registers or declares is taken back."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Test modules are imported by path, so a module that they share has to be made known before.
NAME = "compare_printed_traces"


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module


_load(Path(__file__).with_name("compare.py"))


@pytest.fixture(scope="module", autouse=True)
def _deregistered() -> Iterator[None]:
    """The documents' executors do not outlive their tests."""
    from thunder.extend import deregister_executor, get_all_executors

    before = {executor.name for executor in get_all_executors()}
    yield
    for executor in get_all_executors():
        if executor.name not in before:
            deregister_executor(executor)


def _tables() -> list[Any]:
    """Everything that declarations from outside are written into."""
    import thunder.clang.base as clang
    import thunder.core.prims.base as prims
    import thunder.torch.base as ltorch
    from thunder.executors.torchex import ex
    from thunder.passes import autodiff
    from thunder.tests import opinfos

    tables = [prims._prims, clang.clang_ops, clang.clangctx.methods, autodiff._registered, ex.implmap, ex.opmap]
    tables += [ltorch._symbols, ltorch._function_map, ltorch.language.methods, opinfos._derived]
    return [*tables, *opinfos.LISTS.values(), opinfos.opinfos]


@contextmanager
def _restored() -> Iterator[None]:
    tables = _tables()
    before = [table.copy() for table in tables]
    yield
    for table, content in zip(tables, before):
        table.clear()
        table.extend(content) if isinstance(table, list) else table.update(content)


@pytest.fixture
def undeclared() -> Iterator[None]:
    """What a test declares from outside, in place of thunder's own where it has the same name, is taken back."""
    with _restored():
        yield


@pytest.fixture(scope="module")
def undeclared_by_module() -> Iterator[None]:
    """The same for what a module's fixtures declare."""
    with _restored():
        yield
