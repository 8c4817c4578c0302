# SPDX-License-Identifier: Apache-2.0
"""Recording operations into a trace, and replacing operations of a trace by others.

A plugin's pass is a function `(trace, context) -> trace`. Most passes match one operation at a time and record
replacements. `rewrite` (`thunder/passes/rewrite.py`) does everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from thunder.core.langctx import set_langctx
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.passes.rewrite import rewrite

__all__ = ["recording", "rewrite"]


@contextmanager
def recording(trace: Trace) -> Iterator[list[BoundSymbol]]:
    """Record the operations that are called in the context.

    They go into a list, not into `trace`, but `trace` names their results.

    Python's operators on proxies have the same meaning as on torch's tensors.
    """
    with tracectx(trace), trace.scope() as operations, set_langctx("torch"):
        yield operations
