# SPDX-License-Identifier: Apache-2.0
"""Writing operations into a trace, and replacing operations of a trace by others.

A plugin's pass is a function `(trace, context) -> trace`. Most passes look for operations, one at a time, and write
others for them: `rewrite` (`thunder/passes/rewrite.py`) does the rest.
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
    """Record the operations called within it into a list of their own instead of `trace`, which names their results.

    Operators on proxies mean what torch's mean.
    """
    with tracectx(trace), trace.scope() as operations, set_langctx("torch"):
        yield operations
