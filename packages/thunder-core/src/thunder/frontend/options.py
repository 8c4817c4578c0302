# SPDX-License-Identifier: Apache-2.0
"""The options of `thunder.jit` and their validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from thunder.capture.capture import trace_name
from thunder.extend import Executor, named_executors, resolve_executors
from thunder.passes.remat import REMAT, Remat

__all__ = ["CACHE_OPTIONS", "SHARP_EDGES", "CacheOption", "Options", "Remat", "SharpEdges"]

CacheOption = Literal["constant values", "same input", "symbolic values", "no caching"]
SharpEdges = Literal["allow", "warn", "error"]

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
        exact: bool = False,
        own_name: bool = False,
        extra: dict[str, Any] | None = None,
    ):
        self.cache = _one_of("cache", cache, CACHE_OPTIONS)
        self.sharp_edges = _one_of("sharp_edges", sharp_edges, SHARP_EDGES)
        self.remat = _one_of("remat", remat, REMAT)
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


def _one_of(option: str, value: str, known: Sequence[str]) -> str:
    found = str(value).lower()
    if found not in known:
        raise ValueError(f"thunder.jit(…, {option}={value!r}): {option} is one of {', '.join(map(repr, known))}")
    return found
