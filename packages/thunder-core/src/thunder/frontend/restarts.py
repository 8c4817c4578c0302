# SPDX-License-Identifier: Apache-2.0
"""Calls that leave their path: they start again on another path, compiled or new, or run eagerly (`paths.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.frontend.cache import Cache
from thunder.frontend.eager_calls import EagerCalls
from thunder.frontend.paths import is_worth_it, reason_to_give_up
from thunder.frontend.specialization import Specialization
from thunder.frontend.stats import CompileStats
from thunder.runtime.decisions import OtherPath

__all__ = ["MAX_RESTARTS", "Restarts"]

# A call starts again at most this many times before it runs eagerly.
MAX_RESTARTS = 2


class Restarts:
    """Runs calls of a jitted function in which a decision has another answer than on the path that ran first."""

    def __init__(self, cache: Cache, stats: CompileStats, eager_calls: EagerCalls):
        self._cache = cache
        self._stats = stats
        self._eager_calls = eager_calls
        self._lost_calls = 0  # calls that ran eagerly because no path accepted them

    def run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        specialization: Specialization,
        left: OtherPath,
        *,
        find: Callable[..., tuple[Specialization, Any] | None],
        trace: Callable[..., Any],
    ) -> Any:
        """Run a call that has left `specialization`. `find` looks up a path; `trace` compiles and runs a new one."""
        specialization.hits -= 1
        eager_calls = self._eager_calls
        for _ in range(MAX_RESTARTS):
            assert specialization.path is not None
            observed = specialization.path.observed(left)
            kept = self._cache.kept
            found = find(args, kwargs, [], observed)
            if found is None:
                paths = self._cache.paths
                reason = reason_to_give_up(paths, self._lost_calls)
                if reason is not None and not eager_calls.must_compile:
                    self._cache.clear()
                    eager_calls.give_up_compiling(reason, None)
                elif not eager_calls.must_compile:
                    if self._cache.is_full:
                        eager_calls.stop_at_full_cache(specialization.path.decisions[left.index].source)
                        break
                    if not is_worth_it(paths):
                        break
                return trace(args, kwargs, [], kept, observed)
            specialization, inputs = found
            try:
                result = eager_calls.call(specialization, inputs, args, kwargs, decided=len(observed))
            except OtherPath as reason_to_leave:
                left = reason_to_leave
            else:
                specialization.hits += 1
                self._stats.last = specialization
                return result
        self._lost_calls += 1
        self._stats.slow_calls += 1
        self._stats.fell_back("its branches on values of tensors took a path that is not compiled")
        return eager_calls.run(args, kwargs)
