# SPDX-License-Identifier: Apache-2.0
"""The short form of a trace, for notebooks and debuggers: inputs, operations by name, and the first and last lines."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from typing import Any

from thunder.core.printer import trace_text
from thunder.core.symbol import BoundSymbol

__all__ = ["html_of", "summary_of"]

_MAX_LINES = 24  # of a program that is shown as a whole
_SHOWN = 8  # the number of lines that are shown at each end of a longer program
_MAX_NAMES = 12


def summary_of(trace: Any) -> str:
    """Return a summary of a trace of at most about thirty lines."""
    operations = [op for op in trace.bound_symbols if op.out_names and not _is_unpacking(op)]
    lines = [line for line in trace_text(trace, depth=0, decorators=False).splitlines() if line.strip()]
    start = next(i for i, line in enumerate(lines) if line.startswith("def "))
    body = lines[start + 1 :]
    if len(body) > _MAX_LINES:
        left_out = len(body) - 2 * _SHOWN
        body = [*body[:_SHOWN], f"  # … {left_out} lines: print the trace to see them", *body[-_SHOWN:]]
    by = f" ({trace.provenance.name})" if trace.provenance else ""
    head = [f"{trace.name}{by}: {_count(len(operations), 'operation')}, {_count(len(trace.args), 'input')}"]
    return "\n".join([*head, *_tables(operations), lines[start], *body])


def _is_unpacking(op: BoundSymbol) -> bool:
    return op.sym.name.startswith("unpack")


def _tables(operations: Sequence[BoundSymbol]) -> list[str]:
    names = Counter(op.sym.name for op in operations)
    executors = Counter(op.sym.executor.name for op in operations if op.sym.executor is not None)
    found = []
    if executors:
        found.append("executors: " + ", ".join(f"{name} {count}" for name, count in executors.most_common()))
    if names:
        more = len(names) - _MAX_NAMES
        text = ", ".join(f"{name} {count}" for name, count in names.most_common(_MAX_NAMES))
        found.append(f"operations: {text}" + (f" and {more} more" if more > 0 else ""))
    return found


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}{'' if n == 1 else 's'}"


def html_of(trace: Any) -> str:
    """Return HTML for notebooks: the summary, and the whole program to unfold."""
    text = trace.python(depth=0)
    return (
        f"<pre>{html.escape(summary_of(trace))}</pre>"
        f"<details><summary>the whole program</summary><pre>{html.escape(text)}</pre></details>"
    )
