# SPDX-License-Identifier: Apache-2.0
"""The slow calls of a jitted function: a call without a program is traced and compiled, or runs eagerly.

Everything that compiles is loaded with this module, which `jit.py` does at the first such call. A process whose
programs are all found runs without it.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

import thunder.executors.built_in  # noqa: F401  (registers the built-in executors)
from thunder.capture.base.fallback import CompiledLater, ModuleFallback, RunsEagerly, stays_an_error
from thunder.capture.base.substitutions import Substitutions, undone
from thunder.capture.capture import Captured, capture, trace_function, trace_name
from thunder.capture.higher_order.nested_jit import call_transformed
from thunder.capture.numbers.marks import specialized_mark
from thunder.capture.numbers.symbolic import ONLY_DECIDES, Dynamic, Ways
from thunder.capture.reads.libraries import is_library
from thunder.capture.session import keep_thread
from thunder.capture.trace_into import trace_into
from thunder.core import pytree
from thunder.core.errors import (
    DataDependentError,
    DataDependentFormattingError,
    ReplacedBuiltinError,
    TracingError,
    mark_as_of_extension,
)
from thunder.core.locations import is_ours
from thunder.core.trace import Trace
from thunder.execution.measured_claims import with_measured_claims
from thunder.extend import (
    Compilation,
    Executor,
    ExecutorList,
    compiling,
    get_executor,
    named_executors,
    resolve_executors,
)
from thunder.frontend.cache import Refusal
from thunder.frontend.check_ranks import check_groups, check_ranks, is_distributed
from thunder.frontend.eager_calls import EagerCalls
from thunder.frontend.jit import JitFunction
from thunder.frontend.options import Options
from thunder.frontend.pipeline import compile_trace, graph_transforms
from thunder.frontend.rank_agreement import agree_on_buckets, agree_on_options, follow_eager_ranks
from thunder.frontend.record import record_program
from thunder.frontend.restarts import Restarts
from thunder.frontend.saving import Saving
from thunder.frontend.specialization import Specialization
from thunder.frontend.stats import FIRST, CompileStats
from thunder.passes.bucketing import bucketed
from thunder.runtime.lock import tracing_lock
from thunder.runtime.torch_originals import prevents_tracing, replacements

__all__ = ["Compiler", "compile_function", "trace_function"]

P = ParamSpec("P")
R = TypeVar("R")


class Compiler:
    """Traces and compiles calls of one jitted function, and keeps their programs in its cache.

    It does not refer to the jitted function: a cycle would keep the function's programs alive until a garbage
    collection.
    """

    def __init__(self, jitted: JitFunction[..., Any]):
        self._fn = jitted._fn
        self._options = jitted._options
        self._kept = jitted._kept
        self._transforms = jitted._transforms
        self._graphs = graph_transforms(self._options, self._transforms)
        self._autograd = jitted._autograd
        self._cache = jitted._cache
        self._stats = jitted._stats
        self._name = repr(jitted)
        self._ranks_are_checked = False
        self._measurements = self._options.measurements(self._stats.events)
        self.eager_calls = EagerCalls(
            self._fn,
            self._options,
            self._transforms,
            self._stats,
            autograd=self._autograd,
            extra_state=self._kept,
            jit=JitFunction,
            disabled=jitted._disabled,
        )
        self._saving = Saving(self._fn, jitted.saved, self._stats.events)
        self.restarts = Restarts(self._cache, self._stats, self.eager_calls)

    def run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        refused: list[Refusal],
        kept: int,
        observed: Sequence[Any] = (),
        *,
        hit: Callable[..., Any],
    ) -> Any:
        """Run a call that no specialization accepts. `observed` are the answers of decisions that are known already.

        `kept` is the count of the cache when the call was looked up. `hit` runs a specialization that another thread
        has compiled meanwhile.
        """
        self._stats.slow_calls += 1
        run = self.eager_calls.instead_of_tracing(refused)
        if run is not None:
            return run(args, kwargs)
        with tracing_lock, self._stats.compiling():
            cached = None
            if self._cache.kept != kept:  # another thread has compiled meanwhile, maybe for such a call
                refused.clear()
                cached = self._cache.find(args, kwargs, refused, observed)
            compiling = functools.partial(self._capture, args, kwargs, refused, observed)
            foreign = None if cached is not None else prevents_tracing(replacements())
            found: Any = None if cached is not None or foreign is not None else undone(compiling)
        if cached is not None:
            self._stats.slow_calls -= 1
            return hit(cached, args, kwargs)
        if foreign is not None:
            return self.eager_calls.run_replaced(foreign, args, kwargs)
        if isinstance(found, CompiledLater):
            return self.eager_calls.run_for_now(found, args, kwargs)
        if self._options.check_ranks and not self._ranks_are_checked and is_distributed():
            self._check_ranks(found)
        if isinstance(found, RunsEagerly):
            return self.eager_calls.run_untraced(found, args, kwargs)
        self.eager_calls.check_is_cacheable()
        specialization, inputs = found
        del found
        decided = 0 if specialization.path is None else len(specialization.path.decisions)
        try:
            result = self.eager_calls.call(specialization, inputs, args, kwargs, decided=decided)
        except BaseException:
            self._saving.forget()
            raise
        self._saving.finish()
        return result

    def _check_ranks(self, found: tuple[Specialization, Any] | RunsEagerly) -> None:
        """Compare the collectives of the first program with those of the other ranks."""
        self._ranks_are_checked = True
        if isinstance(found, RunsEagerly):
            check_ranks(self._name, [], eager=f"{found}")
            return
        specialization = found[0]
        check_ranks(self._name, [specialization.traces[-1], *specialization.backward_traces[-1:]])

    def _capture(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        refused: list[Refusal],
        observed: Sequence[Any],
        substitutions: Substitutions,
    ) -> tuple[Specialization, Any] | RunsEagerly:
        """Compile a call, cache the specialization, and return it with its inputs, or return the reason to run eagerly.

        The board `substitutions` then undoes what the trace has done.
        """
        keep_thread(substitutions)
        self._stats.cache_misses += 1
        self._stats.guards_failed(refused)
        start = perf_counter()
        if refused and self._options.cache != "no caching":
            self._cache.learn(refused, args, kwargs)
        refused.clear()  # they refer to values of the call
        with contextlib.suppress(RecursionError):  # an argument that contains itself
            self._cache.dynamic.look_for_marks(pytree.tree_leaves((args, kwargs)))
        try:
            captured, specialization = self._compile(args, kwargs, observed)
        except (Exception, SystemExit) as error:
            if stays_an_error(error):
                raise
            return self.eager_calls.reason(error)
        finally:
            self._stats.compile_time += perf_counter() - start
        elsewhere = self._agree_with_other_ranks(captured)
        if elsewhere is not None:
            return self.eager_calls.reason(elsewhere)
        self._check_marks(captured)
        _record(self._stats, specialization, perf_counter() - start, observed=len(observed))
        self._stats.last = specialization
        self.eager_calls.traced(captured.uncacheable, captured.where)
        self._stats.constant = self._cache.dynamic.given_up
        if specialization.prologue is not None and self._options.cache != "no caching":
            self._cache.keep(specialization, args, kwargs)
            self._saving.compiled(specialization, captured, args, kwargs, perf_counter() - start)
        inputs: Any = [*captured.inputs, *[number.value for number in captured.numbers]]
        if captured.epilogue is not None:
            inputs = inputs, captured.targets
        if specialization.prologue is not None and len(specialization.prologue_traces) > 1:
            inputs = specialization.prologue(*args, **kwargs)  # a transform may have changed the inputs
        return specialization, inputs

    def _agree_with_other_ranks(self, captured: Captured) -> RunsEagerly | None:
        """Compare what orders collectives with the other ranks. Return the reason if this call runs eagerly on them."""
        options, function = self._options, self.eager_calls.function
        if captured.communicates:
            ordering: dict[str, Any] = {
                "bucketing": options.bucketing,
                "bucket_bytes": None if options.bucketing == "never" else options.bucket_bytes,
            }
            if captured.ranks_in_own_order:
                names = ("remat", "kept_parameters", "overlap_memory")
                ordering |= {name: getattr(options, name) for name in names}
            agree_on_options(function, captured.computation, ordering)
        return follow_eager_ranks(function, captured.ranks_in_own_order)

    def _check_marks(self, captured: Captured) -> None:
        """Report a size that the user marked as dynamic, but that the program needs as a constant."""
        dynamic = self._cache.dynamic
        reason = specialized_mark(captured.marked) or (dynamic.given_up if dynamic.marked else None)
        if reason is None or reason == self._stats.constant:
            return
        message = f"{self._name} compiles a program for each size, although sizes are marked as dynamic: {reason}"
        if self._options.sharp_edges == "error":
            raise TracingError(message)
        if self._options.sharp_edges == "warn":
            warnings.warn(message, stacklevel=8)

    def _compile(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], observed: Sequence[Any]
    ) -> tuple[Captured, Specialization]:
        """Trace and compile a call.

        If tracing with symbolic numbers fails, all numbers are static from then on, because a few programs need plain
        Python numbers. A program that needs data-dependent numbers is traced again with overridden builtins
        (`builtin_overrides.py`). If it also needs the values of such numbers, it is traced with derived scalars
        (`derived_scalars.py`), and then with decisions (`decisions.py`). A step is skipped if the error says that it
        would not help.
        """
        dynamic = self._cache.dynamic
        failure: Exception
        try:
            return self._compile_with(dynamic, args, kwargs, observed)
        except RunsEagerly:
            raise
        except DataDependentError as asked:
            if isinstance(asked, ReplacedBuiltinError) and not dynamic.ways.overrides_builtins:
                dynamic.plain_math = True
                return self._compile(args, kwargs, observed)
            failure = asked
            before = dynamic.ways
            for way in dynamic.further_ways():
                if not isinstance(failure, DataDependentError):
                    break
                if not self._may_help(way, failure):
                    continue
                dynamic.ways = way
                try:
                    return self._compile_with(dynamic, args, kwargs, observed)
                except Exception as again:
                    dynamic.ways = before
                    if isinstance(again, RunsEagerly):
                        raise again from None
                    failure = again
            if not dynamic:
                raise failure from None
        except Exception as error:
            if not dynamic:
                raise
            failure = error
        try:
            found = self._compile_with(None, args, kwargs, observed)
        except DataDependentError:
            raise failure from None
        dynamic.given_up = f"{type(failure).__name__}: {failure}"
        return found

    def _may_help(self, way: Ways, failure: DataDependentError) -> bool:
        """Check whether tracing again in another way may succeed after this failure."""
        if isinstance(failure, ReplacedBuiltinError):
            return not way.overrides_builtins
        if way == ONLY_DECIDES:
            return self._cache.dynamic.given_up is not None
        return way.decides or (failure.derives_scalars if way.derives_scalars else failure.overrides_builtins)

    def _compile_with(
        self, dynamic: Dynamic | None, args: tuple[Any, ...], kwargs: dict[str, Any], observed: Sequence[Any]
    ) -> tuple[Captured, Specialization]:
        executors = self._options.resolved_executors()
        if isinstance(executors, ExecutorList):
            executors = with_measured_claims(executors, self.compilation)
        try:
            with compiling(self.compilation):  # capture also compiles if a program differentiates a part of itself
                captured = capture(
                    self._fn,
                    args,
                    kwargs,
                    name=trace_name(self._fn) if self._options.own_name else "computation",
                    executors=executors,
                    independent=not self._autograd,
                    may_run_eagerly=not self.eager_calls.must_compile,
                    around=[t.tracing for t in self._transforms],
                    dynamic=dynamic or None,
                    trusted=self._options.cache == "same input",
                    imposed=observed if self._cache.dynamic.ways.decides else None,
                )
        except DataDependentFormattingError as error:
            raise ModuleFallback(str(error.args[0])) from None
        if self._options.check_ranks:
            check_groups(self._name, captured.computation)
        try:
            specialization = compile_trace(
                captured,
                executors,
                (*self._transforms, *self._graphs),
                autograd=self._autograd,
                compilation=self.compilation,
                remat=self._options.remat,
                kept_parameters=self._options.kept_parameters,
                merge_collectives=self._merge_collectives(),
                overlap_memory=self._options.overlap_memory,
            )
        except Exception as error:
            if self._transforms or self._options.exact or _has_frames_of_extension(error):
                mark_as_of_extension(error)
            raise
        return captured, specialization

    def _merge_collectives(self) -> Callable[..., Trace] | None:
        """Return the pass that merges collectives, if the user asks for it."""
        options = self._options
        if options.bucketing == "never":
            return None
        return functools.partial(
            bucketed,
            limit=options.bucket_bytes,
            reassociate=options.bucketing == "any",
            agree=functools.partial(agree_on_buckets, self.eager_calls.function),
        )

    @property
    def compilation(self) -> Compilation:
        """The context of compilations: the options and the state of executors, and the choices of measurements."""
        return Compilation(self._options.extra, self._kept, self._measurements)

    def inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Inline the function into the program that is being traced."""
        if self.eager_calls.must_compile:
            return call_transformed(self._fn, self._transforms, self._name, args, kwargs, trace_into)
        return self.eager_calls.run_inside_transforms(self._fn, args, kwargs)


