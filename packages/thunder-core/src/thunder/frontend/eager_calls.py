# SPDX-License-Identifier: Apache-2.0
"""Calls that run without a compiled program of the whole function: eagerly, or module by module.

`EagerCalls` decides when a call is not traced, what happens when its trace was given up, and when the function is not
traced any more. It runs these calls, records the reasons, and warns. What ends a trace is in
`capture/base/fallback.py`, and the execution module by module in `per_module.py`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from thunder.capture.base.fallback import (
    CompiledLater,
    ModuleFallback,
    RunsEagerly,
    reason_to_run_eagerly,
    stays_an_error,
)
from thunder.capture.base.modes import mode_around
from thunder.capture.base.phase import TracerPhase
from thunder.capture.reads.hooks import PROFILED, is_profiled
from thunder.core.errors import FallbackWarning, OnlyInTracesError, TracingError
from thunder.core.locations import is_ours
from thunder.core.state import SourceLine, state
from thunder.core.tracebacks import find_source, release_frames
from thunder.frontend.cache import Refusal
from thunder.frontend.explain import counted
from thunder.frontend.failures import Failure, failed_before_effects
from thunder.frontend.options import Options
from thunder.frontend.per_module import PerModule
from thunder.frontend.rank_agreement import Function, agree_on_eager_call
from thunder.frontend.specialization import Specialization
from thunder.frontend.stats import CompileStats
from thunder.runtime.decisions import OtherPath, imposed
from thunder.runtime.rank_checks import stop_comparing, stop_comparing_order
from thunder.transforms.base import Transform

__all__ = ["TRANSFORMS_OF_TORCH", "EagerCalls", "at_line"]

# So many traces in a row that serve one call each, and the function is not traced again.
MAX_UNCACHEABLE_TRACES = 2
# Counts the functions of each name. Ranks that make them in the same order give them the same numbers.
_created: dict[str, Iterator[int]] = defaultdict(itertools.count)
# By the programs that `thunder.grad` and others trace: the same transform of torch.func, for eager mode.
TRANSFORMS_OF_TORCH: dict[Callable[..., Any], Callable[..., Callable[..., Any]]] = {}


class EagerCalls:
    """Runs calls of a jitted function that no compiled program runs as a whole.

    `jit` makes the jitted program of a module, for the execution module by module. It is no method of the jitted
    function: a cycle of references would keep the function's programs alive until a garbage collection.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Options,
        transforms: tuple[Transform, ...],
        stats: CompileStats,
        *,
        autograd: bool,
        extra_state: dict[str, Any],
        jit: Callable[..., Any],
        disabled: bool,
    ):
        self._fn = fn
        self._options = options
        self._transforms = transforms
        self._stats = stats
        self._autograd = autograd
        self._extra_state = extra_state
        self._jit = jit
        self._uncacheable_traces = 0  # in a row
        self._postponed = 0  # calls in a row that a later call may compile
        self._uncacheable_line: SourceLine | None = None
        self._warned = False  # that it runs eagerly
        self._reasons: set[str] = set()  # of such warnings, shared with the programs of modules
        self._disabled = disabled  # by THUNDER_DISABLE
        self._created, self._resets = next(_created[stats.name]), 0

    @property
    def must_compile(self) -> bool:
        """Whether eager mode would compute other results, because a transform changes them."""
        return any(t.is_needed for t in self._transforms)

    @property
    def _is_transform(self) -> bool:
        """Whether this is the function that `thunder.grad` or another function transform returns."""
        return _is_transform(self._fn)

    @property
    def function(self) -> Function:
        """This function, as it is since the last reset, for agreements between ranks."""
        return Function(self._stats.name, f"{self._created}.{self._resets}")

    def reset(self) -> None:
        """Forget the reasons to run eagerly."""
        self._resets += 1
        self._stats.partly_eager = self._stats.per_module = None
        if not self._disabled:
            self._stats.eager = None
        self._uncacheable_traces = 0
        self._warned = False
        self._reasons.clear()

    # -- running ------------------------------------------------------------------------------------------------------
    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call eagerly."""
        self._tell_other_ranks()
        return self.run_inside_transforms(_with_transforms_of_torch(self._fn), args, kwargs)

    def _tell_other_ranks(self) -> None:
        """Tell ranks that run compiled programs that this one runs the function eagerly."""
        if self._options.check_ranks:
            stop_comparing(self._stats.name)
        stats = self._stats
        reason = stats.eager or stats.partly_eager or stats.uncacheable
        always, may_merge = bool(stats.eager or stats.per_module), self._options.bucketing != "never"
        agree_on_eager_call(self.function, reason, always=always, may_merge=may_merge)

    def run_inside_transforms(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `fn` in the contexts in which transforms trace it."""
        if not self._transforms:
            return fn(*args, **kwargs)
        with contextlib.ExitStack() as around:
            # In a program that is being traced, the contexts of transforms are no code of this program.
            with contextlib.nullcontext() if state.frontend is None else TracerPhase():
                for transform in self._transforms:
                    around.enter_context(transform.tracing())
            return fn(*args, **kwargs)

    def _run_by_modules(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call eagerly, except for the modules that it calls if these are compiled one by one."""
        per_module = self._stats.per_module
        if per_module is None:
            return self.run(args, kwargs)
        self._tell_other_ranks()
        return per_module(self._fn, args, kwargs)

    def program_of_module(self, module: torch.nn.Module) -> Any:
        """Return the jitted program of a module that the function calls, for a partly eager run."""
        whole = self._fn
        names = {id(m): name for name, m in whole.named_modules()} if isinstance(whole, torch.nn.Module) else {}
        name = names.get(id(module), f"module {len(self._extra_state)}")
        state = self._extra_state.setdefault(name, {})
        program = self._jit(module, self._options, transforms=self._transforms, extra_state=state)
        program._eager_calls._reasons = self._reasons
        return program

    # -- calls that are not traced ------------------------------------------------------------------------------------
    def instead_of_tracing(self, refused: Sequence[Refusal]) -> Callable[..., Any] | None:
        """Return what runs a call that is not traced, or None if the call is traced.

        `refused` are the cached programs that do not accept the call.
        """
        if self._disabled:
            return self.run
        stats = self._stats
        if not self.must_compile:
            if stats.eager is None:
                self._stop_at_limits(refused)
            if self._uncacheable_traces >= MAX_UNCACHEABLE_TRACES and stats.per_module is None and stats.eager is None:
                self.give_up_compiling(f"{stats.uncacheable}, at every call", self._uncacheable_line)
            if stats.eager is not None:
                return self.run
        mode = mode_around()
        if mode is not None:
            self._note_mode(*mode)
            return self.run
        if is_profiled() and not self.must_compile:
            stats.uncacheable = PROFILED
            self._warn(PROFILED, None)
            return self.run
        if stats.per_module is not None:
            return self._run_by_modules
        if isinstance(self._fn, torch.nn.Module) and _is_lazy(self._fn):
            stats.uncacheable = "its first call creates its parameters"
            stats.fell_back(stats.uncacheable)
            return self.run
        return None

    def _note_mode(self, mode: str, way_out: str) -> None:
        """Record that a call runs eagerly under a mode that intercepts the program's calls of torch."""
        reason = f"{mode}, which must intercept the program's calls of torch"
        if self._options.sharp_edges == "error" or self.must_compile:
            raise TracingError(f"{self._stats.name} cannot be compiled: {reason}. {way_out}")
        self._stats.uncacheable = reason
        self._stats.fell_back(reason)

    def _stop_at_limits(self, refused: Sequence[Refusal]) -> None:
        """Compile no more programs if the number of programs or the time for compilations has reached its limit."""
        most, seconds = self._options.max_compile_time, self._stats.compile_time
        if len(refused) >= self._options.max_programs:
            self._compile_no_more(f"{_are_cached(len(refused))}, and their guards refuse this call ({refused[0]})")
        elif most is not None and seconds >= most:
            self._compile_no_more(f"compilations have taken {seconds:.3g} s, and max_compile_time is {most:g}")

    def stop_at_full_cache(self, where: SourceLine | None) -> None:
        """Compile no more programs because none of the cached paths accepts a call, and the cache is full."""
        if self._stats.eager is None:
            cached = _are_cached(self._options.max_programs)
            self._compile_no_more(f"{cached}, and a branch has another answer in this call{at_line(where)}")

    def _compile_no_more(self, reason: str) -> None:
        self._stats.eager = reason
        self._stats.fell_back(reason, scope="function")
        if self._options.sharp_edges == "allow":
            return
        warnings.warn(
            f"{self._stats.name} falls back to eager if no cached program accepts a call: {reason}. Pass the changing "
            "value as a tensor, or clear the cache with thunder.reset()",
            FallbackWarning,
            stacklevel=_stacklevel_of_user(),
        )

    def run_replaced(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call eagerly because `name`, a function of torch, has been replaced.

        Operations mean torch's own functions, and torch's own code may call the replacement inside of them.
        """
        reason = f"{name} has been replaced"
        if self._options.sharp_edges == "error" or self.must_compile:
            raise TracingError(f"{self._stats.name} cannot be compiled: {reason}. Put the function back")
        self._stats.uncacheable = reason
        self._stats.fell_back(reason)
        self._warn(reason, None)
        return self.run(args, kwargs)

    # -- compiled programs that fail ----------------------------------------------------------------------------------
    def call(
        self,
        specialization: Specialization,
        inputs: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        decided: int = 0,
    ) -> Any:
        """Run a specialization on its prologue's result. The first `decided` answers of its path are known."""
        try:
            with imposed(decided) if decided else contextlib.nullcontext():
                return specialization.call(inputs)
        except OtherPath:
            raise
        except Exception as error:
            failure = self.failure(error)
        return self.run_failed(failure, args, kwargs)

    def failure(self, error: Exception) -> Failure:
        """Return the failure of a compiled program, or raise `error` if the call cannot run eagerly instead."""
        if (
            self._options.sharp_edges == "error"
            or self.must_compile
            or stays_an_error(error)
            or not failed_before_effects(error)
        ):
            raise error
        where = find_source(error.__traceback__)
        release_frames(error)
        return Failure(error, where)

    def run_failed(self, failure: Failure, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call whose compiled program raised an error before it had any effect.

        Eager mode makes the program's effects up to its error, or the program handles the error.
        """
        result = self.run(args, kwargs)
        error, where = failure
        reason = f"the compiled program raised {type(error).__name__}, but eager mode did not ({error})"
        if os.environ.get("THUNDER_STRICT", "0") != "0":
            raise TracingError(f"{self._stats.name}: {reason}{at_line(where, reason)}") from error
        self._stats.fell_back(reason, where)
        self._warn(reason, where)
        return result

    # -- traces that serve one call -----------------------------------------------------------------------------------
    def traced(self, uncacheable: str | None, where: SourceLine | None) -> None:
        """Record a trace, and the reason if it cannot be cached."""
        self._stats.uncacheable = uncacheable
        self._uncacheable_line = where
        self._postponed = 0
        self._uncacheable_traces = 0 if uncacheable is None else self._uncacheable_traces + 1

    def check_is_cacheable(self) -> None:
        """Raise an error if the trace of a call cannot be cached, with `sharp_edges="error"`."""
        uncacheable = self._stats.uncacheable
        if uncacheable is not None and self._options.sharp_edges == "error":
            raise TracingError(f"{self._stats.name} cannot be cached: {uncacheable}{at_line(self._uncacheable_line)}")

    # -- traces that were given up ------------------------------------------------------------------------------------
    def reason(self, error: BaseException) -> RunsEagerly:
        """Return the reason to run a call eagerly whose trace has ended. Raise an error if that is not possible."""
        ended = reason_to_run_eagerly(error)
        ended.where = ended.where or find_source(error.__traceback__)
        if self.must_compile:
            if ended.error is not None:
                raise ended.error
            raise TracingError(
                f"{self._stats.name} is transformed as a whole, but {ended}. Move that call out of the function"
            ) from None
        if isinstance(ended, CompiledLater):
            return ended
        if self._options.sharp_edges == "error" and not ended.is_programs:
            if ended.error is not None:
                raise ended.error
            raise self._cannot_be_compiled(ended) from None
        if not ended.is_programs:
            release_frames(error)
        return ended

    def run_untraced(self, ended: RunsEagerly, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
        state.replaces_trace, before = True, state.replaces_trace
        try:
            result = self._run_by_modules(args, kwargs)
        except Exception as error:
            if ended.is_programs or not (self._is_transform or isinstance(error, OnlyInTracesError)):
                raise
            self._stats.eager = None  # eager mode cannot replace the trace
            raise ended.error or self._cannot_be_compiled(ended) from error
        finally:
            state.replaces_trace = before
        self._uncacheable_traces += 1
        self._uncacheable_line = ended.where
        if ended.error is not None:
            self._stats.error = f"{type(ended.error).__name__}: {ended.error}"
        if ended.is_programs:
            self._report_defect(ended)
        elif not (isinstance(ended, ModuleFallback) and ended.asked):
            self._warn(f"{ended}", ended.where)
        release_frames(ended.error)
        return result

    def run_for_now(self, ended: CompiledLater, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call eagerly whose program may be compiled in a later call."""
        self._postponed += 1
        if self._postponed > ended.most:
            return self.run_untraced(ModuleFallback(f"{ended}, in {self._postponed} calls in a row"), args, kwargs)
        self._stats.cache_misses -= 1
        self._stats.fell_back(f"{ended}", ended.where)
        if self._options.check_ranks:
            stop_comparing_order()
        agree_on_eager_call(self.function, f"{ended}", always=False, may_merge=False)
        return self.run_inside_transforms(_with_transforms_of_torch(self._fn), args, kwargs)

    def _cannot_be_compiled(self, ended: RunsEagerly) -> TracingError:
        where = at_line(ended.where, str(ended))
        return TracingError(f"{self._stats.name} cannot be compiled: {ended}{where}")

    def _report_defect(self, ended: RunsEagerly) -> None:
        """Report an error that ended a trace although eager mode does not raise it."""
        if self._options.sharp_edges == "error" or os.environ.get("THUNDER_STRICT", "0") != "0":
            raise TracingError(
                f"tracing {self._stats.name} raised an error that eager mode does not raise: {ended}. "
                "THUNDER_TRACEBACK=full shows where"
            ) from ended.error
        self._warn(
            f"tracing raised an error that eager mode does not raise ({ended}). If the program does not raise it at "
            "random, this is a defect of thunder: please report it. THUNDER_STRICT=1 raises the error",
            ended.where,
        )

    def give_up_compiling(self, reason: str, where: SourceLine | None) -> None:
        """Run the function eagerly from now on although it can be traced, and warn."""
        if self._options.sharp_edges == "error":
            raise TracingError(f"{self._stats.name} cannot be compiled as a whole: {reason}")
        self._stop_tracing(reason, where)
        self._warn(reason, where)

    def _stop_tracing(self, reason: str, where: SourceLine | None) -> None:
        """Run the function eagerly from now on, and compile the modules that it calls one by one."""
        if self._autograd and not self._is_transform:
            self._stats.partly_eager, self._stats.eager = reason, None
            self._stats.per_module = PerModule(self)
            self._stats.fell_back(reason, where, scope="modules")
        else:
            self._stats.eager = reason
            self._stats.fell_back(reason, where, scope="function")

    def _warn(self, reason: str, where: SourceLine | None) -> None:
        """Warn that the function is not compiled, once, and not for a reason that the calling function has given."""
        if self._warned or reason in self._reasons or self._options.sharp_edges == "allow":
            return
        self._warned = True
        self._reasons.add(reason)
        modules = ", and the modules that it calls are compiled one by one" if self._stats.per_module else ""
        message = f"{self._stats.name} runs eagerly{modules}: {reason}{at_line(where, reason)}"
        message += "\n  " if "\n" in reason else ". "  # the errors of thunder end with the line
        message += 'Move this code out of the jitted function, or accept this with sharp_edges="allow"'
        warnings.warn(message, FallbackWarning, stacklevel=_stacklevel_of_user())


def _are_cached(programs: int) -> str:
    return f"{counted(programs, 'program')} {'is' if programs == 1 else 'are'} cached"


def at_line(where: SourceLine | None, reason: str = "") -> str:
    """Return the line that needs something, for a message, unless the reason already contains the line."""
    return "" if where is None or f"{where}" in reason else f" (at {where})"


def _stacklevel_of_user() -> int:
    """Return the `stacklevel` of a warning at the line of user code that calls a jitted function."""
    frame: types.FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def _is_transform(fn: Callable[..., Any]) -> bool:
    return isinstance(fn, functools.partial) and fn.func in TRANSFORMS_OF_TORCH


def _with_transforms_of_torch(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that computes the same as `fn` in eager mode."""
    if not _is_transform(fn):
        return fn
    transformed, *how = fn.args  # type: ignore[attr-defined]
    return TRANSFORMS_OF_TORCH[fn.func](_with_transforms_of_torch(transformed), *how)  # type: ignore[attr-defined]


def _is_lazy(module: torch.nn.Module) -> bool:
    """Check whether a module has parameters or buffers that its first call initializes."""
    return any(map(torch.nn.parameter.is_lazy, (*module.parameters(), *module.buffers())))
