# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine(fn, *args)`: what thunder makes of a program, operation by operation.

For each operation: whether thunder has a symbol of its own for it or leaves it to torch as it is (opaque), which
executor takes it, and why those asked before it did not. `thunder.examine.memory(fn, *args)`: how much memory it holds
at each line. Nothing is run. `thunder.examine.fusions(fn)`: what the last call's program has for kernels of its own.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import thunder.executors.built_in  # noqa: F401  (registers the built-in executors)
from thunder.capture.capture import capture
from thunder.core.symbol import proxies_in
from thunder.core.trace import Trace
from thunder.execution.claim import is_structural, transform_for_execution
from thunder.execution.fusions import Fusion, fusions_of
from thunder.execution.memory import delete_last_used
from thunder.execution.memory_estimate import MemoryReport, Run, estimate_memory
from thunder.execution.report import OperationReport, report
from thunder.extend import Compilation, Executor, compiling, resolve_executors
from thunder.frontend.differentiable import DifferentiableProgram
from thunder.frontend.jit import JitFunction, statistics
from thunder.frontend.options import Options
from thunder.frontend.pipeline import Specialization, compile_trace
from thunder.passes.dce import dce

__all__ = ["Fusion", "MemoryReport", "Report", "examine", "fusions", "memory"]


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
    """Trace `fn` for these arguments and says who would run each operation. `fn` may be jitted already."""
    jitted = getattr(fn, "_jitted", fn)
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


def memory(
    fn: Callable[..., Any] | Trace,
    *args: Any,
    executors: Sequence[Executor | str] | None = None,
    keep_outputs: bool = True,
    **kwargs: Any,
) -> MemoryReport:
    """Predicts the memory that is live at each line of a program, and the most there is at any time.

    `fn` is a function or module, jitted or not, with the arguments of a call; a jitted one without arguments stands for
    its last call; a trace stands for itself. Where gradients flow, the forward program is followed by the backward
    program: the one that ran last, else the one for the gradients of all results. Results are held all the while,
    or with `keep_outputs=False` dropped where backward begins, but for what backward needs.
    """
    if isinstance(fn, Trace):
        return estimate_memory(_as_it_runs(fn, resolve_executors(executors)))
    found = _specialization(fn, args, kwargs, executors)
    if found.differentiable is None:
        return estimate_memory(found.traces[-1])
    return _step(found.differentiable, keep_outputs)


def fusions(fn: Any) -> list[Fusion]:
    """Return the fusions of the program that a jitted function or module ran last, forward before backward; or of a
    trace.

    Each has a `name`, the `source` of its kernels as a program that can be read and run, the `template` by which they
    work, the `bytes` that they move, and the `operations` of the trace that it stands for.
    """
    if isinstance(fn, Trace):
        return fusions_of(fn)
    stats = statistics(fn)
    programs = (("forward", stats.last_traces), ("backward", stats.last_backward_traces))
    return [found for program, traces in programs if traces for found in fusions_of(traces[-1], program)]


def _specialization(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], executors: Sequence[Executor | str] | None
) -> Specialization:
    """Return how `fn` is compiled for these arguments."""
    jitted = getattr(fn, "_jitted", fn)
    if not isinstance(jitted, JitFunction):
        jitted = JitFunction(fn, Options(executors=executors))
    elif not args and not kwargs and jitted._stats.last is not None:
        return jitted._stats.last
    asked = jitted._options.resolved_executors() if executors is None else resolve_executors(executors)
    captured = capture(
        jitted._fn,
        args,
        kwargs,
        name="computation",
        executors=asked,
        independent=not jitted._autograd,
        around=[transform.tracing for transform in jitted._transforms],
    )
    return compile_trace(
        captured,
        asked,
        jitted._transforms,
        autograd=jitted._autograd,
        compilation=jitted.compilation,
        remat=jitted._options.remat,
    )


def _as_it_runs(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """Return a trace claimed by executors, unless it is already, with its `del`s."""
    if all(is_structural(op) or op.sym.is_fusion or op.sym.fn is not None for op in trace.bound_symbols):
        return trace
    return delete_last_used(transform_for_execution(dce(trace), executors)[-1])


def _step(program: DifferentiableProgram, keep_outputs: bool) -> MemoryReport:
    """Forward, then backward."""
    forward, backward = program.traces[-1], program.unrecorded_traces[-1]
    run = Run()
    inputs = run.take(forward.args)
    sections = [("forward", run.run(forward))]
    output, saved = forward.output
    # The caller holds on to the inputs, and to the results; the rest of what is saved goes as backward is done with it.
    run.keep([p.name for p in proxies_in(saved)], held=[p.name for p in proxies_in(output)] if keep_outputs else ())
    run.take(backward.args)
    sections.append(("backward", run.run(backward)))
    return MemoryReport(inputs, sections)


class CallableModule(types.ModuleType):
    """Make `thunder.examine` a function as well as a module."""

    if TYPE_CHECKING:  # what the module has beside
        examine, fusions, memory = staticmethod(examine), staticmethod(fusions), staticmethod(memory)

    def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
        return examine(fn, *args, **kwargs)


sys.modules[__name__].__class__ = CallableModule
