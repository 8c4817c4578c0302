# SPDX-License-Identifier: Apache-2.0
"""Where TransformerEngine cannot run, a stand-in emulates on the CPU what it computes."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from thunder.toolkit.testing import fallbacks_raise, is_ready, registered

os.environ.setdefault("THUNDER_VERIFY", "1")
os.environ.setdefault("THUNDER_STRICT", "1")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights and inputs are the same in each run, in whatever order the tests run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    """A program that falls back to eager mode raises an error instead of a warning."""
    with fallbacks_raise():
        yield


def _load(name: str) -> Any:
    """A module that lies beside this one."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("stand_in.py"))
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@contextmanager
def stand_in_for_the_library() -> Iterator[None]:
    """Register the plugin as if the library were there, on the CPU."""
    _load("thunder_ex_te_stand_in").install()
    from thunder_ex_te import linear, norms, plugin, probe

    with pytest.MonkeyPatch.context() as patch, registered("te", plugin):
        for module in (probe, linear, norms):
            patch.setattr(module, "unusable_device", lambda device: None)
        yield


@pytest.fixture(scope="session")
def where() -> Iterator[str]:
    """Where the executor `te` runs: a GPU with the library itself, or the CPU with the stand-in."""
    if is_ready("te"):
        yield "cuda"
        return
    with stand_in_for_the_library():
        yield "cpu"


@pytest.fixture
def device(where: str) -> str:
    """The same, for one test."""
    return where


@pytest.fixture
def recipes(where: str) -> Any:
    """The library's recipes, or what stands for them."""
    from thunder_ex_te.probe import kernels

    return kernels().recipes


@pytest.fixture
def calls(where: str) -> list[str]:
    """What the stand-in has run since."""
    if where != "cpu":
        pytest.skip("the library does not tell what it runs")
    found: list[str] = _load("thunder_ex_te_stand_in").calls
    found.clear()
    return found
