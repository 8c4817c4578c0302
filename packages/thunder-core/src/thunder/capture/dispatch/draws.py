# SPDX-License-Identifier: Apache-2.0
"""In-place draws of random numbers (`x.normal_()`) into tensors that are not contiguous.

torch draws in the order of the memory, and some kernels draw other numbers for tensors that are not contiguous. Such a
draw is one opaque operation, which fills a new tensor with the strides that the target has in eager mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from thunder.capture.dispatch.metadata import layout_of
from thunder.capture.dispatch.opaque import call_opaque
from thunder.capture.dispatch.registry import gives, handles, methods
from thunder.capture.dispatch.writing import assign
from thunder.capture.tensors.tracer import Tracer
from thunder.core.proxies import TensorProxy
from thunder.torch.private import DisableTorchFunction

__all__ = ["drawn_in_place"]


def _draws(*args: Any, **kwargs: Any) -> bool:
    return True


@functools.cache
def _with_strides(fill: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that draws into a new tensor with the given strides."""

    def draw(like: Any, size: Any, stride: Any, *args: Any, **kwargs: Any) -> Any:
        return fill(torch.empty_strided(size, stride, dtype=like.dtype, device=like.device), *args, **kwargs)

    draw.__name__ = draw.__qualname__ = f"{name}with_strides"
    gives(draw, draws=_draws)(lambda like, *args, **kwargs: TensorProxy(like=like, requires_grad=False))
    return draw


def _handler(name: str) -> Callable[..., Any]:
    fill = getattr(torch.Tensor, name)

    def handler(tracer: Tracer, target: Any, *args: Any, **kwargs: Any) -> Any:
        return drawn_in_place(tracer, fill, name, target, args, kwargs)

    return handler


def drawn_in_place(tracer: Tracer, fill: Callable[..., Any], name: str, target: Any, args: Any, kwargs: Any) -> Any:
    """Call `fill`, which draws into its first argument; return `NotImplemented` if the target is contiguous."""
    laid_out = layout_of(tracer, target)
    with DisableTorchFunction():  # the tracing mode may be active here
        stride, size = laid_out.stride(), tuple(laid_out.shape)
        if laid_out.is_contiguous() or 0 in stride:  # torch refuses the latter
            return NotImplemented
    given = (target, size, stride, *args)
    with torch.no_grad():
        drawn = call_opaque(tracer, _with_strides(fill, name), given, kwargs)
    return assign(tracer, target, drawn, name, ordered=True)


for _name in ("uniform_", "normal_", "exponential_", "bernoulli_", "random_", "geometric_", "cauchy_", "log_normal_"):
    handles(*methods(_name))(_handler(_name))
