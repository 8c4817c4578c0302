# SPDX-License-Identifier: Apache-2.0
"""The callables that `thunder.jit` and the older `thunder.compile` return: they find the program of a call and run it.

`compiler.py` runs the calls that have no program. It is loaded with the first one, so that neither the tracer, the
languages, the passes nor executors are loaded if programs come from somewhere else.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import torch

from thunder.core.locations import name_in_module
from thunder.core.state import registrations, state
from thunder.core.tracebacks import present
from thunder.frontend.cache import NOT_FOR_THIS_CALL, Cache, Refusal
from thunder.frontend.environment import is_disabled, read_environment
from thunder.frontend.options import Options
from thunder.frontend.saved_programs import SavedPrograms
from thunder.frontend.specialization import Specialization
from thunder.frontend.stats import CompileStats
from thunder.runtime.decisions import OtherPath
from thunder.runtime.lock import runs, tracing_lock
from thunder.runtime.torch_originals import originals_restored
from thunder.runtime.torch_private import fx_is_tracing, hidden_from_dynamo, jit_tracing_state

if TYPE_CHECKING:
    from thunder.core.trace import Trace
    from thunder.transforms.base import Transform

__all__ = ["CompileStats", "JitFunction", "jitted_of", "statistics"]

# The number of times that a call is looked up between the traces of other threads, before it keeps these from starting.
MAX_LOOKUPS = 8

_COMPILER = "thunder.frontend.compiler"

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
        self._disabled = is_disabled() and not self._must_compile
        if self._disabled:
            self._stats.eager = "THUNDER_DISABLE is set"
        self.saved = SavedPrograms(fn, options, self._transforms, self._stats.events, autograd=autograd)
        self._loaded_compiler: Any = None
        self.module: Callable[[], torch.nn.Module | None] = lambda: None  # the jitted module that runs this program
        if not isinstance(fn, torch.nn.Module):
            functools.update_wrapper(self, fn, updated=())

    @hidden_from_dynamo
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            if state.frontend is not None:
                return self._compiler.inline(args, kwargs)  # called by a program that is being traced
            if jit_tracing_state() is not None and not self._must_compile:
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
                        left: OtherPath | None = reason
                    except Exception as error:
                        left, failed = None, self._eager_calls.failure(error)
                    if left is None:
                        return self._eager_calls.run_failed(failed, args, kwargs)
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
            left: OtherPath | None = reason
        except Exception as error:
            left, failure = None, self._eager_calls.failure(error)
        if left is None:
            return self._eager_calls.run_failed(failure, args, kwargs)
        return self._start_again(args, kwargs, specialization, left)

    def _start_again(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], specialization: Specialization, left: OtherPath
    ) -> Any:
        """Run a call on another path than `specialization`, in which a decision has another answer in this call."""
        return self._compiler.restarts.run(args, kwargs, specialization, left, find=self._find, trace=self._first_call)

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
        found = self._saved_program(args, kwargs, kept, observed)
        if found is not None:
            return self._hit(found, args, kwargs)
        return self._compiler.run(args, kwargs, refused, kept, observed, hit=self._hit)

    def _saved_program(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], kept: int, observed: Sequence[Any]
    ) -> tuple[Specialization, Any] | None:
        """Look a call up among the saved programs, and add the program that accepts it to the cache."""
        saved, stats = self.saved, self._stats
        if not saved.is_on or self._disabled or stats.eager is not None or stats.per_module is not None:
            return None
        with tracing_lock, stats.events.active():
            if self._cache.kept != kept:  # another thread has compiled meanwhile
                return None
            found = saved.find(args, kwargs, observed)
            if found is not None:
                self._cache.keep(found[0], args, kwargs)
                stats.saved_hits += 1
        return found

    @property
    def _extra_state(self) -> dict[str, Any]:
        """State of executors that persists between calls: dicts of tensors, by executor."""
        return self._kept

    @_extra_state.setter
    def _extra_state(self, state: dict[str, Any]) -> None:
        # Imported by name at run time: few programs have such a state.
        importlib.import_module("thunder.extend.compile_state").put(state, self._kept)

    # -- calls without a program --------------------------------------------------------------------------------------
    @property
    def _compiler(self) -> Any:
        """The `Compiler` of this function."""
        if self._loaded_compiler is None:
            # A fork waits for this lock. A child would wait forever for an import of a thread that it does not have.
            with tracing_lock:
                with contextlib.nullcontext() if _COMPILER in sys.modules else originals_restored():
                    # Imported by name at run time: it is not needed if all programs are found.
                    compiler = importlib.import_module(_COMPILER)
                if self._loaded_compiler is None:  # another thread may have done the same
                    self._loaded_compiler = compiler.Compiler(self)
        return self._loaded_compiler

    @property
    def compilation(self) -> Any:
        """The context of compilations: the options and the state of executors, and the choices of measurements."""
        return self._compiler.compilation

    @property
    def _eager_calls(self) -> Any:
        """The `EagerCalls` of this function."""
        return self._compiler.eager_calls

    @property
    def _must_compile(self) -> bool:
        """Whether eager mode would compute other results, because a transform changes them."""
        return any(t.is_needed for t in self._transforms)

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
        if self._loaded_compiler is not None:
            self._loaded_compiler.eager_calls.reset()

    def with_transform(self, transform: Transform | Callable[..., Trace]) -> JitFunction[..., Any]:
        """Return a jitted callable that also applies `transform`, and whose program autograd does not differentiate.

        Each argument is a separate input, even if the same tensor is passed for several arguments.
        """
        # Imported by name at run time: without transforms, nothing of them is loaded.
        further = importlib.import_module("thunder.transforms.base").as_transforms([transform])
        return JitFunction(
            self._fn,
            self._options,
            transforms=(*self._transforms, *further),
            autograd=False,
            extra_state=self._extra_state,
        )

    def __repr__(self) -> str:
        return f"thunder.jit({getattr(self._fn, '__qualname__', type(self._fn).__name__)})"


def jitted_of(fn: Any) -> Any:
    """Return the `JitFunction` of a jitted module or callable, else `fn`."""
    return getattr(fn, "_thunder_jitted", fn)


def _rebuild(fn: Any, options: Options, transforms: Any, autograd: bool, extra_state: Any = None) -> JitFunction:
    return JitFunction(fn, options, transforms=transforms, autograd=autograd, extra_state=extra_state)


def statistics(fn: Any) -> CompileStats:
    """Return the statistics of a jitted callable."""
    stats = getattr(jitted_of(fn), "_stats", None)
    if not isinstance(stats, CompileStats):
        raise TypeError(f"{fn!r} is not a jitted function or module. Pass the object that thunder.jit returned")
    return stats
