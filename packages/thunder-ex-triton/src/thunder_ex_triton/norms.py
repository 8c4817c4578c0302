# SPDX-License-Identifier: Apache-2.0
"""Normalization of channels-last images in operations that fuse: with activations, additions and their gradients.

With the channels as the last dimension, the statistics of batches are sums over leading dimensions. The statistics of
groups of channels are computed from sums over the dimensions between samples and channels. Triton's kernels compute
either sums in one pass over the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.extend import BoundSymbol, TensorProxy, current_trace, dtypes
from thunder_ex_triton.fusion.iteration_space import has_work

__all__ = ["HALF", "fusible"]

_LAST = (0, 2, 3, 1)
_SECOND = (0, 3, 1, 2)
_IMAGES = (0, 1, 2)  # the dimensions that are not channels
_PIXELS = (1, 2)  # the dimensions that are neither samples nor channels
HALF = (dtypes.float16, dtypes.bfloat16)


def fusible(op: BoundSymbol, narrow: Mapping[str, TensorProxy]) -> tuple[list[TensorProxy], Callable[[], Any]] | None:
    """Return the images of a normalization or its gradient, and the function that computes it for channels-last images.

    `narrow` are the values in half precision of which values in single precision are casts. Return None for other
    operations, and if the images cannot be computed like this.
    """
    name = op.sym.id
    images = list(op.args[: 2 if name.endswith("_backward") else 1]) if type(name) is str and name in _NORMS else []
    if not images or any(p.ndim != 4 for p in images):
        return None
    if name in _GROUPS:
        n, c, h, w = images[0].shape
        if not has_work(n, h * w, c) or any(p.dtype not in (*HALF, dtypes.float32) for p in images):
            return None
        args = [*[narrow.get(p.name, p) for p in images], *op.args[len(images) :]]
        return images, lambda: _GROUPS[name](images[-1].dtype, *args, **op.kwargs)
    if any(p.dtype not in HALF for p in images):
        return None
    if name == "torch.batch_norm_forward":
        return images, lambda: _forward(*op.args, **op.kwargs)
    if name == "torch.batch_norm_backward" and op.args[7]:
        return images, lambda: _backward(*op.args)
    return images, lambda: _decomposed(op)


def _decomposed(op: BoundSymbol) -> Any:
    """Record the parts of an operation, which are elementwise with running statistics."""
    trace: Any = current_trace()
    made = [p for p in op.flat_outs if isinstance(p, TensorProxy) and p.name not in op.arg_names]
    op = op.substitute({p.name: p.replace_name(trace.make_name()) for p in made})
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


def _as_image(x: Any, dtype: Any) -> Any:
    return ltorch.permute(ltorch.to(x, dtype), _SECOND)


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
    return _as_image(_last(input) * scale + offset, input.dtype), mean, invstd, reserve, *new


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
    return _as_image(of_input, input.dtype), of_weight, ltorch.to(sum_g, kind)


# -- groups of channels ------------------------------------------------------------------------------------------------
def _of_groups(
    dtype: Any, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[Any, Any, Any]:
    n, c, h, w = input.shape
    # As for batches, sums of distances from an element.
    first = _wide(ltorch.reshape(input[:, :, :1, :1], (n, c)))
    distance = _last(input) - _of_pixels(first)
    shift = ltorch.sum(distance, _PIXELS) / (h * w)
    squares = ltorch.sum(distance * distance, _PIXELS) / (h * w)
    means, variances = (
        _grouped(x, num_groups) for x in (first + shift, ltorch.clamp(squares - shift * shift, min=0.0))
    )
    mean = _mean(means)
    rstd = ltorch.rsqrt(_mean(variances + (means - mean) * (means - mean)) + eps)
    scale = _of_channels(rstd, c) if weight is None else rstd * _grouped(_wide(weight), num_groups)
    offset = -mean * scale if bias is None else _grouped(_wide(bias), num_groups) - mean * scale
    out = _as_image(_last(input) * _of_pixels(scale) + _of_pixels(offset), dtype)
    return out, ltorch.squeeze(mean, 2), ltorch.squeeze(rstd, 2)


def _of_groups_backward(
    dtype: Any, grad: Any, input: Any, num_groups: int, mean: Any, rstd: Any, weight: Any, bias: Any
) -> tuple[Any, Any, Any]:
    n, c, h, w = input.shape
    mean, rstd = (ltorch.unsqueeze(x, 2) for x in (mean, rstd))
    x, g = _last(input), _last(grad)
    sum_g = _grouped(ltorch.sum(g, _PIXELS, dtype=torch.float32), num_groups)
    distance = x - _of_pixels(ltorch.expand(mean, (n, num_groups, c // num_groups)))
    sum_gx = _grouped(ltorch.sum(g * distance, _PIXELS), num_groups)
    of_weight = None if weight is None else ltorch.to(ltorch.reshape(ltorch.sum(sum_gx * rstd, 0), (c,)), weight.dtype)
    of_bias = None if bias is None else ltorch.to(ltorch.reshape(ltorch.sum(sum_g, 0), (c,)), bias.dtype)
    # If a sum is NaN, so is the result. With this condition, the scale depends on sums of the image. Otherwise the
    # kernel of the sums would also compute the scale times the gradient, and write the product in single precision.
    scale = ltorch.where(sum_g == sum_g, rstd, math.nan)
    if weight is not None:
        factor = _grouped(_wide(weight), num_groups)
        scale, sum_g, sum_gx = (v * factor for v in (scale, sum_g, sum_gx))
    of_distance = _mean(sum_gx) / (-h * w) * rstd * rstd * rstd
    offset = _mean(sum_g) / (-h * w) * rstd - of_distance * mean
    of_distance, offset = (_of_channels(v, c) for v in (of_distance, offset))
    of_input = x * _of_pixels(of_distance) + _of_pixels(offset) + g * _of_pixels(scale)
    return _as_image(of_input, dtype), of_weight, of_bias


_GROUPS: dict[str, Callable[..., Any]] = {
    "torch.group_norm_forward": _of_groups,
    "torch.group_norm_backward": _of_groups_backward,
    "torch.group_norm": lambda *args, **kwargs: _of_groups(*args, **kwargs)[0],
}
_NORMS = {"torch.batch_norm", "torch.batch_norm_forward", "torch.batch_norm_backward", *_GROUPS}


def _grouped(x: Any, groups: int) -> Any:
    """Return values of channels with a dimension of groups, and one of a group's channels."""
    *batch, channels = x.shape
    return ltorch.reshape(x, (*batch, groups, channels // groups))


def _mean(x: Any) -> Any:
    """Return the mean of the values of each group's channels."""
    return x if x.shape[2] == 1 else ltorch.mean(x, 2, keepdim=True)


def _of_channels(x: Any, channels: int) -> Any:
    """Return the values of groups for each of their channels, in memory, so that images are multiplied by vectors."""
    n, groups, _ = x.shape
    return ltorch.clone(ltorch.expand(x, (n, groups, channels // groups)))


def _of_pixels(x: Any) -> Any:
    """Return values of channels with a shape that broadcasts to channels-last images."""
    return ltorch.reshape(x, (x.shape[0], 1, 1, -1))
