# SPDX-License-Identifier: Apache-2.0
"""The public functions of the package `thunder`."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

import torch

from thunder.frontend.jit import JitFunction, jitted_of, statistics
from thunder.frontend.module import ThunderModule, jitted_module
from thunder.frontend.options import (
    BUCKET_BYTES,
    MAX_SPECIALIZATIONS,
    Bucketing,
    CacheOption,
    CUDAGraphs,
    KeptParameters,
    Measured,
    Options,
    Remat,
    SharpEdges,
    translate_torch_compile,
)
from thunder.frontend.stats import CompileStats
from thunder.runtime.torch_private import SCRIPTED

if TYPE_CHECKING:
    from thunder.core.trace import Trace
    from thunder.extend import Executor
    from thunder.transforms.base import Transform

    TransformLike = Transform | Callable[..., Trace]

__all__ = [
    "cache_hits",
    "cache_misses",
    "compile",
    "compile_stats",
    "explain",
    "jit",
    "last_backward_traces",
    "last_epilogue_traces",
    "last_prologue_traces",
    "last_traces",
    "reset",
    "trace",
]

P = ParamSpec("P")
R = TypeVar("R")
Module = TypeVar("Module", bound=torch.nn.Module)

_jitted: weakref.WeakSet[JitFunction[..., Any]] = weakref.WeakSet()


@functools.cache
def _warn_without_gil() -> None:
    """Warn once if Python runs without the GIL, on which the atomicity of single updates of dictionaries relies."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        warnings.warn(
            "this Python runs without the GIL, which thunder does not support yet: calls on several threads may return "
            "wrong results. Set PYTHON_GIL=1",
            RuntimeWarning,
            stacklevel=3,
        )


class _Decorator(Protocol):
    """The decorator that `thunder.jit(…)` returns when it is called without a function."""

    @overload
    def __call__(self, fn: Module, /) -> Module: ...  # type: ignore[overload-overlap, unused-ignore]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> JitFunction[P, R]: ...  # type: ignore[overload-cannot-match, unused-ignore]


