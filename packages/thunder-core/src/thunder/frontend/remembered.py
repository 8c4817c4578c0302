# SPDX-License-Identifier: Apache-2.0
"""Functions that remember what they have given (`functools.lru_cache`), called by a program that is traced.

Such a function is not a part of the program. It is called as in eager, now and by the prologue of each call: what it
gives is an input of the program where it is a tensor, and guarded where it is anything else. Only where it is given a
tensor of the program does its Python become a part of that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from thunder.core import pytree
from thunder.core.numbers import specialized
from thunder.core.state import state
from thunder.frontend import kinds
from thunder.frontend.handle import Handle
from thunder.frontend.hooks import Paused
from thunder.frontend.places import Place

if TYPE_CHECKING:
    from thunder.frontend.values import Values

__all__ = ["remembering"]


def remembering(recorder: Values, place: Place, remembered: Any) -> Callable[..., Any]:
    """What stands for a function that remembers, found at a place."""

    @functools.wraps(remembered)
    def call(*args: Any, **kwargs: Any) -> Any:
        tracer: Any = state.frontend
        if tracer is None:
            return remembered(*args, **kwargs)
        args, kwargs = specialized(args), specialized(kwargs)
        if any(isinstance(x, Handle) for x in pytree.tree_leaves((args, kwargs))):
            return remembered.__wrapped__(*args, **kwargs)
        with Paused():
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


def _record(
    recorder: Values, place: Place, remembered: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Guards what a call has given, where the call can be written down."""
    written = _written(args, kwargs)
    step = f"{{}}({written})"
    if written is None and args and id(args[0]) in recorder.reached:  # a method
        written = _written(args[1:], kwargs)
        place, step = recorder.reached[id(args[0])].place, f"{{}}.{remembered.__name__}({written})"
    if written is None:
        recorder._refuse(f"{place} remembers what it was given, which no guard can give it again")
        return
    inner = place.to(step, remembered.__name__)
    inner.title = step.replace("{}", str(place))
    if not isinstance(result, torch.Tensor) or not kinds.is_handle(result):
        recorder.value(inner, result)


def _written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The arguments of a call as Python; None where they are not all of the simplest kinds."""
    if not all(kinds.is_literal(x) or type(x) is float for x in (*args, *kwargs.values())):
        return None
    return ", ".join([*map(repr, args), *[f"{name}={x!r}" for name, x in kwargs.items()]])
