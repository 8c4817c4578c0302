# SPDX-License-Identifier: Apache-2.0
"""The callables that `thunder.jit` and the older `thunder.compile` return: they trace, compile, cache and run."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import torch

from thunder.capture.base.fallback import ModuleFallback, RunsEagerly, reason_to_run_eagerly, stays_an_error
from thunder.capture.base.modes import mode_around
from thunder.capture.base.substitutions import Substitutions, undone
from thunder.capture.capture import Captured, capture, trace_function
from thunder.capture.higher_order.nested_jit import call_transformed
from thunder.capture.numbers.marks import specialized_mark
from thunder.capture.numbers.symbolic import Dynamic
from thunder.capture.reads.hooks import PROFILED, is_profiled
from thunder.capture.session import keep_thread
from thunder.capture.trace_into import trace_into
from thunder.core import pytree
from thunder.core.errors import (
    DataDependentError,
    DataDependentFormattingError,
    FallbackWarning,
    OnlyInTracesError,
    TracingError,
    mark_as_of_extension,
)
from thunder.core.locations import name_in_module
from thunder.core.state import SourceLine, registrations, state
from thunder.core.trace import Trace
from thunder.core.tracebacks import find_source, present, release_frames
from thunder.extend import Compilation, Executor, compiling, get_executor, named_executors, resolve_executors
from thunder.extend.compile_state import put
from thunder.frontend.cache import NOT_FOR_THIS_CALL, Cache, Refusal
from thunder.frontend.environment import is_disabled, read_environment
from thunder.frontend.explain import counted
from thunder.frontend.fallbacks import (
    at_line,
    has_frames_of_extension,
    is_transform,
    stacklevel_of_user,
    with_transforms_of_torch,
)
from thunder.frontend.options import Options
from thunder.frontend.paths import MAX_RESTARTS, is_worth_it, reason_to_give_up
from thunder.frontend.per_module import PerModule
from thunder.frontend.pipeline import Specialization, compile_trace
from thunder.frontend.stats import CompileStats
from thunder.runtime.decisions import OtherPath, imposed
from thunder.runtime.lock import runs, tracing_lock
from thunder.torch.private import fx_is_tracing, hidden_from_dynamo
from thunder.transforms.base import Transform, as_transforms

__all__ = ["CompileStats", "JitFunction", "compile_function", "jitted_of", "statistics", "trace"]

# So many traces in a row that serve one call each, and the function is not traced again.
MAX_UNCACHEABLE_TRACES = 2
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
        self._autograd = autograd
        self._cache = Cache(symbolic=options.cache == "symbolic values", size=options.max_programs)
        self._stats = CompileStats(repr(self), self._cache)
        read_environment()
        # A function that is transformed as a whole computes results that eager mode does not.
        self._disabled = is_disabled() and not self._is_transformed
        if self._disabled:
            self._stats.eager = "THUNDER_DISABLE is set"
        self._uncacheable_traces = 0  # in a row
        self._lost_calls = 0  # calls that ran eagerly because no path accepted them
        self._uncacheable_line: SourceLine | None = None
        self._warned = False  # that it runs eagerly
        self._reasons: set[str] = set()  # of such warnings, shared with the programs of modules
        self.module: Callable[[], torch.nn.Module | None] = lambda: None  # the jitted module that runs this program
        if not isinstance(fn, torch.nn.Module):
            functools.update_wrapper(self, fn, updated=())

    @hidden_from_dynamo
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            if state.frontend is not None:
                return self._inline(args, kwargs)  # called by a program that is being traced
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
                        left = reason
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
            return specialization.call(inputs)
        except OtherPath as reason:
            left = reason
        return self._start_again(args, kwargs, specialization, left)

    def _start_again(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], specialization: Specialization, left: OtherPath
    ) -> Any:
        """Run a call on another path than `specialization`, in which a decision has another answer in this call."""
        specialization.hits -= 1
        for _ in range(MAX_RESTARTS):
            assert specialization.path is not None
            observed = specialization.path.observed(left)
            kept = self._cache.kept
            found = self._find(args, kwargs, [], observed)
            if found is None:
                paths = self._cache.paths
                reason = reason_to_give_up(paths, self._lost_calls)
                if reason is not None and not self._is_transformed:
                    self._cache.clear()
                    self._give_up_compiling(reason, None)
                elif not is_worth_it(paths) and not self._is_transformed:
                    break
                return self._first_call(args, kwargs, [], kept, observed)
            specialization, inputs = found
            try:
                with imposed(len(observed)):
                    result = specialization.call(inputs)
            except OtherPath as reason_to_leave:
                left = reason_to_leave
            else:
                specialization.hits += 1
                self._stats.last = specialization
                return result
        self._lost_calls += 1
        self._stats.slow_calls += 1
        self._stats.fell_back("its branches on values of tensors took a path that is not compiled")
        return self._run_eagerly(args, kwargs)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> JitFunction[P, R]: ...
    @overload
    def __get__(
        self: JitFunction[Concatenate[Instance, Rest], R], instance: Instance, owner: Any = None
    ) -> Callable[Rest, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

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
            module = self.module()  # torch.fx finds modules by identity, and has to see their calls
            return self._fn(*args, **kwargs) if module is None else torch.nn.Module.__call__(module, *args, **kwargs)
        self._stats.slow_calls += 1
        if self._disabled:
            return self._run_eagerly(args, kwargs)
        stats = self._stats
        if not self._is_transformed:
            if stats.eager is None:
                self._stop_at_limits(refused)
            if self._uncacheable_traces >= MAX_UNCACHEABLE_TRACES and stats.per_module is None and stats.eager is None:
                self._give_up_compiling(f"{stats.uncacheable}, at every call", self._uncacheable_line)
            if stats.eager is not None:
                return self._run_eagerly(args, kwargs)
        mode = mode_around()
        if mode is not None:
            return self._run_under_mode(*mode, args, kwargs)
        if is_profiled() and not self._is_transformed:
            stats.uncacheable = PROFILED
            self._warn_of_fallback(PROFILED, None)
            return self._run_eagerly(args, kwargs)
        if self._stats.per_module is not None:
            return self._stats.per_module(self._fn, args, kwargs)
        if isinstance(self._fn, torch.nn.Module) and _is_lazy(self._fn):
            self._stats.uncacheable = "its first call creates its parameters"
            self._stats.fell_back(self._stats.uncacheable)
            return self._run_eagerly(args, kwargs)
        with tracing_lock, self._stats.compiling():
            cached = None
            if self._cache.kept != kept:  # another thread has compiled meanwhile, maybe for such a call
                refused.clear()
                cached = self._cache.find(args, kwargs, refused, observed)
            compiling = functools.partial(self._capture, args, kwargs, refused, observed)
            found: Any = None if cached is not None else undone(compiling)
        if cached is not None:
            self._stats.slow_calls -= 1
            return self._hit(cached, args, kwargs)
        if isinstance(found, RunsEagerly):
            return self._run_untraced(found, args, kwargs)
        if self._stats.uncacheable is not None and self._options.sharp_edges == "error":
            raise TracingError(f"{self!r} cannot be cached: {self._stats.uncacheable}{at_line(self._uncacheable_line)}")
        specialization, inputs = found
        del found
        if specialization.path is None:
            return specialization.call(inputs)
        with imposed(len(specialization.path.decisions)):
            return specialization.call(inputs)

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
            return self._reason_to_run_eagerly(error)
        finally:
            self._stats.compile_time += perf_counter() - start
        self._check_marks(captured)
        self._stats.compiled(specialization, perf_counter() - start)
        self._stats.last = specialization
        self._stats.uncacheable = captured.uncacheable
        self._uncacheable_line = captured.where
        self._uncacheable_traces = 0 if captured.uncacheable is None else self._uncacheable_traces + 1
        self._stats.constant = self._cache.dynamic.given_up
        if specialization.prologue is not None and self._options.cache != "no caching":
            self._cache.keep(specialization, args, kwargs)
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
            failure = asked
            before = dynamic.ways
            for way in dynamic.further_ways():
                if not isinstance(failure, DataDependentError):
                    break
                if not (
                    way.decides or (failure.derives_scalars if way.derives_scalars else failure.overrides_builtins)
                ):
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
                self._transforms,
                autograd=self._autograd,
                compilation=self.compilation,
                remat=self._options.remat,
            )
        except Exception as error:
            if self._transforms or self._options.exact or has_frames_of_extension(error):
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
        return self._run(self._fn, args, kwargs)

    def _run_eagerly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._run(with_transforms_of_torch(self._fn), args, kwargs)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `fn` in the contexts in which transforms trace it."""
        if not self._transforms:
            return fn(*args, **kwargs)
        with contextlib.ExitStack() as around:
            for transform in self._transforms:
                around.enter_context(transform.tracing())
            return fn(*args, **kwargs)

    # -- traces that were given up ------------------------------------------------------------------------------------
    def _reason_to_run_eagerly(self, error: BaseException) -> RunsEagerly:
        """Return the reason to run a call eagerly whose trace has ended. Raise an error if that is not possible."""
        ended = reason_to_run_eagerly(error)
        ended.where = ended.where or find_source(error.__traceback__)
        if self._is_transformed:
            if ended.error is not None:
                raise ended.error
            raise TracingError(
                f"{self!r} is transformed as a whole, but {ended}. Move that call out of the function"
            ) from None
        if self._options.sharp_edges == "error" and not ended.is_programs:
            if ended.error is not None:
                raise ended.error
            raise TracingError(f"{self!r} cannot be compiled: {ended}{at_line(ended.where, str(ended))}") from None
        if not ended.is_programs:
            release_frames(error)
        return ended

    def _run_untraced(self, ended: RunsEagerly, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call whose trace was given up and undone.

        An error of this run is the program's own. If there is none, record the reason, and warn once.
        """
        again = self._uncacheable_traces + 1 >= MAX_UNCACHEABLE_TRACES and not ended.is_programs
        if isinstance(ended, ModuleFallback):
            self._stop_tracing(f"{ended}", ended.where)
        else:
            self._stats.uncacheable = f"{ended}"
            if again:
                self._stop_tracing(f"{ended}, at every call", ended.where)
            else:
                self._stats.fell_back(f"{ended}", ended.where)
        per_module = self._stats.per_module
        state.replaces_trace, before = True, state.replaces_trace
        try:
            result = self._run_eagerly(args, kwargs) if per_module is None else per_module(self._fn, args, kwargs)
        except Exception as error:
            if ended.is_programs or not (self._is_transform or isinstance(error, OnlyInTracesError)):
                raise
            self._stats.eager = None  # eager mode cannot replace the trace
            raise ended.error or TracingError(
                f"{self!r} cannot be compiled: {ended}{at_line(ended.where, str(ended))}"
            ) from error
        finally:
            state.replaces_trace = before
        self._uncacheable_traces += 1
        self._uncacheable_line = ended.where
        if ended.error is not None:
            self._stats.error = f"{type(ended.error).__name__}: {ended.error}"
        if ended.is_programs:
            self._unexpected(ended)
        elif not (isinstance(ended, ModuleFallback) and ended.asked):
            self._warn_of_fallback(f"{ended}", ended.where)
        release_frames(ended.error)
        return result

    def _unexpected(self, ended: RunsEagerly) -> None:
        """Report an error that ended a trace although eager mode does not raise it."""
        if self._options.sharp_edges == "error" or os.environ.get("THUNDER_STRICT", "0") != "0":
            raise TracingError(
                f"tracing {self!r} raised an error that eager mode does not raise: {ended}. THUNDER_TRACEBACK=full "
                "shows where"
            ) from ended.error
        self._warn_of_fallback(
            f"tracing raised an error that eager mode does not raise ({ended}). If the program does not raise it at "
            "random, this is a defect of thunder: please report it. THUNDER_STRICT=1 raises the error",
            ended.where,
        )

    def _give_up_compiling(self, reason: str, where: SourceLine | None) -> None:
        """Run the function eagerly from now on although it can be traced, and warn."""
        if self._options.sharp_edges == "error":
            raise TracingError(f"{self!r} cannot be compiled as a whole: {reason}")
        self._stop_tracing(reason, where)
        self._warn_of_fallback(reason, where)

    def _stop_tracing(self, reason: str, where: SourceLine | None) -> None:
        """Run the function eagerly from now on, and compile the modules that it calls one by one."""
        if self._autograd and not self._is_transform:
            self._stats.partly_eager = reason
            self._stats.per_module = PerModule(self)
            self._stats.fell_back(reason, where, scope="modules")
        else:
            self._stats.eager = reason
            self._stats.fell_back(reason, where, scope="function")

    def _warn_of_fallback(self, reason: str, where: SourceLine | None) -> None:
        """Warn that the function is not compiled, once, and not for a reason that the calling function has given."""
        if self._warned or reason in self._reasons or self._options.sharp_edges == "allow":
            return
        self._warned = True
        self._reasons.add(reason)
        modules = ", and the modules that it calls are compiled one by one" if self._stats.per_module else ""
        message = f"{self!r} runs eagerly{modules}: {reason}{at_line(where, reason)}"
        message += "\n  " if "\n" in reason else ". "  # the errors of thunder end with the line
        message += 'Move this code out of the jitted function, or accept this with sharp_edges="allow"'
        warnings.warn(message, FallbackWarning, stacklevel=stacklevel_of_user())

    @property
    def _is_transform(self) -> bool:
        """Whether this is the function that `thunder.grad` or another function transform returns."""
        return is_transform(self._fn)

    @property
    def _is_transformed(self) -> bool:
        """Whether eager mode would compute other results."""
        return any(t.is_needed for t in self._transforms)

    def program_of_module(self, module: torch.nn.Module) -> JitFunction:
        """Return the jitted program of a module that the function calls, for a partly eager run."""
        whole = self._fn
        names = {id(m): name for name, m in whole.named_modules()} if isinstance(whole, torch.nn.Module) else {}
        name = names.get(id(module), f"module {len(self._extra_state)}")
        state = self._extra_state.setdefault(name, {})
        program: JitFunction[..., Any] = JitFunction(
            module, self._options, transforms=self._transforms, extra_state=state
        )
        program._reasons = self._reasons
        return program

    def _run_under_mode(self, mode: str, way_out: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run eagerly under a mode that intercepts the program's calls of torch."""
        reason = f"{mode}, which must intercept the program's calls of torch"
        if self._options.sharp_edges == "error" or self._is_transformed:
            raise TracingError(f"{self!r} cannot be compiled: {reason}. {way_out}")
        self._stats.uncacheable = reason
        self._stats.fell_back(reason)
        return self._run_eagerly(args, kwargs)

    def _stop_at_limits(self, refused: list[Refusal]) -> None:
        """Compile no more programs if the number of programs or the time for compilations has reached its limit."""
        most, seconds = self._options.max_compile_time, self._stats.compile_time
        if len(refused) >= self._options.max_programs:
            cached = f"{counted(len(refused), 'program')} {'is' if len(refused) == 1 else 'are'} cached"
            self._fall_back_to_eager(f"{cached}, and their guards refuse this call ({refused[0]})")
        elif most is not None and seconds >= most:
            self._fall_back_to_eager(f"compilations have taken {seconds:.3g} s, and max_compile_time is {most:g}")

    def _fall_back_to_eager(self, reason: str) -> None:
        self._stats.eager = reason
        self._stats.fell_back(reason, scope="function")
        if self._options.sharp_edges == "allow":
            return
        warnings.warn(
            f"{self!r} falls back to eager if no cached program accepts a call: {self._stats.eager}. Pass the changing "
            "value as a tensor, or clear the cache with thunder.reset()",
            FallbackWarning,
            stacklevel=stacklevel_of_user(),
        )

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
        self._stats.partly_eager = self._stats.per_module = None
        if not self._disabled:
            self._stats.eager = None
        self._stats.compile_time = 0.0
        self._uncacheable_traces = 0
        self._warned = False
        self._reasons.clear()

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


def _is_lazy(module: torch.nn.Module) -> bool:
    """Check whether a module has parameters or buffers that its first call initializes."""
    return any(map(torch.nn.parameter.is_lazy, (*module.parameters(), *module.buffers())))


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
