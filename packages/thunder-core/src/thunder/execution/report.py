# SPDX-License-Identifier: Apache-2.0
"""Report which executor runs each operation of a program, and why other executors do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder.core.state import SourceLine
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace
from thunder.execution.claim import choose, is_structural
from thunder.extend import Executor

__all__ = ["OperationReport", "report"]


class OperationReport:
    """One operation: name, whether thunder has a symbol for it, executor, and reasons of the other executors."""

    __slots__ = ("depth", "executor", "name", "opaque", "rejections", "source")

    def __init__(
        self,
        name: str,
        opaque: bool,
        executor: str | None,
        rejections: dict[str, str],
        source: SourceLine | None,
        depth: int,
    ):
        self.name = name
        self.opaque = opaque
        self.executor = executor  # None: no executor claims the whole operation, and its parts follow
        self.rejections = rejections
        self.source = source
        self.depth = depth

    def __str__(self) -> str:
        kind = "opaque" if self.opaque else "own symbol"
        who = self.executor or "by its parts"
        line = f"{'  ' * self.depth}{self.name:<{max(1, 40 - 2 * self.depth)}} {kind:<11} {who}"
        why = "; ".join(f"{name}: {reason}" for name, reason in self.rejections.items())
        return f"{line:<70}{'  not ' + why if why else ''}"

    __repr__ = __str__


def report(trace: Trace, executors: Sequence[Executor]) -> list[OperationReport]:
    """Return a row for each operation of an unclaimed trace.

    If no executor claims an operation, rows for its parts follow.
    """
    return [row for bsym in trace.bound_symbols for row in _rows(bsym, executors, 0)]


def _rows(bsym: BoundSymbol, executors: Sequence[Executor], depth: int) -> Iterator[OperationReport]:
    if is_structural(bsym) or (not bsym.out_names and not bsym.sym.must_stay and not bsym.subsymbols):
        return
    choice = choose(bsym, executors)
    whole = choice.fused or choice.implementation is not None
    chosen = choice.executor.name if choice.executor is not None and whole else None
    name = f"{bsym.sym.module or ''}.{bsym.sym.name}".lstrip(".").replace("thunder.torch.", "ltorch.")
    name = name.replace("thunder.core.prims.", "prims.")
    yield OperationReport(name, OpTags.OPAQUE_OP in bsym.sym.tags, chosen, choice.rejections, bsym.source, depth)
    if chosen is None:
        for sub in bsym.subsymbols:
            yield from _rows(sub, executors, depth + 1)