# A module is callable, so it comes first. If torch is untyped, as for our own mypy, it matches everything.
@overload
def jit(  # type: ignore[overload-overlap, unused-ignore]
    fn: Module,
    *,
    executors: Sequence[Executor | str] | None = ...,
    transforms: Sequence[TransformLike] = ...,
    cache: CacheOption = ...,
    sharp_edges: SharpEdges = ...,
    remat: Remat = ...,
    cuda_graphs: CUDAGraphs = ...,
    max_programs: int = ...,
    max_compile_time: float | None = ...,
    save: bool | str | os.PathLike[str] | None = ...,
    measured: Measured = ...,
    check_ranks: bool | None = ...,
    bucketing: Bucketing = ...,
    bucket_bytes: int = ...,
    kept_parameters: KeptParameters = ...,
    overlap_memory: int | None = ...,
    **options: Any,
) -> Module: ...
@overload
def jit(  # type: ignore[overload-cannot-match, unused-ignore]
    fn: Callable[P, R],
    *,
    executors: Sequence[Executor | str] | None = ...,
    transforms: Sequence[TransformLike] = ...,
    cache: CacheOption = ...,
    sharp_edges: SharpEdges = ...,
    remat: Remat = ...,
    cuda_graphs: CUDAGraphs = ...,
    max_programs: int = ...,
    max_compile_time: float | None = ...,
    save: bool | str | os.PathLike[str] | None = ...,
    measured: Measured = ...,
    check_ranks: bool | None = ...,
    bucketing: Bucketing = ...,
    bucket_bytes: int = ...,
    kept_parameters: KeptParameters = ...,
    overlap_memory: int | None = ...,
    **options: Any,
) -> JitFunction[P, R]: ...
@overload
def jit(
    fn: None = None,
    *,
    executors: Sequence[Executor | str] | None = ...,
    transforms: Sequence[TransformLike] = ...,
    cache: CacheOption = ...,
    sharp_edges: SharpEdges = ...,
    remat: Remat = ...,
    cuda_graphs: CUDAGraphs = ...,
    max_programs: int = ...,
    max_compile_time: float | None = ...,
    save: bool | str | os.PathLike[str] | None = ...,
    measured: Measured = ...,
    check_ranks: bool | None = ...,
    bucketing: Bucketing = ...,
    bucket_bytes: int = ...,
    kept_parameters: KeptParameters = ...,
    overlap_memory: int | None = ...,
    **options: Any,
) -> _Decorator: ...
def jit(
    fn: Callable[..., Any] | torch.nn.Module | None = None,
    *,
    executors: Sequence[Executor | str] | None = None,
    transforms: Sequence[TransformLike] = (),
    cache: CacheOption = "constant values",
    sharp_edges: SharpEdges = "warn",
    remat: Remat = "auto",
    cuda_graphs: CUDAGraphs = "auto",
    max_programs: int = MAX_SPECIALIZATIONS,
    max_compile_time: float | None = None,
    save: bool | str | os.PathLike[str] | None = None,
    measured: Measured = False,
    check_ranks: bool | None = None,
    bucketing: Bucketing = "never",
    bucket_bytes: int = BUCKET_BYTES,
    kept_parameters: KeptParameters = 0,
    overlap_memory: int | None = None,
    **options: Any,
) -> Any:
    """Compile a function or a module.

    The first call traces the function with proxy tensors, transforms the trace and compiles it. Later calls run the
    compiled program if its guards hold; otherwise they trace again. A jitted module shares parameters, buffers and
    hooks with the original module. `jit` is also a decorator, with or without arguments.

    - `executors`: the executors to use, in this order, with PyTorch as the last. None means the installed executors.
    - `transforms`: objects with hooks for the stages of compilation (`thunder.Transform`; see `thunder.transforms`), or
      functions `(trace, executors) -> trace`.
    - `cache`: when a compiled program is used again. "constant values": if sizes and numbers are the same; sizes and
      numbers that have changed twice become inputs. "symbolic values": all sizes of argument tensors and all numbers
      among the arguments are inputs from the start. "same input": always and without checks; the caller promises that
      inputs do not change. "no caching": never.
    - `sharp_edges`: the reaction to a program that cannot be compiled or cached. "warn": run it eagerly, and warn once.
      "allow": run it eagerly without a warning. "error": raise an error with the line and ways out; `fullgraph=True`
      means the same.
    - `remat`: the values that the backward program recomputes instead of saving. "auto": values that cost no time.
      "none": no values. "all": every elementwise operation.
    - `cuda_graphs`: whether programs on a GPU are launched as CUDA graphs. "auto": where the first calls show that
      the GPU waits for the host, and memory suffices; `thunder.explain` gives the reasons. "always" or "never".
    - `max_programs`: the number of programs after which calls that no cached program accepts run eagerly.
    - `max_compile_time`: the seconds that all compilations together may take. After that, calls that no cached program
      accepts run eagerly. A compilation that has started is finished. None means that there is no limit.
    - `save`: whether compiled programs are saved, and read by other processes. True: in the user's cache directory, or
      the one in the environment variable `THUNDER_CACHE_DIR`. A path: in this directory. None: programs whose
      compilation took at least a second. False, or `THUNDER_CACHE=0`: never.
    - `measured`: whether measurements on this machine choose between kernels, where executors ask for them. False:
      rules choose. True: what was measured earlier is used; the rest is measured before the third call, and used by
      later processes. "first call": the rest is measured during compilation, and used at once. A process never changes
      its choice, and `thunder.explain` lists the choices with their times.
    - `check_ranks`: whether ranks of torch.distributed compare their collectives, at the first call and when each of
      them starts; a difference is an error that names the lines. None means that the environment variable
      `THUNDER_CHECK_RANKS=1` decides.
    - `bucketing`: whether collectives of torch.distributed that the program runs one by one are merged: "never",
      "exact" (where the results keep all bits) or "any".
    - `bucket_bytes`: the largest size of merged collectives. They are smaller where the predicted peak of memory would
      grow by more than `overlap_memory`.
    - `kept_parameters`: the bytes of gathered parameters (`fully_shard`) that the program keeps from forward to
      backward, although torch would reshard and gather them again. Units whose forward is last come first. "auto" means
      the size of the largest unit.
    - `overlap_memory`: the bytes that merged collectives, and then collectives in flight, may add to the predicted peak
      of memory. None means the size of the largest collective, and at least 32 MiB.
    - `fullgraph`, `dynamic`: names of `torch.compile`. `fullgraph=True` is `sharp_edges="error"`; `dynamic=True` is
      `cache="symbolic values"`, and `dynamic=False` or None the default.
    - Executors declare further options.
    """
    if fn is None:
        return functools.partial(
            jit,
            executors=executors,
            transforms=transforms,
            cache=cache,
            sharp_edges=sharp_edges,
            remat=remat,
            cuda_graphs=cuda_graphs,
            max_programs=max_programs,
            max_compile_time=max_compile_time,
            save=save,
            measured=measured,
            check_ranks=check_ranks,
            bucketing=bucketing,
            bucket_bytes=bucket_bytes,
            kept_parameters=kept_parameters,
            overlap_memory=overlap_memory,
            **options,
        )
    if not callable(fn):
        raise TypeError(f"thunder.jit expects a function or a module, not {type(fn).__name__}: {fn!r}")
    _check_kind(fn)
    _warn_without_gil()
    cache, sharp_edges = translate_torch_compile(options, cache, sharp_edges)  # type: ignore[assignment]
    _check_options(options)
    chosen = Options(
        executors=executors, cache=cache, sharp_edges=sharp_edges, remat=remat, cuda_graphs=cuda_graphs,
        max_programs=max_programs, max_compile_time=max_compile_time, save=save, measured=measured,
        check_ranks=check_ranks, bucketing=bucketing, bucket_bytes=bucket_bytes, kept_parameters=kept_parameters,
        overlap_memory=overlap_memory, extra=options,
    )  # fmt: skip
    transforms = _as_transforms(transforms)
    before: tuple[Transform, ...] = ()
    autograd = True
    if isinstance(fn, (JitFunction, ThunderModule)):
        given = executors, transforms, cache, sharp_edges, remat, cuda_graphs, max_programs, max_compile_time, measured
        communication = check_ranks, bucketing, bucket_bytes, kept_parameters, overlap_memory
        if (*given, save, *communication, options) == (
            None, (), "constant values", "warn", "auto", "auto", MAX_SPECIALIZATIONS, None, False, None,
            None, "never", BUCKET_BYTES, 0, None, {},
        ):  # fmt: skip
            return fn
        known: JitFunction[..., Any] = jitted_of(fn)
        before, autograd, fn = known._transforms, known._autograd, known._fn  # keeps its transforms
    if any(t.changes_module for t in transforms):
        fn = _with_changed_module(fn, transforms)
    jitted = JitFunction(fn, chosen, transforms=(*before, *transforms), autograd=autograd)
    _jitted.add(jitted)
    return jitted_module(fn, jitted) if isinstance(fn, torch.nn.Module) else jitted


