# SPDX-License-Identifier: Apache-2.0
"""What the tests of the documents share: traces are verified, and what a document registers is taken back."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

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
def _verified() -> Iterator[None]:
    """Every trace is checked between passes, and the documents' executors do not outlive their tests."""
    from thunder.extend import deregister_executor, get_all_executors

    before = {executor.name for executor in get_all_executors()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THUNDER_VERIFY", "1")
        yield
    for executor in get_all_executors():
        if executor.name not in before:
            deregister_executor(executor)
