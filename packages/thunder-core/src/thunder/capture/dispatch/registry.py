# SPDX-License-Identifier: Apache-2.0
"""The registry of handlers: functions of torch that are not simply an operation, and what a program gets of them.

A handler is `handler(tracer, *args, **kwargs)`; where it returns `NotImplemented`, the call goes on as if there were
none (`dispatch.py`). Handlers stand beside what they do, in this folder and in `higher_order/`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from thunder.capture.base.tracing_mode import TracingMode

__all__ = [
    "ResultRule",
    "gives",
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
    """What an opaque operation gives: a function of the call's arguments, and which calls draw random numbers."""

    result: Callable[..., Any]
    draws: Callable[..., bool]


_HANDLERS: dict[Any, Handler] = {}
_PROPERTIES: dict[tuple[str, bool], Handler] = {}
_RESULTS: dict[Any, ResultRule] = {}


def methods(*names: str) -> list[Any]:
    """Return the methods of tensors with these names, those that this version of torch has."""
    return [getattr(torch.Tensor, name) for name in names if hasattr(torch.Tensor, name)]


def handles(*functions: Any, traced: bool = False) -> Callable[[F], F]:
    """Decorate the handler of functions of torch.

    With `traced` the handler is written with torch functions, which are traced whatever they are given: real tensors
    that the program reaches by itself, or none at all.
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
    """Decorate the handler of reading a tensor's property, or of assigning to it."""

    def register(handler: F) -> F:
        _PROPERTIES[name, assigned] = handler
        return handler

    return register


def _never(*args: Any, **kwargs: Any) -> bool:
    return False


def gives(*functions: Any, draws: Callable[..., bool] = _never) -> Callable[[F], F]:
    """Decorate the rule for what functions of torch give that cannot run on tensors without data, or only slowly.

    The rule takes a call's arguments, as proxies; `draws` says of which calls draw random numbers.
    """

    def register(rule: F) -> F:
        for fn in functions:
            _RESULTS[fn] = ResultRule(rule, draws)
        return rule

    return register


def handler_of(function: Any) -> Handler | None:
    """Return the handler of a function of torch, None where it has none."""
    return _HANDLERS.get(function)


def property_handler(name: str, *, assigned: bool = False) -> Handler | None:
    """Return the handler of a tensor's property, None where it has none."""
    return _PROPERTIES.get((name, assigned))


def result_of(function: Any) -> ResultRule | None:
    """Return the rule for what a function gives, None where torch is asked."""
    return _RESULTS.get(function)
