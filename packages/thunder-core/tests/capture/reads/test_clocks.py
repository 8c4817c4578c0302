# SPDX-License-Identifier: Apache-2.0
"""Clocks: each call of a compiled program reads them."""

from __future__ import annotations

import time
from time import monotonic_ns as now
from typing import Any

import torch

import thunder

X = torch.ones(3)
TIMES: list[Any] = []


class Stats:
    last = 0.0
    took = 0.0


STATS = Stats()


def stores(x: Any) -> Any:
    STATS.last = time.time()
    begun = time.perf_counter()
    y = x * 2
    STATS.took = time.perf_counter() - begun
    TIMES.append(now())
    return y


def test_times_that_are_stored() -> None:
    """The program is cached, and they are those of the call."""
    TIMES.clear()
    jitted = thunder.jit(stores)
    for _ in range(4):
        before = time.time()
        torch.testing.assert_close(jitted(X), X * 2)
        assert before <= STATS.last <= time.time()
        assert type(STATS.took) is float
        assert 0 <= STATS.took < 1e3
    assert len(set(TIMES)) == len(TIMES) == 4
    assert sorted(TIMES) == TIMES
    assert thunder.cache_hits(jitted) == 3


def test_a_branch_on_a_clock() -> None:
    """Runs eagerly."""
    end = time.monotonic() + 0.2
    jitted = thunder.jit(lambda x: x * 2 if time.monotonic() < end else x)
    torch.testing.assert_close(jitted(X), X * 2)
    time.sleep(0.21)
    torch.testing.assert_close(jitted(X), X)
    assert "clock" in thunder.explain(jitted)


def test_other_callers_read_their_clocks() -> None:
    """After the trace, the functions of `time` are the original ones."""
    before = time.time
    thunder.jit(stores)(X)
    assert time.time is before
    assert type(time.time()) is float
