# SPDX-License-Identifier: Apache-2.0
"""The compilation pipeline: the passes from a captured trace to a specialization that runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from thunder.capture.capture import Captured
from thunder.capture.guards.evaluation import draws
from thunder.capture.trace_into import trace_into
from thunder.core import prims
from thunder.core.errors import ThunderError
from thunder.core.events import discarding
from thunder.core.profiling import profiler_started, profiler_stopped
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace, construct
from thunder.core.verify import verify_if_asked
from thunder.execution.claim import transform_for_execution
from thunder.execution.in_place_updates import in_place_updates
from thunder.execution.memory_estimate import predicted_peaks
from thunder.executors.torchex.join_convolutions import join_convolutions
from thunder.executors.torchex.join_counters import join_counters
from thunder.executors.torchex.join_foreach import join_foreach
from thunder.executors.torchex.merge_views import merge_views
from thunder.extend import Compilation, Executor, compiling
from thunder.frontend.check_ranks import is_distributed, numbered_for_checks
from thunder.frontend.differentiable import DifferentiableProgram
from thunder.frontend.measuring_run import MeasuringRun
from thunder.frontend.options import Options
from thunder.frontend.paths import Path
from thunder.frontend.specialization import Specialization
from thunder.passes.checkpoint import random_sources
from thunder.passes.cse import cse
from thunder.passes.dce import dce
from thunder.passes.deletion import delete_last_used, hand_over_early
from thunder.passes.detaching import without_detaching
from thunder.passes.kept_parameters import keep_parameters
from thunder.passes.overlap import overlapped
from thunder.passes.partition import partitioned
from thunder.passes.postponing import may_fail
from thunder.passes.recompute import recompute_in_backward
from thunder.passes.split import Split
from thunder.plugins import transformed
from thunder.runtime.autograd.requires_grad import switching_requires_grad
from thunder.runtime.lock import collection_paused
from thunder.runtime.torch_private import any_autocast, on_profiling
from thunder.transforms.base import PassContext, Transform
from thunder.transforms.captured_region import CapturedRegion
from thunder.transforms.cuda_graphs import CUDAGraphTransform

__all__ = ["compile_trace", "graph_transforms", "needs_decorators"]

on_profiling(profiler_started, profiler_stopped)


def clean(trace: Trace) -> list[Trace]:
    """Run the passes that every program needs before transforms and claiming, and return their traces."""
    traces = [verify_if_asked(dce(trace))]
    traces.append(verify_if_asked(cse(traces[-1])))
    traces.append(verify_if_asked(dce(traces[-1])))
    return traces


class Passes:
    """The configuration of a compilation: executors, transforms and the user's options for plugins."""

    def __init__(
        self,
        executors: Sequence[Executor],
        compilation: Compilation,
        transforms: Sequence[Transform],
        remat: str = "auto",
        merge_collectives: Callable[..., Trace] | None = None,
        overlap_memory: int | None = None,
    ):
        self.executors = executors
        self.remat = remat
        self.merge_collectives = merge_collectives
        self.overlap_memory = overlap_memory
        self.compilation = compilation
        self.transforms = transforms

    def run(self, traces: list[Trace], phase: str) -> None:
        """Run the passes of `phase`, first those of plugins and then those of the user, and append their traces."""
        options = self.compilation.options
        made = transformed(traces[-1], phase, options=options, executors=self.executors, trace_into=trace_into)
        traces.extend(verify_if_asked(trace) for trace in made)
        context = PassContext(phase, options, tuple(self.executors), trace_into)
        for transform in self.transforms:
            if not transform.has(phase):
                continue
            if phase == "before_grad":
                traces += clean(traces[-1])
            result = transform.apply(traces[-1], context)
            if result is not traces[-1]:
                traces.append(verify_if_asked(result))

    def around(self, trace: Trace | None, phase: str) -> list[Trace]:
        """Run the passes of `phase` on a prologue or epilogue, and return all traces. `trace` may be None."""
        traces = [] if trace is None else [trace]
        if traces:
            self.run(traces, phase)
        return traces

    def _peaks_once_claimed(self, trace: Trace) -> list[int]:
        """Predict the peak of live bytes at each operation of a program as executors run it."""
        with discarding.active():
            return predicted_peaks(transform_for_execution(trace, self.executors)[-1])

    @collection_paused()
    def to_execution(self, trace: Trace) -> list[Trace]:
        """Claim and optimize a program for execution, and return all traces. The last one runs."""
        traces = clean(trace)
        traces += [verify_if_asked(found) for found in without_detaching(traces[-1])]
        simplified = partitioned(traces[-1])
        if simplified is not traces[-1]:
            traces.append(verify_if_asked(simplified))
        again = recompute_in_backward(traces[-1], self.executors, self.remat)
        if again is not traces[-1]:
            traces.append(verify_if_asked(again))
        with compiling(self.compilation):  # entered here because backward programs are compiled lazily
            self.run(traces, "before_execution")
            if self.merge_collectives is not None:
                merged = self.merge_collectives(traces[-1], self._peaks_once_claimed, self.overlap_memory)
                if merged is not traces[-1]:
                    traces.append(verify_if_asked(merged))
            traces.extend(verify_if_asked(claimed) for claimed in transform_for_execution(traces[-1], self.executors))
            self.run(traces, "after_execution")
        traces.append(verify_if_asked(merge_views(traces[-1])))
        traces.append(verify_if_asked(dce(traces[-1])))
        early = overlapped(traces[-1], predicted_peaks, self.overlap_memory)
        if early is not traces[-1]:
            traces.append(verify_if_asked(early))
        updated = in_place_updates(traces[-1])
        if updated is not traces[-1]:
            traces.append(verify_if_asked(updated))
        numbered = numbered_for_checks(traces[-1])
        if numbered is not traces[-1]:
            traces.append(verify_if_asked(numbered))
        for join in (join_foreach, join_counters, join_convolutions):
            joined = join(traces[-1])
            if joined is not traces[-1]:
                traces.append(verify_if_asked(joined))
        with compiling(self.compilation):
            self.run(traces, "final")
        traces.append(verify_if_asked(delete_last_used(traces[-1])))
        if "stages" in trace.info:
            traces.append(verify_if_asked(hand_over_early(traces[-1])))
        return traces


