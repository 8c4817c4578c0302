# SPDX-License-Identifier: Apache-2.0
"""The public functions of thunder, as `import thunder` offers them."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

import thunder.executors.built_in  # noqa: F401  (registers the built-in executors)
from thunder.core.trace import Trace
from thunder.extend import Executor
from thunder.frontend.jit import CompileStats, JitFunction, compile_function, statistics, trace
from thunder.frontend.module import ThunderModule
from thunder.frontend.options import Options
from thunder.torch.private import SCRIPTED
from thunder.transforms.base import Transform, as_transforms

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

_jitted: weakref.WeakSet[JitFunction] = weakref.WeakSet()


def jit(
    fn: Callable[..., Any] | torch.nn.Module | None = None,
    *,
    executors: Sequence[Executor | str] | None = None,
    transforms: Sequence[Any] = (),
    cache: str = "constant values",
    sharp_edges: str = "allow",
    remat: str = "auto",
    **options: Any,
) -> Any:
    """Compiles a function or module: each call runs a program made for its kind of arguments.

    `executors` are asked in order who runs each operation, torch last; None takes the installed ones. `transforms` are
    objects with hooks for the stages of compilation (`thunder.Transform`; `thunder.transforms` has some), or functions
    `(trace, executors) -> trace`. `cache` says when a program is used again: "constant values" where sizes and numbers
    are what they were, which become inputs when they have changed twice; "symbolic values" for all sizes of argument
    tensors and all numbers among the arguments; "same input" always, as the caller promises; "no caching" never.
    `remat` says what the backward program computes again instead of keeping it: "auto" what costs no time, "none"
    nothing, "all" every elementwise operation. Further options are those that the executors declare. Also a decorator,
    with or without arguments.
    """
    if fn is None:
        return lambda f: jit(
            f, executors=executors, transforms=transforms, cache=cache, sharp_edges=sharp_edges, remat=remat, **options
        )
    if not callable(fn):
        raise TypeError(f"thunder.jit takes a function or a module, not {type(fn).__name__}: {fn!r}")
    _check_kind(fn)
    _check_options(options)
    chosen = Options(executors=executors, cache=cache, sharp_edges=sharp_edges, remat=remat, extra=options)
    transforms = as_transforms(transforms)
    before: tuple[Transform, ...] = ()
    autograd = True
    if isinstance(fn, (JitFunction, ThunderModule)):
        if (executors, transforms, cache, sharp_edges, remat, options) == (
            None, (), "constant values", "allow", "auto", {},
        ):  # fmt: skip
            return fn
        known: JitFunction = fn.__dict__["_jitted"] if isinstance(fn, ThunderModule) else fn
        before, autograd, fn = known._transforms, known._autograd, known._fn  # what it computes stays
    if any(t.changes_module for t in transforms):
        fn = _with_changed_module(fn, transforms)
    jitted = JitFunction(fn, chosen, transforms=(*before, *transforms), autograd=autograd)
    _jitted.add(jitted)
    return ThunderModule(fn, jitted) if isinstance(fn, torch.nn.Module) else jitted


def _check_kind(fn: Any) -> None:
    """Refuses callables whose call does not run their Python."""
    if isinstance(fn, (torch.jit.ScriptModule, *SCRIPTED)):
        raise TypeError(f"{fn!r:.80} is compiled by torch.jit: give thunder.jit the Python that it was made of")
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(f"{fn!r:.80} is async, so calling it runs nothing yet: give thunder.jit what it calls")


def _with_changed_module(fn: Any, transforms: Sequence[Transform]) -> torch.nn.Module:
    changing = [t for t in transforms if t.changes_module]
    if not isinstance(fn, torch.nn.Module):
        raise TypeError(
            f"{changing[0].name} changes modules, and {fn!r:.80} is none: give thunder.jit the module itself"
        )
    from thunder.transforms.modules import transformed_module

    return transformed_module(fn, changing)


def _check_options(options: dict[str, Any]) -> None:
    if options:
        from thunder.plugins import check_options

        check_options(options, others=("executors", "transforms", "cache", "sharp_edges", "remat"))


def compile(fn: Callable[..., Any], *, executors_list: Sequence[Executor | str] | None = None) -> JitFunction:
    """As `jit`, with exactly the executors listed (torch does not end the list) and traces that keep its name."""
    jitted = compile_function(fn, executors_list=executors_list)
    _jitted.add(jitted)
    return jitted


def last_traces(fn: Any) -> list[Trace]:
    """The traces of the last call's computation, from the acquired one to the one that ran."""
    return statistics(fn).last_traces


def last_prologue_traces(fn: Any) -> list[Trace]:
    """The traces of the last call's prologue; none when it was not cacheable."""
    return statistics(fn).last_prologue_traces


def last_backward_traces(fn: Any) -> list[Trace]:
    """The traces of the last call's backward program; none when nothing required grad."""
    return statistics(fn).last_backward_traces


def last_epilogue_traces(fn: Any) -> list[Trace]:
    """The traces of the last call's epilogue, which makes its effects; none where there were none."""
    return statistics(fn).last_epilogue_traces


def explain(fn: Any) -> str:
    """Why the last call of a jitted callable that traced had to, and what cannot be cached."""
    return statistics(fn).explain()


def compile_stats(fn: Any) -> CompileStats:
    """What a jitted callable has done so far."""
    return statistics(fn)


def cache_hits(fn: Any) -> int:
    """How many calls were answered by a program that was there."""
    return statistics(fn).cache_hits


def cache_misses(fn: Any) -> int:
    """How many calls had to trace and compile."""
    return statistics(fn).cache_misses


def reset() -> None:
    """Forgets every compiled program of every jitted callable."""
    for jitted in list(_jitted):
        jitted.reset()
