# SPDX-License-Identifier: Apache-2.0
"""Functions that remember what they have given (`functools.lru_cache`), called by a program that is traced.

Such a function is not a part of the program. It is called as in eager, now and by the prologue of each call: what it
gives is an input of the program where it is a tensor, and guarded where it is anything else. Only where it is given a
tensor of the program does its Python become a part of that.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from thunder.capture.base.sources import Place
from thunder.capture.reads import classify
from thunder.capture.reads.hooks import RecordingPaused
from thunder.capture.tensors.handle import Handle
from thunder.core import pytree
from thunder.core.state import state
from thunder.core.symint.numbers import SymbolicNumber, specialized

if TYPE_CHECKING:
    from thunder.capture.reads.values import Values

__all__ = ["remembering"]


# Where functions remember what they compute of sizes and of nothing else, so that symbolic ones may be computed with.
_OF_NUMBERS = ("einops.einops",)


def remembering(recorder: Values, place: Place, remembered: Any) -> Callable[..., Any]:
    """What stands for a function that remembers, found at a place."""

    @functools.wraps(remembered)
    def call(*args: Any, **kwargs: Any) -> Any:
        tracer: Any = state.frontend
        if tracer is None:
            return remembered(*args, **kwargs)
        leaves = [y for x in pytree.tree_leaves((args, kwargs)) for y in (x if type(x) is torch.Size else (x,))]
        symbolic = any(isinstance(x, SymbolicNumber) for x in leaves)
        if any(isinstance(x, Handle) for x in leaves) or (symbolic and remembered.__module__ in _OF_NUMBERS):
            return remembered.__wrapped__(*args, **kwargs)
        if symbolic:
            args, kwargs = pytree.tree_map(_as_it_is, (args, kwargs))
        with RecordingPaused():
            before, state.frontend = state.frontend, None
            try:
                result = remembered(*args, **kwargs)
            finally:
                state.frontend = before
            _record(recorder, place, remembered, args, kwargs, result)
        return result

    for name in ("cache_info", "cache_clear", "cache_parameters"):
        setattr(call, name, getattr(remembered, name))
    return call


def _as_it_is(x: Any) -> Any:
    """An argument with the symbolic numbers in it as they are in this call."""
    return torch.Size(specialized(tuple(x))) if type(x) is torch.Size else specialized(x)


def _record(
    recorder: Values, place: Place, remembered: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Guards what a call has given, where the call can be written down."""
    others: list[Place] = []
    try:
        given = [_written(recorder, x, others) for x in args]
        given += [f"{name}={_written(recorder, x, others)}" for name, x in kwargs.items()]
    except LookupError:
        recorder._refuse(f"{place} remembers what it was given, which no guard can give it again")
        return
    inner = place.call(", ".join(given), others, remembered.__name__)
    if not isinstance(result, torch.Tensor) or not classify.is_handle(result):
        recorder.value(inner, result)


def _written(recorder: Values, x: Any, others: list[Place]) -> str:
    """An argument as Python: what it is, or `{1}`, `{2}` for what stands in the first or second of `others`."""
    if classify.is_literal(x):
        return repr(x).replace("{", "\\x7b").replace("}", "\\x7d")  # in strings: they mean something in a step
    if type(x) is float:
        return repr(x) if math.isfinite(x) else f"float('{x}')"
    if type(x) is tuple or type(x) is torch.Size:  # which are equal
        return f"({''.join(f'{_written(recorder, i, others)}, ' for i in x)})"
    reached = recorder.reached.get(id(x))
    if reached is not None and reached.thing is x:
        others.append(reached.place)
    elif classify.kind_of(x) == "plain" or isinstance(x, enum.Enum):
        others.append(Place(x, repr(x)))
    else:
        raise LookupError(x)
    return f"{{{len(others)}}}"
