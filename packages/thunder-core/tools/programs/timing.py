# SPDX-License-Identifier: Apache-2.0
"""Times calls of a program and of its compiled forms: interleaved, in CPU time, the best of several rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

__all__ = ["best_times", "once"]

_SAMPLE = 2e-3  # seconds that a sample should take at least
_ROUNDS = 10
_BUDGET = 0.3  # seconds for a function


def once(call: Callable[[], object]) -> float:
    """Return the CPU time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def best_times(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the shortest CPU time of each function. All have been called before."""
    repeats = {}
    for name, call in calls.items():
        seconds = min(once(call), once(call))
        repeats[name] = max(1, int(_SAMPLE / max(seconds, 1e-7)))
    best = dict.fromkeys(calls, float("inf"))
    spent = dict.fromkeys(calls, 0.0)
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            if spent[name] > _BUDGET:
                continue
            start = time.process_time()
            for _ in range(repeats[name]):
                call()
            seconds = time.process_time() - start
            spent[name] += seconds
            best[name] = min(best[name], seconds / repeats[name])
    return best