@collection_paused()
def compile_trace(
    captured: Captured,
    executors: Sequence[Executor],
    transforms: Sequence[Transform],
    *,
    autograd: bool = True,
    compilation: Compilation | None = None,
    remat: str = "auto",
    kept_parameters: int | str = 0,
    merge_collectives: Callable[..., Trace] | None = None,
    overlap_memory: int | None = None,
) -> Specialization:
    """Compile a captured trace.

    `remat` selects what backward recomputes (`passes/remat.py`), and `kept_parameters` are the bytes of gathered
    parameters that it keeps (`passes/kept_parameters.py`). `merge_collectives` is the pass that does so
    (`passes/bucketing.py`), and `overlap_memory` the bytes that merged collectives, and then collectives in flight
    (`passes/overlap.py`), may add to the peak.
    """
    keep_parameters(captured.computation, kept_parameters)
    passes = Passes(executors, compilation or Compilation(), transforms, remat, merge_collectives, overlap_memory)
    gradients = {} if captured.epilogue is None else gradients_of(captured.epilogue)
    if gradients:
        captured.computation.info["gradients"] = frozenset(gradients)
    traces = [verify_if_asked(captured.computation)]
    # A program may enable gradients although the caller disabled them.
    off = not torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    switched_on = off and captured.computation.info.get("requires_grad", False)
    flowing = autograd and (torch.is_grad_enabled() or switched_on)
    if not flowing and not any(t.is_needed for t in transforms):  # a transform may differentiate
        traces += [verify_if_asked(trace) for trace in without_detaching(traces[-1])]
    passes.run(traces, "before_grad")
    # A training step that calls `backward()` itself has no result to differentiate.
    wrt = _differentiated(traces[-1]) if flowing and captured.computation.info.get("requires_grad", True) else []
    if wrt:
        traces += clean(traces[-1])
        with compiling(passes.compilation):
            split = Split(traces[-1], executors, wrt, remat=remat)
        if split.returned:
            differentiable = DifferentiableProgram(split, passes.to_execution, remat=remat)
            if "symbols" in captured.computation.info:
                # The prologue needs the backward program's constraints on symbolic numbers.
                differentiable.backward_program(differentiable.everything)
            captured.enables_grad = switched_on
            run = torch.enable_grad()(differentiable.run) if switched_on else differentiable.run
            return _specialization(captured, passes, run, [*traces, *differentiable.traces], differentiable)
    traces += passes.to_execution(traces[-1])
    return _specialization(captured, passes, _without_gradient(traces[-1]), traces)


