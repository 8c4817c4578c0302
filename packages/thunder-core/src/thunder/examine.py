# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine(fn, *args)`: report how thunder compiles a program, operation by operation.

For each operation, the report contains the executor that claims it and the reasons why earlier executors do not. It
also contains the operations without a symbol in thunder, which run as opaque operations of torch.
`thunder.examine.memory(fn, *args)` reports the memory that is live at each line. Neither of these runs the program.
`thunder.examine.fusions(fn)` returns the fusions of the last call's program. `thunder.examine.choices(fn)` returns the
choices that measurements decided.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import thunder.executors.built_in  # noqa: F401  (registers the built-in executors)
from thunder.capture.capture import capture
from thunder.core.errors import ThunderError
from thunder.core.symbol import proxies_in
from thunder.core.trace import Trace
from thunder.execution.claim import is_structural, transform_for_execution
from thunder.execution.fusions import Fusion, fusions_of
from thunder.execution.memory_estimate import MemoryReport, Run, estimate_memory
from thunder.execution.report import OperationReport, report
from thunder.extend import Compilation, Executor, compiling, resolve_executors
from thunder.extend.measuring import MeasuredChoice
from thunder.frontend.differentiable import DifferentiableProgram
from thunder.frontend.jit import JitFunction, jitted_of, statistics
from thunder.frontend.options import Options
from thunder.frontend.pipeline import compile_trace
from thunder.frontend.specialization import Specialization
from thunder.passes.dce import dce
from thunder.passes.deletion import delete_last_used

__all__ = ["Fusion", "MeasuredChoice", "MemoryReport", "Report", "choices", "examine", "fusions", "memory"]


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


def memory(
    fn: Callable[..., Any] | Trace,
    *args: Any,
    executors: Sequence[Executor | str] | None = None,
    keep_outputs: bool = True,
    **kwargs: Any,
) -> MemoryReport:
    """Predict the memory that is live at each line of a program, and the peak.

    `fn` is a function or module (jitted or not) with the arguments of a call, or a trace. A jitted `fn` without
    arguments means its last call. If gradients flow, the forward program is followed by a backward program: the program
    that ran last, otherwise the program for the gradients of all results. Results stay alive to the end. With
    `keep_outputs=False`, they stay alive until backward starts, or until backward no longer needs them.
    """
    if isinstance(fn, Trace):
        return estimate_memory(_as_it_runs(fn, resolve_executors(executors)))
    found = _specialization(fn, args, kwargs, executors)
    if isinstance(found.differentiable, DifferentiableProgram):
        return _step(found.differentiable, keep_outputs)
    if found.differentiable is not None or not found.traces:
        raise ThunderError("the program of the last call was loaded and has no trace: pass the arguments of a call")
    return estimate_memory(found.traces[-1])


def fusions(fn: Any) -> list[Fusion]:
    """Return the fusions of a trace, or of the program that a jitted callable ran last. Forward comes before backward.

    Each fusion has a `name`, the `source` of its kernels as a readable and runnable program, the `template` that
    generated the kernels, the `bytes` that the kernels move, and the `operations` of the trace that the fusion
    replaces.
    """
    if isinstance(fn, Trace):
        return fusions_of(fn)
    stats = statistics(fn)
    programs = (("forward", stats.last_traces), ("backward", stats.last_backward_traces))
    return [found for program, traces in programs if traces for found in fusions_of(traces[-1], program)]


def choices(fn: Any) -> list[MeasuredChoice]:
    """Return the choices of a jitted function that measurements decide, with the times of the candidates.

    The list is empty without the option `measured` of `thunder.jit`.
    """
    found = [MeasuredChoice.of_details(event.details) for event in statistics(fn).events.of("choice")]
    # The last event of a choice counts: it may have been measured after the program was compiled.
    return list({str((c.operation, c.shape_class, c.device, c.default)): c for c in found}.values())


def _specialization(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], executors: Sequence[Executor | str] | None
) -> Specialization:
    """Return the specialization of `fn` for these arguments, or the specialization of its last call."""
    jitted = jitted_of(fn)
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
    """Return a trace as it is executed: with `del`s, and claimed by executors unless it is already claimed."""
    if all(is_structural(op) or op.sym.is_fusion or op.sym.fn is not None for op in trace.bound_symbols):
        return trace
    return delete_last_used(transform_for_execution(dce(trace), executors)[-1])


def _step(program: DifferentiableProgram, keep_outputs: bool) -> MemoryReport:
    """Estimate the memory of forward followed by backward."""
    forward, backward = program.traces[-1], program.unrecorded_traces[-1]
    run = Run()
    inputs = run.take(forward.args)
    sections = [("forward", run.run(forward))]
    output, saved = forward.output
    # The caller holds the inputs and the results. Other saved values are freed after their last use in backward.
    run.keep([p.name for p in proxies_in(saved)], held=[p.name for p in proxies_in(output)] if keep_outputs else ())
    run.take(backward.args)
    sections.append(("backward", run.run(backward)))
    return MemoryReport(inputs, sections)


class CallableModule(types.ModuleType):
    """The class of this module, which makes `thunder.examine` callable."""

    if TYPE_CHECKING:  # the attributes of the module
        examine, fusions, memory = staticmethod(examine), staticmethod(fusions), staticmethod(memory)

    def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
        return examine(fn, *args, **kwargs)


sys.modules[__name__].__class__ = CallableModule
