# SPDX-License-Identifier: Apache-2.0
"""The options of `thunder.jit` and their validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from thunder.capture.capture import trace_name
from thunder.extend import Executor, named_executors, resolve_executors
from thunder.passes.remat import REMAT, Remat

__all__ = ["CACHE_OPTIONS", "MAX_SPECIALIZATIONS", "SHARP_EDGES", "CacheOption", "Options", "Remat", "SharpEdges"]

CacheOption = Literal["constant values", "same input", "symbolic values", "no caching"]
SharpEdges = Literal["allow", "warn", "error"]

# With this many specializations, a call that no specialization accepts runs eagerly.
MAX_SPECIALIZATIONS = 16

CACHE_OPTIONS: tuple[CacheOption, ...] = get_args(CacheOption)
SHARP_EDGES: tuple[SharpEdges, ...] = get_args(SharpEdges)


class Options:
    """The options of one jitted callable."""

    def __init__(
        self,
        *,
        executors: Sequence[Executor | str] | None = None,
        cache: str = "constant values",
        sharp_edges: str = "allow",
        remat: str = "auto",
        max_programs: int = MAX_SPECIALIZATIONS,
        max_compile_time: float | None = None,
        exact: bool = False,
        own_name: bool = False,
        extra: dict[str, Any] | None = None,
    ):
        self.cache = _one_of("cache", cache, CACHE_OPTIONS)
        self.sharp_edges = _one_of("sharp_edges", sharp_edges, SHARP_EDGES)
        self.remat = _one_of("remat", remat, REMAT)
        self.max_programs = _limit("max_programs", max_programs, type(max_programs) is int and max_programs >= 1)
        is_time = max_compile_time is None or (isinstance(max_compile_time, (int, float)) and max_compile_time > 0)
        self.max_compile_time = _limit("max_compile_time", max_compile_time, is_time)
        self.executors = None if executors is None else named_executors(executors)
        self.exact = exact
        self.own_name = own_name
        self.extra = dict(extra or {})

    def resolved_executors(self) -> Sequence[Executor]:
        """Return the executors, in the order in which they claim operations."""
        if self.exact:
            return self.executors or ()  # type: ignore[return-value]
        return resolve_executors(self.executors)

    def name_for(self, fn: Any) -> str:
        """Return the name of the computation in its trace."""
        return trace_name(fn) if self.own_name else "computation"


def _limit(option: str, value: Any, good: bool) -> Any:
    if not good:
        wanted = {"max_programs": "an int of at least 1", "max_compile_time": "None or a positive number of seconds"}
        raise ValueError(f"thunder.jit(…, {option}={value!r}): {option} is {wanted[option]}")
    return value


def _one_of(option: str, value: str, known: Sequence[str]) -> str:
    found = str(value).lower()
    if found not in known:
        raise ValueError(f"thunder.jit(…, {option}={value!r}): {option} is one of {', '.join(map(repr, known))}")
    return found