def _record(stats: CompileStats, specialization: Specialization, seconds: float, *, observed: int) -> None:
    """Record a new program. `observed` answers of its path are those of a call that has left another path."""
    stats.compiled_calls += 1
    decisions = () if specialization.path is None else specialization.path.decisions
    for decision in decisions:
        details = {"answer": decision.answer, "random": decision.random}
        stats.events.add("decision", decision.question, where=decision.source, details=details)
    reason = stats.refused[0] if stats.refused else FIRST
    if 0 < observed <= len(decisions):
        reason = f"{decisions[observed - 1]}"
    specialization.event = record_program(
        stats.events,
        reason,
        seconds,
        specialization.traces,
        specialization.prologue_traces,
        specialization.epilogue_traces,
    )


def _has_frames_of_extension(error: BaseException) -> bool:
    """Check whether code that belongs neither to thunder nor to a library raised an error in a pass."""
    entry = error.__traceback__
    while entry is not None:
        filename = entry.tb_frame.f_code.co_filename
        if not is_ours(filename) and not is_library(filename):
            return True
        entry = entry.tb_next
    return False


def compile_function(
    fn: Callable[P, R], *, executors_list: Sequence[Executor | str] | None = None
) -> JitFunction[P, R]:
    """Compile like `thunder.jit`, but with exactly the executors listed. Traces keep the name of the function."""
    exact = None if executors_list is None else tuple(map(get_executor, named_executors(executors_list)))
    if exact is None:
        exact = resolve_executors(None)
    return JitFunction(fn, Options(executors=exact, exact=True, own_name=True))
