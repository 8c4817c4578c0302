# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine(fn, *args)`: what thunder makes of a program, operation by operation.

For each operation: whether thunder has a symbol of its own for it or leaves it to torch as it is (opaque), which
executor takes it, and why those asked before it did not. Nothing is run.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import thunder.executors  # noqa: F401  (registers the built-in executors)
from thunder.execution.report import OperationReport, report
from thunder.extend import Executor, resolve_executors
from thunder.frontend.acquire import acquire
from thunder.frontend.jit import JitFunction
from thunder.transforms.dce import dce

__all__ = ["Report", "examine"]


class Report:
    """What `examine` found: `operations`, `opaque` among them, and `uncacheable` (why it serves one call, or None)."""

    def __init__(self, operations: list[OperationReport], uncacheable: str | None):
        self.operations = operations
        self.uncacheable = uncacheable

    @property
    def opaque(self) -> list[OperationReport]:
        """The operations that thunder does not look into."""
        return [row for row in self.operations if row.opaque]

    def __str__(self) -> str:
        top = [row for row in self.operations if row.depth == 0]
        lines = [f"{len(top)} operations, {len(self.opaque)} of them opaque", *map(str, self.operations)]
        if self.uncacheable:
            lines.append(f"not cached: {self.uncacheable}")
        return "\n".join(lines)

    __repr__ = __str__


def examine(
    fn: Callable[..., Any], *args: Any, executors: Sequence[Executor | str] | None = None, **kwargs: Any
) -> Report:
    """Traces `fn` for these arguments and says who would run each operation. `fn` may be jitted already."""
    jitted = getattr(fn, "_jitted", fn)
    if isinstance(jitted, JitFunction):
        asked = jitted._options.resolved_executors() if executors is None else resolve_executors(executors)
        fn = jitted._fn
    else:
        asked = resolve_executors(executors)
    acquired = acquire(fn, args, kwargs, name="computation", executors=asked)
    return Report(report(dce(acquired.computation), asked), acquired.uncacheable)


class _CallableModule(types.ModuleType):
    """`thunder.examine` is a module, and a function too."""

    def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
        return examine(fn, *args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
