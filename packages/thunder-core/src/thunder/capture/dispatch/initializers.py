# SPDX-License-Identifier: Apache-2.0
"""Random draws that run as opaque operations: initializers of `torch.nn.init`, in-place draws into strided memory."""

from __future__ import annotations

import functools
from typing import Any

import torch

from thunder.capture.dispatch.draws import drawn_in_place
from thunder.capture.dispatch.opaque import call_opaque
from thunder.capture.dispatch.registry import gives
from thunder.capture.dispatch.writing import assign
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.layout import meta_of
from thunder.capture.tensors.tracer import Tracer
from thunder.core.proxies import TensorProxy
from thunder.torch.private import DisableTorchFunction

__all__ = ["draw_in_order_of_memory", "truncated_normal"]


def draw_in_order_of_memory(tracer: Tracer, draw: Any, args: Any, kwargs: Any) -> Any:
    """Call an in-place draw (`normal_`) whose target is not contiguous; `NotImplemented` where it is.

    torch draws the elements in the order of memory, so the strides decide which element gets which number.
    """
    target, *rest = args
    handle = tracer.handle_of(target)
    with tracer.recording():
        aliasing.read(handle)
        if any(type(n) is not int for n in handle._value.shape):
            return NotImplemented
        laid_out = meta_of(handle)
        with DisableTorchFunction():
            if laid_out.is_contiguous():
                return NotImplemented
            strides = laid_out.stride()
    with torch.no_grad():
        drawn = call_opaque(tracer, _drawn(draw), (target, strides, *rest), kwargs)
    return assign(tracer, target, drawn, draw.__name__, ordered=True)


@functools.cache
def _drawn(draw: Any) -> Any:
    def drawn(like: Any, strides: Any, *args: Any, **kwargs: Any) -> Any:
        return draw(torch.empty_strided(like.shape, strides, dtype=like.dtype, device=like.device), *args, **kwargs)

    drawn.__name__ = draw.__name__.removesuffix("_")
    gives(drawn, draws=_draws)(lambda like, *args, **kwargs: TensorProxy(like=like, requires_grad=False))
    return drawn


def truncated_normal(tracer: Tracer, original: Any, target: Any, args: Any, kwargs: Any) -> Any:
    """Record a call of `original` (`torch.nn.init.trunc_normal_`) as one opaque operation.

    thunder cannot trace through this function, because it draws again if values are out of range.
    """
    with torch.no_grad():
        strided = drawn_in_place(tracer, original, "trunc_normal_", target, args, kwargs)
        if strided is not NotImplemented:
            return strided
        drawn = call_opaque(tracer, _truncated(original), (target, *args), kwargs)
        return assign(tracer, target, drawn, "trunc_normal_")


def _draws(*args: Any, **kwargs: Any) -> bool:
    return True


@functools.cache
def _truncated(original: Any) -> Any:
    def trunc_normal(like: Any, *args: Any, **kwargs: Any) -> Any:
        return original(torch.empty_like(like), *args, **kwargs)

    gives(trunc_normal, draws=_draws)(lambda like, *args, **kwargs: TensorProxy(like=like, requires_grad=False))
    return trunc_normal
