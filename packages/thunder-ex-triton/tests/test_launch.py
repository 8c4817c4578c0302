# SPDX-License-Identifier: Apache-2.0
"""Tests of launches of Triton kernels."""

import sys
from types import ModuleType

from thunder_ex_triton.launch import load_apart


def load_again(name: str, path: str) -> ModuleType:
    """Load as CPython does for a C extension without state that it has loaded before."""
    module = sys.modules.setdefault(name, ModuleType(name))
    module.launch = path
    return module


def test_launchers_of_one_name_are_modules_of_their_own(monkeypatch):
    monkeypatch.setitem(sys.modules, "launcher", ModuleType("launcher"))
    assert load_again("launcher", "a") is load_again("launcher", "b")  # what happens without it
    load = load_apart(load_again)
    a, b = load("launcher", "a"), load("launcher", "b")
    assert (a.launch, b.launch) == ("a", "b")
