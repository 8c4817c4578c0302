# SPDX-License-Identifier: Apache-2.0
"""Attributes of `threading.local`, and modules with a class of their own."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest
import torch

import thunder

LOCAL = threading.local()
X = torch.ones(2)


def scaled(x: torch.Tensor) -> torch.Tensor:
    LOCAL.calls = getattr(LOCAL, "calls", 0) + 1
    return x * getattr(LOCAL, "scale", 1.0)


def test_attributes_of_a_thread() -> None:
    """Changes are seen, assignments are repeated, and another thread has its own attributes."""
    LOCAL.calls = 0
    jitted = thunder.jit(scaled)
    for i in range(5):
        assert jitted(X)[0] == 1.0
        assert LOCAL.calls == i + 1
    LOCAL.scale = 3.0
    assert jitted(X)[0] == 3.0
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend([jitted(X)[0].item(), LOCAL.calls]))
    thread.start()
    thread.join()
    assert found == [1.0, 1]
    before = thunder.cache_misses(jitted)
    assert jitted(X)[0] == 3.0 and LOCAL.calls == 7
    assert thunder.cache_misses(jitted) == before
    LOCAL.__dict__.clear()


def test_a_stack_that_is_empty_between_calls() -> None:
    """Type checkers of shapes, e.g. jaxtyping, keep their memo in such a stack."""
    stack = threading.local()

    def f(x: torch.Tensor) -> torch.Tensor:
        if not hasattr(stack, "memo"):
            stack.memo = []
        stack.memo.append({"rows": x.shape[0]})
        try:
            return x * stack.memo[-1]["rows"]
        finally:
            stack.memo.pop()

    jitted = thunder.jit(f)
    for _ in range(5):
        assert jitted(X)[0] == 2.0
    assert thunder.cache_misses(jitted) <= 2 and stack.memo == []


class Lazy(types.ModuleType):
    """A module that computes attributes, like the lazy modules of Transformers."""

    def __getattr__(self, name: str) -> Any:
        if name not in self._objects:
            raise AttributeError(name)
        value = self._objects[name]
        if name.startswith("kept"):
            setattr(self, name, value)
        return value


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> Lazy:
    module = Lazy("thunder_lazy_module")
    module._objects = {"version": 2.0, "kept_function": lambda x: x + 1}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_lazy_modules(lazy: Lazy) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        import thunder_lazy_module
        from thunder_lazy_module import kept_function

        return kept_function(x) * thunder_lazy_module.version

    jitted = thunder.jit(f)
    for _ in range(3):
        assert jitted(X)[0] == 4.0
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 2), thunder.explain(jitted)
    lazy._objects["version"] = 3.0
    assert jitted(X)[0] == 6.0
    lazy.kept_function = lambda x: x + 3
    assert jitted(X)[0] == 12.0


def test_dicts_by_tuples_of_classes() -> None:
    table = {(int, float): 2.0, (torch.Tensor,): 3.0}
    jitted = thunder.jit(lambda x: x * table[(type(x),)])
    for value in (3.0, 3.0, 5.0):
        table[(torch.Tensor,)] = value
        assert jitted(X)[0] == value
    assert thunder.cache_hits(jitted) == 1
