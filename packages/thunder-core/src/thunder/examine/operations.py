# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine(fn, *args)`: report how thunder compiles a program, operation by operation.

For each operation, the report contains the executor that claims it and the reasons why earlier executors do not. It
also contains the operations without a symbol in thunder, which run as opaque operations of torch. Nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import thunder.executors.built_in  # noqa: F401  (registers the built-in executors)
from thunder.capture.capture import capture
from thunder.execution.report import OperationReport, report
from thunder.extend import Compilation, Executor, compiling, resolve_executors
from thunder.frontend.jit import JitFunction, jitted_of
from thunder.passes.dce import dce

__all__ = ["Report", "examine"]


class Report:
    """The result of `examine`: `operations`, those that are `opaque`, and `uncacheable` (why it cannot be cached)."""

    def __init__(self, operations: list[OperationReport], uncacheable: str | None):
        self.operations = operations
        self.uncacheable = uncacheable

    @property
    def opaque(self) -> list[OperationReport]:
        """The operations of torch for which thunder has no symbol."""
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
    """Trace `fn` for these arguments and report which executor would run each operation. `fn` may be jitted."""
    jitted = jitted_of(fn)
    around = []
    compilation = Compilation()
    if isinstance(jitted, JitFunction):
        compilation = jitted.compilation
        asked = jitted._options.resolved_executors() if executors is None else resolve_executors(executors)
        fn = jitted._fn
        around = [transform.tracing for transform in jitted._transforms]
    else:
        asked = resolve_executors(executors)
    captured = capture(fn, args, kwargs, name="computation", executors=asked, around=around)
    with compiling(compilation):
        return Report(report(dce(captured.computation), asked), captured.uncacheable)
