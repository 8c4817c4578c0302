# SPDX-License-Identifier: Apache-2.0
"""What thunder knows of a program without running it: the memory of each line, the fusions, and measured choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core.errors import ThunderError
from thunder.core.symbol import proxies_in
from thunder.core.trace import Trace
from thunder.examine.program import compile_call
from thunder.execution.claim import is_structural, transform_for_execution
from thunder.execution.fusions import Fusion, fusions_of
from thunder.execution.memory_estimate import MemoryReport, Run, estimate_memory
from thunder.extend import Executor, resolve_executors
from thunder.extend.measuring import MeasuredChoice
from thunder.frontend.differentiable import DifferentiableProgram
from thunder.frontend.jit import JitFunction, jitted_of, statistics
from thunder.frontend.specialization import Specialization
from thunder.passes.dce import dce
from thunder.passes.deletion import delete_last_used

__all__ = ["as_it_runs", "choices", "fusions", "memory", "memory_of"]


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
        return estimate_memory(as_it_runs(fn, resolve_executors(executors)))
    jitted = jitted_of(fn)
    if isinstance(jitted, JitFunction) and not args and not kwargs and jitted._stats.last is not None:
        found = jitted._stats.last
    else:
        found = compile_call(fn, args, kwargs, executors).specialization
    return memory_of(found, keep_outputs)


def memory_of(found: Specialization, keep_outputs: bool = True) -> MemoryReport:
    """Predict the memory of a compiled program, followed by that of its backward program, if it has one."""
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


def as_it_runs(trace: Trace, executors: Sequence[Executor]) -> Trace:
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
    return MemoryReport(inputs, sections, run.at_peak)