def _check_kind(fn: Any) -> None:
    """Reject callables that do not run Python when they are called, and classes of modules."""
    if isinstance(fn, type) and issubclass(fn, torch.nn.Module):
        raise TypeError(
            f"thunder.jit expects a module, not the class {fn.__qualname__}: pass an instance, e.g. "
            f"thunder.jit({fn.__name__}(…)). To compile all instances, decorate the method `forward` of the class"
        )
    if isinstance(fn, (torch.jit.ScriptModule, *SCRIPTED)):
        raise TypeError(f"{fn!r:.80} is compiled by torch.jit: pass the original Python function to thunder.jit")
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(f"{fn!r:.80} is async, so a call only creates a coroutine: pass a function without async")


def _as_transforms(transforms: Any) -> tuple[Transform, ...]:
    """Check the transforms and return them as a tuple."""
    if isinstance(transforms, (tuple, list)) and not transforms:
        return ()
    # Imported by name at run time: without transforms, nothing of them is loaded.
    return importlib.import_module("thunder.transforms.base").as_transforms(transforms)  # type: ignore[no-any-return]


def _with_changed_module(fn: Any, transforms: Sequence[Transform]) -> torch.nn.Module:
    changing = [t for t in transforms if t.changes_module]
    if not isinstance(fn, torch.nn.Module):
        raise TypeError(
            f"{changing[0].name} changes modules, but {fn!r:.80} is not a module: pass the module to thunder.jit"
        )
    # Imported by name at run time, for the same reason.
    return importlib.import_module("thunder.transforms.modules").transformed_module(fn, changing)


