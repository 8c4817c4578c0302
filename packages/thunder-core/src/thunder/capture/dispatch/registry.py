# SPDX-License-Identifier: Apache-2.0
"""The registry of handlers, for torch functions that do not correspond to one operation.

A handler has the signature `handler(tracer, *args, **kwargs)`. If it returns `NotImplemented`, dispatch continues as if
the function had no handler (`dispatch.py`). Handlers are in the modules of this folder and of `higher_order/`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from thunder.capture.base.tracing_mode import TracingMode

__all__ = [
    "ResultRule",
    "formula_of",
    "gives",
    "gradient_formula",
    "handler_of",
    "handles",
    "handles_property",
    "methods",
    "property_handler",
    "result_of",
]

Handler = Callable[..., Any]
F = TypeVar("F", bound=Handler)


class ResultRule(NamedTuple):
    """The rule for an opaque operation: `result` returns result proxies, `draws` whether a call uses random numbers."""

    result: Callable[..., Any]
    draws: Callable[..., bool]


_HANDLERS: dict[Any, Handler] = {}
_PROPERTIES: dict[tuple[str, bool], Handler] = {}
_RESULTS: dict[Any, ResultRule] = {}
_FORMULAS: dict[Any, Callable[..., Any]] = {}


def methods(*names: str) -> list[Any]:
    """Return the methods of `torch.Tensor` with these names. Names that this torch version lacks are skipped."""
    return [getattr(torch.Tensor, name) for name in names if hasattr(torch.Tensor, name)]


def handles(*functions: Any, traced: bool = False) -> Callable[[F], F]:
    """Register the decorated function as the handler of torch functions.

    With `traced`, all torch calls in the handler are traced, even calls with real tensors or without tensors.
    """

    def register(handler: F) -> F:
        for fn in functions:
            _HANDLERS[fn] = _traced(handler) if traced else handler
        return handler

    return register


def _traced(handler: Handler) -> Handler:
    @functools.wraps(handler)
    def call(*args: Any, **kwargs: Any) -> Any:
        with TracingMode():
            return handler(*args, **kwargs)

    return call


def handles_property(name: str, *, assigned: bool = False) -> Callable[[F], F]:
    """Register the decorated function as the handler for reading a tensor property, or with `assigned` for writing."""

    def register(handler: F) -> F:
        _PROPERTIES[name, assigned] = handler
        return handler

    return register


def _never(*args: Any, **kwargs: Any) -> bool:
    return False


def gives(*functions: Any, draws: Callable[..., bool] = _never) -> Callable[[F], F]:
    """Register the decorated function as the result rule of torch functions that fake tensors do not support well.

    The rule receives the arguments of a call as proxies and returns proxies of the results. `draws` receives the same
    arguments and returns whether the call draws random numbers.
    """

    def register(rule: F) -> F:
        for fn in functions:
            _RESULTS[fn] = ResultRule(rule, draws)
        return rule

    return register


def gradient_formula(*functions: Any) -> Callable[[F], F]:
    """Register the decorated function as the gradients of opaque operations that torch would have to run again.

    The function receives real tensors: the arguments, the keyword arguments and the cotangents (None for a result
    without one). It returns the gradients of all floating point arguments in order, or None to let torch compute them.
    """

    def register(formula: F) -> F:
        for fn in functions:
            _FORMULAS[fn] = formula
        return formula

    return register


def formula_of(function: Any) -> Callable[..., Any] | None:
    """Return the formula of a function's gradients, or None."""
    return _FORMULAS.get(function)


def handler_of(function: Any) -> Handler | None:
    """Return the handler of a torch function, or None."""
    return _HANDLERS.get(function)


def property_handler(name: str, *, assigned: bool = False) -> Handler | None:
    """Return the handler of a tensor property, or None."""
    return _PROPERTIES.get((name, assigned))


def result_of(function: Any) -> ResultRule | None:
    """Return the result rule of a function, or None if torch computes the metadata."""
    return _RESULTS.get(function)
