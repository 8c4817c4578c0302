# SPDX-License-Identifier: Apache-2.0
"""The event of a compilation, with the numbers that explain, logs and reports need (`core/events.py`)."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

from thunder.core.events import Event, EventLog
from thunder.core.symbol import OpTags
from thunder.core.trace import Trace

__all__ = ["record_program"]


def record_program(
    log: EventLog,
    reason: str,
    seconds: float,
    traces: Sequence[Trace],
    prologue_traces: Sequence[Trace] = (),
    epilogue_traces: Sequence[Trace] = (),
    part: str = "program",
) -> Event:
    """Add the event of a compilation."""
    operations = Counter(
        op.sym.executor.name
        for op in traces[-1].bound_symbols
        if op.sym.executor is not None and op.sym.executor.name != "python"
    )
    every = {id(t): t for t in (*traces, *prologue_traces, *epilogue_traces)}.values()
    details = {
        "part": part,
        "operations": sum(operations.values()),
        "executors": dict(operations.most_common()),
        "guards": sum(OpTags.CHECK_OP in op.sym.tags for t in prologue_traces[-1:] for op in t.bound_symbols),
        "passes": [(t.provenance.name, (t.provenance.nanoseconds or 0) / 1e9) for t in every if t.provenance],
    }
    final = [weakref.ref(found[-1]) for found in (traces, prologue_traces, epilogue_traces) if found]

    def programs() -> Sequence[Any]:
        return [trace for ref in final if (trace := ref()) is not None]

    return log.add("compile", reason, seconds=seconds, details=details, traces=programs)
