# SPDX-License-Identifier: Apache-2.0
"""The capture session: one run of a program, with its tracer, its recorder of reads and its substitutions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from thunder.capture.base.ending import call_until_ended
from thunder.capture.base.fallback import ModuleFallback, RunsEagerly, fall_back
from thunder.capture.base.modes import keep_grad_mode, keep_modes
from thunder.capture.base.phase import Phase, active
from thunder.capture.base.predicates import is_tensor
from thunder.capture.base.snapshots import Effect, Write
from thunder.capture.base.sources import Source
from thunder.capture.base.substitutions import Substitutions
from thunder.capture.base.user_lines import annotate, line_of_user
from thunder.capture.dispatch.collectives import finish_collectives, values_of_collectives
from thunder.capture.dispatch.dtensors import finish_dtensors, values_of_layouts
from thunder.capture.guards.decisions import Decisions
from thunder.capture.guards.derived_scalars import DerivedScalars
from thunder.capture.guards.evaluation import Evaluation
from thunder.capture.guards.prologue import Arguments
from thunder.capture.handlers import make_tracer
from thunder.capture.higher_order.data_parallel import leave_reduction_to_torch
from thunder.capture.higher_order.fully_sharded import leave_backward_to_caller, writes_to_units
from thunder.capture.numbers.symbolic import Dynamic, Inputs
from thunder.capture.reads.read_recorder import ReadRecorder
from thunder.capture.reads.torch_functions import guard_functions_of_torch
from thunder.capture.torch_patches import replace_torch_functions
from thunder.core import langctx, pytree
from thunder.core.errors import ThunderError, TraceHasEnded, TracingError
from thunder.core.state import SourceLine, state
from thunder.core.symint.symbols import symbols_of
from thunder.extend import Executor
from thunder.extend.compile_state import current_compilation, set_compilation
from thunder.runtime.lock import runs, tracing_lock
from thunder.runtime.torch_originals import replacements
from thunder.torch.private import without_modes

__all__ = ["CaptureSession", "IsShared", "keep_thread", "parameter_names"]


def keep_thread(substitutions: Substitutions) -> None:
    """Acquire the tracing lock, and register steps that restore the state of this thread after tracing."""
    substitutions.hold(tracing_lock)
    substitutions.callback(langctx.set_language, langctx.current_language())
    substitutions.callback(set_compilation, current_compilation())
    keep_grad_mode(substitutions)
    _keep_state(substitutions)


def _keep_state(substitutions: Substitutions) -> None:
    substitutions.assign(state, trace=state.trace, frontend=state.frontend, source=state.source)
    keep_modes(substitutions)


class IsShared(Exception):
    """Signals that the program can detect that several of its arguments are the same tensor."""


# The exceptions by which thunder ends a trace.
_OURS = (RunsEagerly, ThunderError, TraceHasEnded, IsShared)


class CaptureSession:
    """One run of a program: its tracer, its recorder of reads, its symbolic numbers and its board of substitutions.

    With `independent`, each argument is a separate input, even if several arguments are the same tensor. Transforms
    that take gradients need this. Tensors with an id in `distinct` are separate inputs, too, but `IsShared` is raised
    if the program can detect that they are the same tensor. `dynamic` determines which sizes and numbers are symbolic.
    `may_run_eagerly` says whether eager mode computes the same.
    If `imposed` is given, values that Python needs are decided, the first ones by `imposed`. The contexts that the
    functions in `around` return are entered for the run.
    """

    def __init__(
        self,
        substitutions: Substitutions,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        name: str,
        executors: Sequence[Executor],
        independent: bool,
        may_run_eagerly: bool,
        distinct: frozenset[int],
        around: Iterable[Callable[[], AbstractContextManager[Any]]],
        dynamic: Dynamic | None,
        imposed: Sequence[Any] | None,
    ):
        keep_thread(substitutions)
        self.substitutions = substitutions
        self.fn = fn
        self.call = (args, kwargs)
        self.independent = independent
        self.distinct = distinct
        self.arguments = Arguments(args, kwargs, parameter_names(fn))
        self.tracer = tracer = make_tracer(name, executors)
        tracer.replaced = replacements()
        self.recorder = recorder = ReadRecorder(substitutions)
        tracer.reader, tracer.recorder = recorder.reader, recorder
        recorder.source_of_input = self.source_of
        if distinct:
            recorder.watch_identity()
        self.evaluation = Evaluation(tracer, substitutions)
        self.numbers: Inputs | None = None
        self.writes: list[Write] = []
        self.effects: list[Effect] = []
        self.aliases: dict[int, Any] = {}
        tracer.names_of = recorder.name_of
        tracer.communication.may_wait = may_run_eagerly
        tracer.undo_later = None if independent else substitutions.callback
        tracer.read_attribute = lambda tensor, name: recorder.attribute_of_tensor(self.source_of(tensor), tensor, name)
        tracer.read_class = lambda cls: recorder.classes.read_whole(cls, observed=False)
        tracer.guarded_of = lambda tensor, *step: recorder.tensor_is(self.source_of(tensor), tensor, *step)
        if dynamic:
            self.numbers = tracer.symbolic = recorder.symbolic = Inputs(tracer.trace, dynamic)
            self.numbers.source_of = self.source_of
            self.numbers.source_of_list, self.numbers.guarded_number = recorder.source_of_list, recorder.number
            tracer.derived_scalars = DerivedScalars(tracer, self.evaluation) if dynamic.ways.derives_scalars else None
        if imposed is not None:
            tracer.decisions = symbols_of(tracer.trace).decisions = Decisions(tracer, self.evaluation, imposed)
        substitutions.callback(tracer.release)
        substitutions.callback(self.release)  # runs after the program's assignments have been undone
        self._around = len(substitutions)
        substitutions.enter(without_modes())  # the user's modes see the compiled program instead
        for context in around:
            substitutions.enter(context())

    @property
    def uses_arrays(self) -> bool:
        """Whether the program uses NumPy arrays from outside or of tensors."""
        return self.tracer.uses_arrays or bool(self.recorder.arrays)

    @property
    def phase(self) -> Phase:
        """Whether the program's code or thunder's code is running."""
        return active.phase if active.reader is self.recorder.reader else Phase.OFF

    def source_of(self, tensor: torch.Tensor) -> Source | None:
        """Return the source of a tensor, among the arguments or among the values that the program read."""
        return self.arguments.source_of(tensor) or self.recorder.source_of(tensor)

    def run(self) -> Any:
        """Call the function on handles and return its result. `writes` stores its assignments, which are undone."""
        tracer, arguments = self.tracer, self.arguments
        leaves = [
            tracer.add_input(leaf, source.label, independent=self.independent or id(leaf) in self.distinct)
            if is_tensor(leaf)
            else self.recorder.argument(source, leaf)
            for leaf, source in zip(arguments.leaves, arguments.sources)
        ]
        self.recorder.handles.update(
            (id(leaf), x)
            for leaf, x in zip(arguments.leaves, leaves)
            if is_tensor(leaf) and id(leaf) not in self.distinct
        )
        copies = pytree.tree_unflatten(leaves, arguments.structure)
        before = len(self.substitutions)
        try:
            try:
                self.substitutions.hold(runs)
                result = self._run_on(copies)
            finally:
                self.substitutions.restore(before)
        except (Exception, TraceHasEnded) as error:
            ended: Exception | None = self.recorder.denied
            if ended is None and not isinstance(error, RunsEagerly):
                ended = tracer.partly_eager or tracer.refusal
            if ended is None or ended is error:
                if self.uses_arrays and not self.independent and not isinstance(error, _OURS):
                    # C code may have rejected an array handle, which is no array.
                    raise RunsEagerly(f"the program uses NumPy arrays and raised {type(error).__name__}") from error
                raise
            # The program caught what ended the trace, and raised another error.
            raise (ended if isinstance(ended, RunsEagerly) else _located(ended)) from None
        if self.recorder.denied is not None:
            raise self.recorder.denied  # the program caught this exception
        if tracer.partly_eager is not None:
            raise tracer.partly_eager  # likewise
        if tracer.refusal is not None:
            raise _located(tracer.refusal)
        for source, value in (*values_of_collectives(tracer), *values_of_layouts(tracer, self.source_of)):
            self.recorder.value(source, value)
        self._read_of_inputs()
        return result

    def leave_contexts(self) -> None:
        """Exit the contexts that were entered for the run, because guards check the modes around the call."""
        self.substitutions.restore(self._around)

    def release(self) -> None:
        """Release references to the user's objects. Otherwise an input would live until a garbage collection."""
        self.recorder.release()
        self.substitutions.release()
        self.evaluation.release()
        self.tracer.communication.release()
        for lifted in self.tracer.inputs:
            lifted.handle.forget_attributes()
            lifted.handle._local = None
        self.writes, self.effects, self.aliases = [], [], {}
        self.call = (), {}
        self.arguments.leaves = []

    def _run_on(self, copies: Any) -> Any:
        recorder, substitutions = self.recorder, self.substitutions
        recorder.keep_others_out()
        substitutions.callback(self._undo_writes)
        recorder.watch_reads()
        recorder.start(self.fn)
        self.arguments.read(recorder)
        seen: dict[int, tuple[Any, Source]] = {}
        copies = tuple([
            recorder.with_shared_copies(original, copy, source, seen)
            for original, copy, source in zip(self.call, copies, self.arguments.roots)
        ])  # fmt: skip
        for original, copy, source in zip(self.call, copies, self.arguments.roots):
            recorder.copied(original, copy, source, self.aliases)
        converts = self.numbers is not None and self.numbers.dynamic.overrides_math
        replace_torch_functions(substitutions, numbers=converts)
        substitutions.assign(active, thread=0)
        _keep_state(substitutions)  # steps pushed earlier run later, and need the state from outside the program
        with self.tracer.user_code():
            recorder.watch_code()
            try:
                result = recorder.context.run(_result, self.fn, *copies)
            except Exception:
                recorder.code.check_values()  # the error may be due to what is replaced while tracing
                raise
            recorder.end_watch()  # exiting the contexts must not be recorded
            finish_collectives(self.tracer)
            finish_dtensors(self.tracer)
            leave_backward_to_caller(self.tracer)
            leave_reduction_to_torch(self.tracer)
        recorder.finish()
        return result

    def _undo_writes(self) -> None:
        self.writes = self.recorder.undo()
        self.effects = [*self.recorder.output.effects]

    def _read_of_inputs(self) -> None:
        """Record what the program read and assigned through its inputs."""
        recorder, tracer = self.recorder, self.tracer
        shared = [x.handle for x in tracer.inputs if id(x.tensor) in self.distinct]
        switched = tracer.leaves.inputs
        if any(x in switched for x in tracer.inputs if id(x.tensor) in self.distinct):
            raise IsShared
        if recorder.identity_matters or any(h._storage.written or h.given_attributes for h in shared):
            raise IsShared
        reason = recorder.seeded(tracer.generators)
        if reason is not None:
            raise ModuleFallback(reason)
        self.writes += writes_to_units(tracer)
        for lifted in tracer.inputs:
            local = lifted.handle._local
            if local is not None and local._storage.written:
                source = self.source_of(lifted.tensor)
                if source is None:  # the program would count the writes of this call's DTensor only
                    fall_back("the program writes to a DTensor that no path leads to")
                self.effects.append(Effect("count_write", source, lifted.tensor, ()))
            given = lifted.handle.given_attributes
            if given:
                self.writes += recorder.given_attributes(self.source_of(lifted.tensor), lifted.tensor, given)
        if tracer.attention_kernels is not None:
            recorder.attention_kernels(tracer.attention_kernels)
        guard_functions_of_torch(recorder, tracer.functions, tracer.replaced)


def parameter_names(fn: Any) -> list[str]:
    """Return the names of a callable's positional parameters, without `self`."""
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        params = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return []
    names: list[str] = []
    for p in params:
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
        elif p.kind is p.VAR_POSITIONAL:
            break
    return names


def _result(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return call_until_ended(fn, *args, **kwargs)
    except TracingError as error:
        raise _located(error) from error.__cause__
    except RuntimeError as error:
        if "TorchScript interpreter" not in str(error):
            raise
        fall_back("the program calls a function compiled by torch.jit, which thunder cannot trace")


def _located(error: Exception) -> Exception:
    """Add the user's line that raised `error` to the error, and return it."""
    annotate(error, _line_of(error))
    return error


def _line_of(error: BaseException) -> SourceLine | None:
    """Return the innermost user line in an error's traceback, or None."""
    found, entry = None, error.__traceback__
    while entry is not None:
        found = line_of_user(entry.tb_frame.f_code.co_filename, entry.tb_lineno) or found
        entry = entry.tb_next
    return found
