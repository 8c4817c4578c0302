# SPDX-License-Identifier: Apache-2.0
"""Functions under `functools.lru_cache` that a traced program calls.

A memoized function is not traced as part of the program. The function is called as in eager mode, both while tracing
and by the prologue of each call. A tensor that it returns becomes an input of the program, and any other result is
guarded. The exception is a call with a tensor of the program: this call's Python code is traced.

If an argument is an object that the program has created, the prologue calls the function with this object again. A call
of the program with an equal object must have found a result in the function's cache, and must find it at the end of the
run, too: then the result does not depend on the identity of the object, and the program has not changed the object.
"""

from __future__ import annotations

import enum
import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from thunder.capture.base.phase import TracerPhase
from thunder.capture.base.sources import Call, Root, Source, is_literal
from thunder.capture.reads.kinds.base import Recorder
from thunder.capture.reads.kinds.leaves import PLAIN
from thunder.capture.tensors.handle import Handle, is_handle
from thunder.core import pytree
from thunder.core.errors import TracingError
from thunder.core.state import state
from thunder.core.symint.numbers import SymbolicNumber, specialized
from thunder.runtime.guards import call_memoized

__all__ = ["MEMOIZED", "CallMemoized", "memoized_stand_in"]

MEMOIZED = type(functools.lru_cache(lambda: None))


class CallMemoized(Call):
    """The result of calling a function under `functools.lru_cache`, of which the last operand is a weak reference."""

    __slots__ = ()

    def __init__(
        self, parent: Source, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], label: str, function: Root
    ):
        super().__init__(parent, args, kwargs, label)
        self.operands = (*self.operands, function)

    def code(self, start: str, *operands: str) -> str:
        """Return `call_memoized(reference(), arguments)`, so that a text shows which function is called."""
        called = super().code("", *operands)[1:-1]
        return f"{call_memoized.__name__}({operands[-1]}(){', ' if called else ''}{called})"

    def describe(self) -> str:
        """Show a call of the function."""
        return Call.code(self, str(self.parent), *map(str, self.operands))

    @property
    def helpers(self) -> dict[str, Any]:
        """The function that calls the function."""
        return {call_memoized.__name__: call_memoized}


def _call_of(source: Source, memoized: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallMemoized:
    """Return the source of the result of calling a function at `source`."""
    label = getattr(memoized, "__name__", "memoized")
    made = CallMemoized(source, args, tuple(kwargs.items()), label, Root(weakref.ref(memoized), title=label))
    key = CallMemoized, Call.code(made, "", *[str(id(x)) for x in made.operands[:-1]])
    return source._children.setdefault(key, made)  # type: ignore[return-value]


# Modules whose memoized functions compute only from sizes, so they can be traced with symbolic sizes.
_OF_NUMBERS = ("einops.einops",)


def memoized_stand_in(recorder: Recorder, source: Source, memoized: Any) -> Callable[..., Any]:
    """Return the replacement of a memoized function, found at `source`, while the program is traced."""

    @functools.wraps(memoized)
    def call(*args: Any, **kwargs: Any) -> Any:
        tracer: Any = state.frontend
        if tracer is None:
            return memoized(*args, **kwargs)
        leaves = [y for x in pytree.tree_leaves((args, kwargs)) for y in (x if type(x) is torch.Size else (x,))]
        symbolic = any(isinstance(x, SymbolicNumber) for x in leaves)
        if any(isinstance(x, Handle) for x in leaves) or (symbolic and memoized.__module__ in _OF_NUMBERS):
            return memoized.__wrapped__(*args, **kwargs)
        if symbolic:
            args, kwargs = pytree.tree_map(_as_it_is, (args, kwargs))
        with TracerPhase():
            hits = memoized.cache_info().hits
            result = memoized(*args, **kwargs)
            hit = memoized.cache_info().hits > hits
            _record(recorder, source, memoized, args, kwargs, result, hit=hit)
        return result

    for name in ("cache_info", "cache_clear", "cache_parameters"):
        setattr(call, name, getattr(memoized, name))
    return call


def _as_it_is(x: Any) -> Any:
    """Return an argument in which symbolic numbers are replaced with their values in this call."""
    return torch.Size(specialized(tuple(x))) if type(x) is torch.Size else specialized(x)


def _record(
    recorder: Recorder, source: Source, memoized: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any,
    *, hit: bool,
) -> None:  # fmt: skip
    """Guard the result of a call. If a prologue cannot repeat the call, refuse to cache the trace."""
    new: list[Any] = []
    try:
        given = tuple([_argument(recorder, x, new) for x in args])
        named = {name: _argument(recorder, x, new) for name, x in kwargs.items()}
        if new and not hit:
            raise LookupError(new)
    except LookupError:
        recorder.refuse(f"`{source}` is memoized and was called with an argument that a guard cannot reproduce")
        return
    if new:
        if recorder.symbolic is not None:  # the objects may contain symbolic numbers
            raise TracingError(f"a memoized function was called with a new {type(new[0]).__name__}")

        def check() -> None:
            if memoized(*args, **kwargs) is not result:
                recorder.refuse(f"`{source}` is memoized and was called with an object that the program changes")

        recorder.at_end(check)
    if not isinstance(result, torch.Tensor) or not is_handle(result):
        recorder.value(_call_of(source, memoized, given, named), result)


def _argument(recorder: Recorder, x: Any, new: list[Any]) -> Any:
    """Return the prologue's form of an argument: a literal, a tuple of such arguments, or the source of the value.

    Objects that the program has created are added to `new`.
    """
    if is_literal(x) or type(x) is float:
        return x
    if type(x) is tuple or type(x) is torch.Size:  # these compare as equal
        return tuple([_argument(recorder, i, new) for i in x])
    reached = recorder.reached.get(id(x))
    if reached is not None and reached.thing is x:
        return reached.source
    if PLAIN.match(type(x)) or isinstance(x, enum.Enum):
        return Root(x, repr(x))
    new.append(x)
    return Root(x, f"a {type(x).__name__}")
