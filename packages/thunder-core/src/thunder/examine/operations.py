# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine(fn, *args)`: report how thunder compiles a program, operation by operation.

For each operation, the report contains the executor that claims it and the reasons why earlier executors do not. It
also contains the operations without a symbol in thunder, which run as opaque operations of torch. Nothing runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import thunder.executors.built_in  # noqa: F401  (registers the built-in executors)
from thunder.capture.capture import capture
from thunder.core.errors import ThunderError
from thunder.examine.distributed import DistributedReport, simulate_programs
from thunder.examine.graph import draw
from thunder.examine.hardware import hardware_of
from thunder.examine.lines import lines_of
from thunder.examine.page import embedded, page_of
from thunder.examine.pictures import write_graph
from thunder.examine.predictions import memory_of
from thunder.examine.program import CompiledCall, compile_call
from thunder.execution.report import OperationReport, report
from thunder.extend import Compilation, Executor, compiling, resolve_executors
from thunder.frontend.jit import JitFunction, jitted_of
from thunder.passes.dce import dce
from thunder.passes.overlap import is_start
from thunder.passes.postponing import innermost

__all__ = ["Report", "examine"]


class Report:
    """The result of `examine`: `operations`, those that are `opaque`, and `uncacheable` (why it cannot be cached)."""

    def __init__(
        self,
        operations: list[OperationReport],
        uncacheable: str | None,
        compiled: Callable[[], CompiledCall] | None = None,
        given: JitFunction[..., Any] | None = None,
        communication: Callable[[], DistributedReport] | None = None,
    ):
        self.operations = operations
        self.uncacheable = uncacheable
        self._compiled = compiled
        self._given = given  # the jitted function of the user, whose calls the page reports
        self._communication = communication

    @functools.cached_property
    def communication(self) -> DistributedReport | None:
        """The collectives of the compiled program, with predicted times and what hides them; None if it has none."""
        return None if self._communication is None else self._communication()

    @property
    def opaque(self) -> list[OperationReport]:
        """The operations of torch for which thunder has no symbol."""
        return [row for row in self.operations if row.opaque]

    def __str__(self) -> str:
        top = [row for row in self.operations if row.depth == 0]
        lines = [f"{len(top)} operations, {len(self.opaque)} of them opaque", *map(str, self.operations)]
        if self.uncacheable:
            lines.append(f"not cached: {self.uncacheable}")
        if self.communication is not None:
            lines += ["", "communication, predicted", str(self.communication)]
        return "\n".join(lines)

    __repr__ = __str__

    def html(self, path: str | Path | None = None) -> str:
        """Return one HTML page about the compiled program, which needs no network. `path` is a file to write it to.

        The page has the traces with the user's lines, executors, the graph, memory, guards, calls and passes. The
        program is compiled for the page, and does not run.
        """
        page = page_of(self._compiled_call(), self._given)
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page

    def picture(self, path: str | Path) -> None:
        """Draw the graph of operations, forward and backward, to a file that ends in `.png`, `.svg` or `.pdf`.

        It needs matplotlib: `pip install 'thunder-core[pictures]'`.
        """
        programs = self._compiled_call().programs
        write_graph({name: draw(list(lines_of(name, trace))) for name, trace in programs}, path)

    def _compiled_call(self) -> CompiledCall:
        if self._compiled is None:
            raise ThunderError("this report has no program to show: call thunder.examine(fn, *args)")
        return self._compiled()

    def _repr_html_(self) -> str:
        return embedded(self.html())


def examine(
    fn: Callable[..., Any], *args: Any, executors: Sequence[Executor | str] | None = None, **kwargs: Any
) -> Report:
    """Trace `fn` for these arguments and report which executor would run each operation. `fn` may be jitted.

    `.html("report.html")` of the result writes a page about the compiled program, and `.picture("graph.svg")` its
    graph. Notebooks show the page.
    """
    jitted = jitted_of(fn)
    given = jitted if isinstance(jitted, JitFunction) else None
    compiled = functools.partial(compile_call, fn if given is None else given, args, kwargs, executors)

    def communication() -> DistributedReport:
        call = compiled()
        device = next((x.device for x in call.inputs if isinstance(x, torch.Tensor)), torch.device("cpu"))
        return simulate_programs(call.programs, hardware_of(device), {}, memory_of(call.specialization).peak)

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
        operations = report(dce(captured.computation), asked)
    communicates = any(op.has_effect and any(map(is_start, innermost(op))) for op in captured.computation.bound_symbols)
    return Report(operations, captured.uncacheable, compiled, given, communication if communicates else None)