def graph_transforms(options: Options, transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Return the transform that the option `cuda_graphs` stands for, unless the user's transforms contain it.

    Collectives inside of a graph cannot be compared between ranks when the graph runs.
    """
    if options.cuda_graphs == "never" or any(isinstance(t, CUDAGraphTransform) for t in transforms):
        return ()
    if options.check_ranks and is_distributed():
        return ()
    return (CUDAGraphTransform(auto=options.cuda_graphs == "auto"),)


def gradients_of(epilogue: Trace) -> dict[int, int]:
    """Return the results that an epilogue only assigns to `.grad`, and the indices of the targets to which it does."""
    first: dict[str, dict[str, int]] = {}
    uses = Counter(name for op in epilogue.bound_symbols for name in op.arg_names)
    found: dict[int, int] = {}
    for op in epilogue.bound_symbols:
        if op.sym.id == "python.unpack":
            first[op.args[0].name] = {p.name: i for i, p in enumerate(op.flat_outs)}
        elif op.sym.id == "python.set_attribute" and op.args[1] == "grad" and len(first) == 2:
            target, _, value = op.args
            i = first["values"].get(getattr(value, "name", ""))
            if i is not None and uses[value.name] == 1 and target.name in first["targets"]:
                found[i] = first["targets"][target.name]
    return found


def _ends_once_launched(program: Trace) -> bool:
    """Check whether a program has CUDA graphs, and no operation after the first can end the run because of values."""
    is_graph = [isinstance(op.sym.fn, CapturedRegion) for op in program.bound_symbols]
    if not any(is_graph):
        return False
    first = is_graph.index(True)
    after = zip(program.bound_symbols[first:], is_graph[first:])
    return not any(may_fail(op) for op, is_it in after if not is_it and op.sym is not prims.python_del)


def _without_unread_inputs(prologue: Trace, program: Trace) -> Trace:
    """Return the prologue with None for inputs that the program does not read.

    Nothing then refers to a gradient that the program replaces, except its leaf (`transforms/lent_results.py`).
    """
    unused = (prims.unpack_trivial, prims.python_del)
    read = {name for op in program.bound_symbols if op.sym not in unused for name in op.arg_names}
    inputs, targets = prologue.output
    with construct(prologue, "Release Unread Inputs") as out:
        out.bound_symbols[:] = prologue.bound_symbols
        out.output = tuple([x if p.name in read else None for x, p in zip(inputs, program.args)]), targets
    return out


def _without_gradient(trace: Trace) -> Callable[..., Any]:
    """Return the callable of a program without gradients. Decorators without effect are omitted."""
    return trace.python_callable(decorators=needs_decorators(trace))


def needs_decorators(trace: Trace) -> bool:
    """Check whether a program without gradients needs a context in which gradients and autocast are off."""
    needs_no_grad = any(isinstance(p, TensorProxy) and p.requires_grad for p in trace.args)
    return needs_no_grad or any_autocast()


def _differentiated(trace: Trace) -> list[TensorProxy]:
    return [p for p in trace.args if isinstance(p, TensorProxy) and p.requires_grad]


def _specialization(
    captured: Captured,
    passes: Passes,
    run: Callable[..., Any],
    traces: list[Trace],
    differentiable: DifferentiableProgram | None = None,
) -> Specialization:
    if captured.prologue is None and any(t.has("prologue") for t in passes.transforms):
        raise ThunderError(
            "a transform changes the prologue, but this program has no prologue because it cannot be cached: "
            f"{captured.uncacheable}"
        )
    if any(captured.switched):
        run = switching_requires_grad(run, *captured.switched)
    prologue = captured.prologue
    symbols = captured.computation.info.get("symbols")
    if symbols is not None:
        if prologue is not None:
            prologue.constrain(symbols)
        symbols.closed = True
    prologues = passes.around(None if prologue is None else prologue.trace, "prologue")
    if prologues and differentiable is None and "gradients" in traces[-1].info:
        prologues.append(verify_if_asked(_without_unread_inputs(prologues[-1], traces[-1])))
    epilogues = passes.around(captured.epilogue, "epilogue")
    found = Specialization(
        prologues[-1].python_callable(decorators=False) if prologues else None,
        run,
        epilogues[-1].python_callable(decorators=False) if epilogues else None,
        differentiable=differentiable,
        guarded=None if prologue is None else prologue.guarded,
        path=Path(captured.decisions, _drawn_before(captured.computation)) if captured.decisions else None,
        leaves=_replaced_gradients(traces[-1], epilogues),
        traces=traces,
        prologue_traces=prologues,
        epilogue_traces=epilogues,
    )
    measurements = passes.compilation.measurements
    if measurements is not None:
        found.run = MeasuringRun(found.run, measurements, partial(setattr, found, "run"))
    return found


def _replaced_gradients(program: Trace, epilogues: Sequence[Trace]) -> list[int]:
    """Return the targets whose `.grad` the program replaces for certain, once a CUDA graph has been launched."""
    certain = "gradients" in program.info and _ends_once_launched(program)
    return [*gradients_of(epilogues[0]).values()] if certain else []


def _drawn_before(program: Trace) -> list[Any]:
    """Return the generators from which the operations before the last decision of a program draw."""
    operations = program.bound_symbols
    last = max((i for i, op in enumerate(operations) if _decides(op)), default=-1)
    return random_sources([op for op in operations[:last] if draws(op)])


def _decides(op: BoundSymbol) -> bool:
    return op.sym is prims.decide or any(map(_decides, op.subsymbols))
