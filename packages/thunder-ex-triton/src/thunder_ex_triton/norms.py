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
    if name == "torch.batch_norm_backward":
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
    if not train:
        mean, invstd = _of_evaluation(running_mean, running_var, eps)
    sum_g = ltorch.sum(_last(grad), _IMAGES, dtype=torch.float32)
    sum_gx = ltorch.sum(_last(grad) * (_last(input) - mean), _IMAGES)
    sum_gn = sum_gx * invstd
    scale = invstd if weight is None else invstd * _wide(weight)
    of_input = _last(grad)
    if train:
        of_distance = -sum_gn / count * invstd
        offset = -sum_g / count - mean * of_distance
        of_input = _last(input) * of_distance + offset + of_input
    kind = input.dtype if weight is None else weight.dtype
    of_weight = None if weight is None else ltorch.to(sum_gn, kind)
    return _as_image(of_input * scale, input.dtype), of_weight, ltorch.to(sum_g, kind)


def _of_evaluation(running_mean: Any, running_var: Any, eps: float) -> tuple[Any, Any]:
    """Return the mean and reciprocal standard deviation of each channel that running statistics amount to."""
    return _wide(running_mean), ltorch.rsqrt(_wide(running_var) + eps)


# -- groups of channels ------------------------------------------------------------------------------------------------
def _by_groups(
    dtype: Any, input: Any, num_groups: int, weight: Any, bias: Any, eps: float
) -> tuple[Any, Any, Any, Any]:
    """Return the result, and the mean, reciprocal standard deviation and variance of each group."""
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
    variance = variances if num_groups == c else _mean(variances + (means - mean) * (means - mean))
    rstd = ltorch.rsqrt(variance + eps)
    scale = _of_channels(rstd, c) if weight is None else rstd * _grouped(_wide(weight), num_groups)
    offset = -mean * scale if bias is None else _grouped(_wide(bias), num_groups) - mean * scale
    out = _as_image(_last(input) * _of_pixels(scale) + _of_pixels(offset), dtype)
    return out, *(ltorch.squeeze(x, 2) for x in (mean, rstd, variance))


def _of_groups(
    dtype: Any, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[Any, Any, Any]:
    return _by_groups(dtype, input, num_groups, weight, bias, eps)[:3]


def _gradients_by_groups(
    dtype: Any, grad: Any, input: Any, num_groups: int, mean: Any, rstd: Any, weight: Any
) -> tuple[Any, Any, Any]:
    """Return the gradient of the input, and the sums over pixels which are each sample's gradients of weight and bias.

    The sums have dimensions of groups and of a group's channels.
    """
    n, c, h, w = input.shape
    mean, rstd = (ltorch.unsqueeze(x, 2) for x in (mean, rstd))
    sum_g, sum_gx = _sums(grad, input, ltorch.expand(mean, (n, num_groups, c // num_groups)))
    sum_g, sum_gx = (_grouped(x, num_groups) for x in (sum_g, sum_gx))
    sums = sum_gx * rstd, sum_g
    # If a sum is NaN, so is the result. With this condition, the scale depends on sums of the image. Otherwise the
    # kernel of the sums would also compute the scale times the gradient, and write the product in single precision.
    scale = ltorch.where(sum_g == sum_g, rstd, math.nan)
    if weight is not None:
        factor = _grouped(_wide(weight), num_groups)
        scale, sum_g, sum_gx = (v * factor for v in (scale, sum_g, sum_gx))
    of_distance = _mean(sum_gx) / (-h * w) * rstd * rstd * rstd
    offset = _mean(sum_g) / (-h * w) * rstd - of_distance * mean
    of_distance, offset = (_of_channels(v, c) for v in (of_distance, offset))
    of_input = _last(input) * _of_pixels(of_distance) + _of_pixels(offset) + _last(grad) * _of_pixels(scale)
    return _as_image(of_input, dtype), *sums


def _sums(grad: Any, input: Any, mean: Any) -> tuple[Any, Any]:
    """Return sums over pixels of the gradient, and of the gradient times the distance from the mean."""
    g = _last(grad)
    distance = _last(input) - _of_pixels(mean)
    return ltorch.sum(g, _PIXELS, dtype=torch.float32), ltorch.sum(g * distance, _PIXELS)


def _of_groups_backward(
    dtype: Any, grad: Any, input: Any, num_groups: int, mean: Any, rstd: Any, weight: Any, bias: Any
) -> tuple[Any, Any, Any]:
    of_input, *sums = _gradients_by_groups(dtype, grad, input, num_groups, mean, rstd, weight)
    of_weight, of_bias = (
        None if x is None else ltorch.to(ltorch.reshape(ltorch.sum(of, 0), x.shape), x.dtype)
        for of, x in zip(sums, (weight, bias))
    )
    return of_input, of_weight, of_bias


# -- instances: a group for each channel -------------------------------------------------------------------------------
def _of_instances(
    dtype: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    _, c, h, w = input.shape
    out, mean, rstd, variance = _by_groups(dtype, input, c, weight, bias, eps)
    unbiased = variance * (h * w / (h * w - 1) if h * w > 1 else math.nan)
    return out, mean, rstd, _running(running_mean, mean, momentum), _running(running_var, unbiased, momentum)


def _of_instances_train(dtype: Any, *args: Any) -> tuple[Any, ...]:
    out, _, _, *new = _of_instances(dtype, *args)
    return out, *(None if x is None else ltorch.mean(x, 0) for x in new)


def _instance_norm(
    dtype: Any, input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if use_input_stats:
        return _of_instances(dtype, input, weight, bias, None, None, momentum, eps)[0]
    mean, invstd = _of_evaluation(running_mean, running_var, eps)
    scale = invstd if weight is None else invstd * _wide(weight)
    out = (_last(input) - mean) * scale
    return _as_image(out if bias is None else out + _wide(bias), dtype)


def _of_instances_backward(
    dtype: Any, grad: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, mean: Any, invstd: Any,
    train: bool, eps: float,
) -> tuple[Any, Any, Any]:  # fmt: skip
    n, c, _, _ = input.shape
    if train:
        of_input, *sums = _gradients_by_groups(dtype, grad, input, c, mean, invstd, weight)
        return of_input, *(ltorch.squeeze(x, 2) for x in sums)
    mean, invstd = _of_evaluation(running_mean, running_var, eps)
    sum_g, sum_gx = _sums(grad, input, ltorch.expand(mean, (n, c)))
    scale = invstd if weight is None else invstd * _wide(weight)
    return _as_image(_last(grad) * scale, dtype), sum_gx * invstd, sum_g


_GROUPS: dict[str, Callable[..., Any]] = {
    "torch.group_norm_forward": _of_groups,
    "torch.group_norm_backward": _of_groups_backward,
    "torch.group_norm": lambda *args, **kwargs: _of_groups(*args, **kwargs)[0],
    "torch.instance_norm_forward": _of_instances,
    "torch.instance_norm_backward": _of_instances_backward,
    "torch.instance_norm_train": _of_instances_train,
    "torch.instance_norm": _instance_norm,
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
