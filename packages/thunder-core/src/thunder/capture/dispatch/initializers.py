# SPDX-License-Identifier: Apache-2.0
"""Initializers of `torch.nn.init` that run as opaque operations."""

from __future__ import annotations

import functools
from typing import Any

import torch

from thunder.capture.dispatch.draws import drawn_in_place
from thunder.capture.dispatch.opaque import call_opaque
from thunder.capture.dispatch.registry import gives
from thunder.capture.dispatch.writing import assign
from thunder.capture.tensors.tracer import Tracer
from thunder.core.proxies import TensorProxy

__all__ = ["truncated_normal"]


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
