# SPDX-License-Identifier: Apache-2.0
"""What the tests of what makes a cached program stale share: a jitted callable is watched beside its original."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder

X = torch.linspace(-1, 1, 6)


class Watched:
    """A jitted callable beside the one that it stands for."""

    def __init__(self, fn: Any, *args: Any, **options: Any):
        self.fn = fn
        self.args = args or (X,)
        self.jitted = thunder.jit(fn, **options)
        self.call()
        assert self.uncacheable is None
        assert self.call() == 0, "recompiled though nothing changed"

    @property
    def uncacheable(self) -> str | None:
        return thunder.compile_stats(self.jitted).uncacheable

    def call(self, *args: Any) -> int:
        """Calls both; the number of traces that took."""
        before = thunder.cache_misses(self.jitted)
        args = args or self.args
        torch.testing.assert_close(self.jitted(*args), self.fn(*args))
        return thunder.cache_misses(self.jitted) - before

    def changed(self, *args: Any) -> None:
        """What it read has changed."""
        assert self.call(*args) == 1, "not recompiled"
        assert self.uncacheable is None, self.uncacheable
        assert self.call(*args) == 0, "recompiled though nothing changed"

    def kept(self, *args: Any) -> None:
        """Nothing that it read has changed."""
        assert self.call(*args) == 0, thunder.explain(self.jitted)


@pytest.fixture
def watch() -> type[Watched]:
    """Calls a callable jitted and as it is: `w = watch(fn)`, then `w.changed()` or `w.kept()`."""
    return Watched


@pytest.fixture
def never_cached() -> Callable[..., str]:
    """Asserts that each call is traced; why."""

    def check(fn: Any, *args: Any) -> str:
        jitted = thunder.jit(fn)
        for _ in range(2):
            jitted(*(args or (X,)))
        assert thunder.cache_hits(jitted) == 0
        reason = thunder.compile_stats(jitted).uncacheable
        assert reason is not None
        assert reason in thunder.explain(jitted)
        return reason

    return check


@pytest.fixture
def module_globals(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[..., None]:
    """Sets globals of the test's module until the test ends."""
    return functools.partial(monkeypatch.setattr, request.module)
