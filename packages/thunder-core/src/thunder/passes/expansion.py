# SPDX-License-Identifier: Apache-2.0
"""Expansion: replace operations by parts that a fusion executor fuses, before values are chosen for backward.

An operation like a normalization is a whole for the choice of saved values (`passes/remat.py`): its result is saved if
backward reads it. Its executor may compute it in parts later, of which the last is elementwise and could be recomputed
inside of a kernel. `FusionExecutor.expansion` gives such operations as parts in time.

Contract: results keep their names and values, up to the rounding of the executor's parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder.core.executor import ExecutorLike
from thunder.core.trace import Trace
from thunder.passes.rewrite import rewrite

__all__ = ["expand"]


def expand(trace: Trace, executors: Sequence[ExecutorLike]) -> Trace:
    """Return the trace with the expansions of all executors, or `trace` itself if there are none."""
    for executor in executors:
        expansion = getattr(executor, "expansion", None)
        replace = None if expansion is None else expansion(trace)
        if replace is not None:
            trace = rewrite(trace, f"Expansion by {executor.name}", replace)
    return trace
