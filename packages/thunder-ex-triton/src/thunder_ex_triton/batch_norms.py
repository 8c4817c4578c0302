# SPDX-License-Identifier: Apache-2.0
"""Batch normalization of channels-last images in operations that fuse: with activations, additions and their gradients.

With the channels as the last dimension, statistics are sums over leading dimensions, which Triton's kernels compute in
one pass over the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.extend import BoundSymbol, current_trace

__all__ = ["fusible"]

_LAST = (0, 2, 3, 1)
_SECOND = (0, 3, 1, 2)
_IMAGES = (0, 1, 2)  # the dimensions that are not channels


def fusible(op: BoundSymbol) -> Callable[[], Any] | None:
    """Return the function that computes batch normalization, or its gradient, of a channels-last image."""
    if op.sym.id == "torch.batch_norm_forward":
        return lambda: _forward(*op.args, **op.kwargs)
    if op.sym.id == "torch.batch_norm_backward" and op.args[7]:
        return lambda: _backward(*op.args)
    if op.sym.id == "torch.batch_norm" or op.sym.id == "torch.batch_norm_backward":
        return lambda: _decomposed(op)
    return None


def _decomposed(op: BoundSymbol) -> Any:
    """Record the parts of an operation, which are elementwise with running statistics."""
    trace: Any = current_trace()
    for part in op.subsymbols:
        trace.record(part)
    return op.output


def _wide(x: Any) -> Any:
    return ltorch.to(x, torch.float32)


def _last(x: Any) -> Any:
    """Return an image with channels last. Operations of it with vectors compute in single precision by promotion.

    A cast of the image on its own would be a value that one kernel writes and another one reads.
    """
    return ltorch.permute(x, _LAST)


def _as_image(x: Any, like: Any) -> Any:
    return ltorch.permute(ltorch.to(x, like.dtype), _SECOND)


def _forward(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    count = math.prod(input.shape) // input.shape[1]
    # Sums of distances from an element instead of from zero: the variance does not cancel if the mean is large.
    first = _wide(ltorch.reshape(input[:1, :, :1, :1], (input.shape[1],)))
    distance = _last(input) - first
    total, squares = ltorch.sum(distance, _IMAGES), ltorch.sum(distance * distance, _IMAGES)
    shift = total / count
    mean, variance = first + shift, ltorch.clamp(squares / count - shift * shift, min=0.0)
    invstd = ltorch.rsqrt(variance + eps)
    scale = invstd if weight is None else invstd * _wide(weight)
    offset = -mean * scale if bias is None else _wide(bias) - mean * scale
    unbiased = variance * (count / (count - 1) if count > 1 else math.nan)
    new = _running(running_mean, mean, momentum), _running(running_var, unbiased, momentum)
    reserve = ltorch.empty((0,), dtype=torch.uint8, device=input.device)
    return _as_image(_last(input) * scale + offset, input), mean, invstd, reserve, *new


def _running(old: Any, new: Any, momentum: float) -> Any:
    return None if old is None else ltorch.to(_wide(old) * (1 - momentum) + new * momentum, old.dtype)


def _backward(
    grad: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, mean: Any, invstd: Any, train: bool,
    eps: float, reserve: Any,
) -> Any:  # fmt: skip
    count = math.prod(input.shape) // input.shape[1]
    sum_g = ltorch.sum(_last(grad), _IMAGES, dtype=torch.float32)
    sum_gx = ltorch.sum(_last(grad) * (_last(input) - mean), _IMAGES)
    sum_gn = sum_gx * invstd
    scale = invstd if weight is None else invstd * _wide(weight)
    of_distance = -sum_gn / count * invstd
    offset = -sum_g / count - mean * of_distance
    of_input = (_last(input) * of_distance + offset + _last(grad)) * scale
    kind = input.dtype if weight is None else weight.dtype
    of_weight = None if weight is None else ltorch.to(sum_gn, kind)
    return _as_image(of_input, input), of_weight, ltorch.to(sum_g, kind)
