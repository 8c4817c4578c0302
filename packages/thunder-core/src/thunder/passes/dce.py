# SPDX-License-Identifier: Apache-2.0
"""Dead code elimination: keep an operation only if its result is used or it has an effect.

Contract: the program computes the same outputs, draws the same random numbers in the same order, and writes the same
memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace, construct

__all__ = ["dce", "has_effect", "live_operations"]


def has_effect(bsym: BoundSymbol) -> bool:
    """Check whether an operation, or one in its decomposition, must run even if its result is unused."""
    return bsym.has_effect


def live_operations(operations: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """Return the operations that have an effect or whose results are used."""
    needed: set[str] = set()
    kept: list[BoundSymbol] = []
    for bsym in reversed(operations):
        if not needed.isdisjoint(bsym.out_names) or bsym.has_effect:
            needed.update(bsym.arg_names)
            kept.append(bsym)
    return kept[::-1]


def dce(trace: Trace) -> Trace:
    """Return the trace without operations whose results are unused."""
    with construct(trace, "Dead Code Elimination") as out:
        out.bound_symbols[:] = live_operations(trace.bound_symbols)
    return out