OPTIONS = (
    "executors", "transforms", "cache", "sharp_edges", "remat", "cuda_graphs", "max_programs", "max_compile_time",
    "save", "measured", "check_ranks", "bucketing", "bucket_bytes", "kept_parameters", "overlap_memory",
)  # fmt: skip


def _check_options(options: dict[str, Any]) -> None:
    if options:
        # Imported by name at run time: without options of executors, no plugin is discovered.
        importlib.import_module("thunder.plugins").check_options(options, others=OPTIONS)


def compile(fn: Callable[P, R], *, executors_list: Sequence[Executor | str] | None = None) -> JitFunction[P, R]:
    """Compile a function like `jit`, with exactly the listed executors. Its trace keeps the function's name."""
    # Imported by name at run time, like all of the compiler.
    jitted: JitFunction[P, R] = importlib.import_module("thunder.frontend.compiler").compile_function(
        fn, executors_list=executors_list
    )
    _jitted.add(jitted)
    return jitted


def trace() -> Callable[..., Trace]:
    """Return the function that traces: `thunder.trace()(fn, *args, **kwargs)` returns the trace before claiming."""

    def run(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Trace:
        # Imported by name at run time, like all of the compiler.
        compiler = importlib.import_module("thunder.frontend.compiler")
        return compiler.trace_function(fn, args, kwargs)  # type: ignore[no-any-return]

    return run


def last_traces(fn: Any) -> list[Trace]:
    """Return the traces of the last call, from the captured trace to the trace that ran."""
    return statistics(fn).last_traces


def last_prologue_traces(fn: Any) -> list[Trace]:
    """Return the traces of the last call's prologue, which checks the guards.

    The list is empty if it is not cacheable.
    """
    return statistics(fn).last_prologue_traces


def last_backward_traces(fn: Any) -> list[Trace]:
    """Return the traces of the last call's backward program. The list is empty if nothing required grad."""
    return statistics(fn).last_backward_traces


def last_epilogue_traces(fn: Any) -> list[Trace]:
    """Return the traces of the last call's epilogue, which applies its side effects.

    The list is empty if it has none.
    """
    return statistics(fn).last_epilogue_traces


def explain(fn: Any) -> str:
    """Explain in plain English what ran how often, what was recompiled or ran eagerly and why, and what to do."""
    return statistics(fn).explain()


def compile_stats(fn: Any) -> CompileStats:
    """Return the statistics of a jitted callable."""
    return statistics(fn)


def cache_hits(fn: Any) -> int:
    """Return the number of cache hits."""
    return statistics(fn).cache_hits


def cache_misses(fn: Any) -> int:
    """Return the number of compilations."""
    return statistics(fn).cache_misses


def reset(fn: Any = None) -> None:
    """Drop the compiled programs of a jitted callable or, without an argument, of all jitted callables."""
    for jitted in list(_jitted) if fn is None else [jitted_of(fn)]:
        if not isinstance(jitted, JitFunction):
            raise TypeError(f"{fn!r:.80} is not a jitted function or module. Pass the object that thunder.jit returned")
        jitted.reset()
