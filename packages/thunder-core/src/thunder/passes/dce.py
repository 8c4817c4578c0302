# SPDX-License-Identifier: Apache-2.0
"""Dead code elimination: an operation stays when its result is used, or when running it is the point.

Contract: the result computes the same outputs, draws the same random numbers in order and writes the same memory.
"""

from __future__ import annotations

from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace, construct

__all__ = ["dce", "has_effect"]


def has_effect(bsym: BoundSymbol) -> bool:
    """Whether it, or anything it decomposes into, has to run though its result is unused."""
    return bsym.has_effect


def dce(trace: Trace) -> Trace:
    """The trace without operations whose results nobody uses."""
    with construct(trace, "Dead Code Elimination") as out:
        needed: set[str] = set()
        kept: list[BoundSymbol] = []
        for bsym in reversed(trace.bound_symbols):
            if not needed.isdisjoint(bsym.out_names) or bsym.has_effect:
                needed.update(bsym.arg_names)
                kept.append(bsym)
        out.bound_symbols[:] = reversed(kept)
    return out
