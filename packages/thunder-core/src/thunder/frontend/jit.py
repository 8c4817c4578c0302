# SPDX-License-Identifier: Apache-2.0
"""The callables that `thunder.jit` and the older `thunder.compile` return: they trace, compile, cache and run."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import torch

from thunder.capture.base.fallback import ModuleFallback, RunsEagerly, stays_an_error
from thunder.capture.base.substitutions import Substitutions, undone
from thunder.capture.capture import Captured, capture, trace_function
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
from thunder.core.locations import is_ours, name_in_module
from thunder.core.state import registrations, state
from thunder.core.trace import Trace
from thunder.core.tracebacks import present
from thunder.extend import Compilation, Executor, compiling, get_executor, named_executors, resolve_executors
from thunder.extend.compile_state import put
from thunder.frontend.cache import NOT_FOR_THIS_CALL, Cache, Refusal
from thunder.frontend.eager_calls import EagerCalls
from thunder.frontend.environment import read_environment
from thunder.frontend.failures import Failure
from thunder.frontend.options import Options
from thunder.frontend.pipeline import Specialization, compile_trace
from thunder.frontend.restarts import Restarts
from thunder.frontend.saving import SavedPrograms
from thunder.frontend.stats import CompileStats
from thunder.runtime.decisions import OtherPath
from thunder.runtime.lock import runs, tracing_lock
from thunder.runtime.torch_originals import prevents_tracing, replacements
from thunder.torch.private import fx_is_tracing, hidden_from_dynamo, jit_tracing_state
from thunder.transforms.base import Transform, as_transforms
from thunder.transforms.cuda_graphs import CUDAGraphTransform

__all__ = ["CompileStats", "JitFunction", "compile_function", "jitted_of", "statistics", "trace"]

# The number of times that a call is looked up between the traces of other threads, before it keeps these from starting.
MAX_LOOKUPS = 8

P = ParamSpec("P")  # the parameters of the function that is jitted
R = TypeVar("R")  # the type of its result
Rest = ParamSpec("Rest")  # the parameters of a method after `self`
Instance = TypeVar("Instance")


class JitFunction(Generic[P, R]):
    """Runs `fn` as compiled specializations. To a type checker its signature is that of `fn`."""

    def __init__(
        self,
        fn: Callable[P, R],
        options: Options,
        *,
        transforms: Sequence[Transform] = (),
        autograd: bool = True,
        extra_state: dict[str, Any] | None = None,
    ):
        self._fn: Callable[..., Any] = fn
        self._options = options
        self._kept: dict[str, Any] = {} if extra_state is None else extra_state
        self._transforms = tuple(transforms)
        self._graphs = _graphs(options, self._transforms)
        self._autograd = autograd
        self._cache = Cache(symbolic=options.cache == "symbolic values", size=options.max_programs)
        self._stats = CompileStats(repr(self), self._cache)
        read_environment()
        self._eager_calls = EagerCalls(
            fn,
            options,
            self._transforms,
            self._stats,
            autograd=autograd,
            extra_state=self._kept,
            jit=JitFunction,
        )
        self._saved = SavedPrograms(fn, options, self._transforms, self._stats.events, autograd=autograd)
        self._restarts = Restarts(self._cache, self._stats, self._eager_calls)
        self.module: Callable[[], torch.nn.Module | None] = lambda: None  # the jitted module that runs this program
        if not isinstance(fn, torch.nn.Module):
            functools.update_wrapper(self, fn, updated=())

    @hidden_from_dynamo
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            if state.frontend is not None:
                return self._inline(args, kwargs)  # called by a program that is being traced
            if jit_tracing_state() is not None and not self._eager_calls.must_compile:
                return self._run_as_module(args, kwargs)  # torch.jit.trace has to see the operations of torch
            specialization = self._cache.likeliest
            if specialization is None or specialization.epoch != registrations[0]:
                return self._lookup_other(args, kwargs, [])
            stable = runs.stable
            try:
                inputs = specialization.prologue(*args, **kwargs) if kwargs else specialization.prologue(*args)  # type: ignore[misc]
            except Exception as failure:
                refused = self._refused(specialization, failure, stable)
            else:
                if runs.stable is stable is not None:  # otherwise the prologue may have found handles of another thread
                    self._cache.used(specialization)
                    specialization.hits += 1
                    self._stats.last = specialization
                    try:
                        if specialization.epilogue is None:
                            return specialization.run(*inputs)
                        return specialization.call(inputs)
                    except OtherPath as reason:
                        left: OtherPath | Failure = reason
                    except Exception as error:
                        left = self._eager_calls.failure(error)
                    if isinstance(left, Failure):
                        return self._eager_calls.run_failed(left, args, kwargs)
                    return self._start_again(args, kwargs, specialization, left)
                refused = []
            return self._lookup_other(args, kwargs, refused)
        except Exception as error:
            if state.frontend is None:
                present(error)
            raise

    def _refused(self, specialization: Specialization, failure: Exception, stable: object | None) -> list[Refusal]:
        """Return the refusal of the likeliest specialization, unless its prologue ran beside another program."""
        if runs.stable is not stable or stable is None:
            return []
        if not isinstance(failure, NOT_FOR_THIS_CALL):
            raise failure
        return [Refusal(specialization, failure)]

    def _find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], refused: list[Refusal], observed: Sequence[Any] = ()
    ) -> tuple[Specialization, Any] | None:
        """Look a call up while no other thread runs a program on handles, which the prologues would find in objects."""
        for _ in range(MAX_LOOKUPS):
            stable = runs.stable
            if stable is not None or runs.is_mine:
                try:
                    found = self._cache.find(args, kwargs, refused, observed)
                except Exception:
                    if runs.stable is stable:
                        raise
                else:
                    if runs.stable is stable:
                        return found
            refused.clear()
            runs.wait()
        with tracing_lock:  # other threads trace one program after another
            return self._cache.find(args, kwargs, refused, observed)

    def _lookup_other(self, args: tuple[Any, ...], kwargs: dict[str, Any], refused: list[Refusal]) -> Any:
        """Run a call that the likeliest specialization does not accept."""
        kept = self._cache.kept
        found = self._find(args, kwargs, refused)
        if found is None:
            return self._first_call(args, kwargs, self._cache.newest_first(refused), kept)
        del refused
        return self._hit(found, args, kwargs)

    def _hit(self, found: tuple[Specialization, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a cached specialization on its prologue's result."""
        specialization, inputs = found
        specialization.hits += 1
        self._stats.last = specialization
        try:
            return self._eager_calls.call(specialization, inputs, args, kwargs)
        except OtherPath as reason:
            left = reason
        return self._start_again(args, kwargs, specialization, left)

    def _start_again(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], specialization: Specialization, left: OtherPath
    ) -> Any:
        """Run a call on another path than `specialization`, in which a decision has another answer in this call."""
        return self._restarts.run(args, kwargs, specialization, left, find=self._find, trace=self._first_call)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> JitFunction[P, R]: ...
    @overload
    def __get__(
        self: JitFunction[Concatenate[Instance, Rest], R], instance: Instance, owner: Any = None
    ) -> Callable[Rest, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def _run_as_module(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function for a tracer of torch. A jitted module is called as itself, not as the model."""
        module = self.module()
        return self._fn(*args, **kwargs) if module is None else type(self._fn).__call__(module, *args, **kwargs)

    def _first_call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        refused: list[Refusal],
        kept: int,
        observed: Sequence[Any] = (),
    ) -> Any:
        """Run a call that no specialization accepts. `observed` are the answers of decisions that are known already."""
        if fx_is_tracing():
            return self._run_as_module(args, kwargs)  # torch.fx finds modules by identity, and has to see their calls
        self._stats.slow_calls += 1
        run = self._eager_calls.instead_of_tracing(refused)
        if run is not None:
            return run(args, kwargs)
        with tracing_lock, self._stats.compiling():
            cached = None
            if self._cache.kept != kept:  # another thread has compiled meanwhile, maybe for such a call
                refused.clear()
                cached = self._cache.find(args, kwargs, refused, observed)
            compiling = functools.partial(self._capture, args, kwargs, refused, observed)
            foreign = None if cached is not None else prevents_tracing(replacements())
            if cached is None and foreign is None:
                cached = self._saved_program(args, kwargs, observed)
            found: Any = None if cached is not None or foreign is not None else undone(compiling)
        if cached is not None:
            self._stats.slow_calls -= 1
            return self._hit(cached, args, kwargs)
        if foreign is not None:
            return self._eager_calls.run_replaced(foreign, args, kwargs)
        if isinstance(found, RunsEagerly):
            return self._eager_calls.run_untraced(found, args, kwargs)
        self._eager_calls.check_is_cacheable()
        specialization, inputs = found
        del found
        self._saved.compiled(specialization)
        decided = 0 if specialization.path is None else len(specialization.path.decisions)
        return self._eager_calls.call(specialization, inputs, args, kwargs, decided=decided)

    def _saved_program(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], observed: Sequence[Any]
    ) -> tuple[Specialization, Any] | None:
        """Look a call up among the saved programs, and add the program that accepts it to the cache."""
        found = self._saved.find(args, kwargs, observed, NOT_FOR_THIS_CALL)
        if found is not None:
            self._cache.keep(found[0], args, kwargs)
            self._stats.saved_hits += 1
        return found

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
            return self._eager_calls.reason(error)
        finally:
            self._stats.compile_time += perf_counter() - start
        self._check_marks(captured)
        self._stats.compiled(specialization, perf_counter() - start, observed=len(observed))
        self._stats.last = specialization
        self._eager_calls.traced(captured.uncacheable, captured.where)
        self._stats.constant = self._cache.dynamic.given_up
        if specialization.prologue is not None and self._options.cache != "no caching":
            self._cache.keep(specialization, args, kwargs)
            self._saved.keep(specialization, captured, args, kwargs, perf_counter() - start)
        inputs: Any = [*captured.inputs, *[number.value for number in captured.numbers]]
        if captured.epilogue is not None:
            inputs = inputs, captured.targets
        if specialization.prologue is not None and len(specialization.prologue_traces) > 1:
            inputs = specialization.prologue(*args, **kwargs)  # a transform may have changed the inputs
        return specialization, inputs

    def _check_marks(self, captured: Captured) -> None:
        """Report a size that the user marked as dynamic, but that the program needs as a constant."""
        dynamic = self._cache.dynamic
        reason = specialized_mark(captured.marked) or (dynamic.given_up if dynamic.marked else None)
        if reason is None or reason == self._stats.constant:
            return
        message = f"{self!r} compiles a program for each size, although sizes are marked as dynamic: {reason}"
        if self._options.sharp_edges == "error":
            raise TracingError(message)
        if self._options.sharp_edges == "warn":
            warnings.warn(message, stacklevel=7)

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
        try:
            with compiling(self.compilation):  # capture also compiles if a program differentiates a part of itself
                captured = capture(
                    self._fn,
                    args,
                    kwargs,
                    name=self._options.name_for(self._fn),
                    executors=executors,
                    independent=not self._autograd,
                    around=[t.tracing for t in self._transforms],
                    dynamic=dynamic or None,
                    trusted=self._options.cache == "same input",
                    imposed=observed if self._cache.dynamic.ways.decides else None,
                )
        except DataDependentFormattingError as error:
            raise ModuleFallback(str(error.args[0])) from None
        try:
            specialization = compile_trace(
                captured,
                executors,
                (*self._transforms, *self._graphs),
                autograd=self._autograd,
                compilation=self.compilation,
                remat=self._options.remat,
            )
        except Exception as error:
            if self._transforms or self._options.exact or _has_frames_of_extension(error):
                mark_as_of_extension(error)
            raise
        return captured, specialization

    @property
    def _extra_state(self) -> dict[str, Any]:
        """State of executors that persists between calls: dicts of tensors, by executor."""
        return self._kept

    @_extra_state.setter
    def _extra_state(self, state: dict[str, Any]) -> None:
        put(state, self._kept)

    @property
    def compilation(self) -> Compilation:
        """The context of compilations: the options for executors, and the state of executors."""
        return Compilation(self._options.extra, self._kept)

    def _inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Inline `fn` into the program that is being traced."""
        if any(t.is_needed for t in self._transforms):
            return call_transformed(self._fn, self._transforms, repr(self), args, kwargs, trace_into)
        return self._eager_calls.run_inside_transforms(self._fn, args, kwargs)

    @property
    def settings(self) -> tuple[Options, tuple[Transform, ...], dict[str, Any]]:
        """The options, the transforms and the state of executors, which another program may share."""
        return self._options, self._transforms, self._extra_state

    def __reduce__(self) -> Any:
        """Pickle and copy a decorated function by its name, as Python does with functions."""
        name = name_in_module(self)
        if name is not None:
            return name
        return (_rebuild, (self._fn, self._options, self._transforms, self._autograd, self._extra_state))

    def reset(self) -> None:
        """Drop all compiled programs."""
        if len(self._cache):
            self._stats.events.add("cache", "thunder.reset() was called", details={"dropped": len(self._cache)})
        self._cache.clear()
        self._stats.compile_time = 0.0
        self._eager_calls.reset()

    def with_transform(self, transform: Transform | Callable[..., Trace]) -> JitFunction[..., Any]:
        """Return a jitted callable that also applies `transform`, and whose program autograd does not differentiate.

        Each argument is a separate input, even if the same tensor is passed for several arguments.
        """
        return JitFunction(
            self._fn,
            self._options,
            transforms=(*self._transforms, *as_transforms([transform])),
            autograd=False,
            extra_state=self._extra_state,
        )

    def __repr__(self) -> str:
        return f"thunder.jit({getattr(self._fn, '__qualname__', type(self._fn).__name__)})"


def _graphs(options: Options, transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Return the transform that the option `cuda_graphs` stands for, unless the user's transforms contain it."""
    if options.cuda_graphs == "never" or any(isinstance(t, CUDAGraphTransform) for t in transforms):
        return ()
    return (CUDAGraphTransform(auto=options.cuda_graphs == "auto"),)


def _has_frames_of_extension(error: BaseException) -> bool:
    """Check whether code that belongs neither to thunder nor to a library raised an error in a pass."""
    entry = error.__traceback__
    while entry is not None:
        filename = entry.tb_frame.f_code.co_filename
        if not is_ours(filename) and not is_library(filename):
            return True
        entry = entry.tb_next
    return False


def jitted_of(fn: Any) -> Any:
    """Return the `JitFunction` of a jitted module or callable, else `fn`."""
    return getattr(fn, "_thunder_jitted", fn)


def _rebuild(fn: Any, options: Options, transforms: Any, autograd: bool, extra_state: Any = None) -> JitFunction:
    return JitFunction(fn, options, transforms=transforms, autograd=autograd, extra_state=extra_state)


def compile_function(
    fn: Callable[P, R], *, executors_list: Sequence[Executor | str] | None = None
) -> JitFunction[P, R]:
    """Compile like `thunder.jit`, but with exactly the executors listed. Traces keep the name of the function."""
    exact = None if executors_list is None else tuple(map(get_executor, named_executors(executors_list)))
    if exact is None:
        exact = resolve_executors(None)
    return JitFunction(fn, Options(executors=exact, exact=True, own_name=True))


def trace() -> Callable[..., Trace]:
    """Return the function that traces: `thunder.trace()(fn, *args, **kwargs)` returns the trace before claiming."""

    def run(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Trace:
        return trace_function(fn, args, kwargs)

    return run


def statistics(fn: Any) -> CompileStats:
    """Return the statistics of a jitted callable."""
    stats = getattr(jitted_of(fn), "_stats", None)
    if not isinstance(stats, CompileStats):
        raise TypeError(f"{fn!r} is not a jitted function or module. Pass the object that thunder.jit returned")
    return stats
