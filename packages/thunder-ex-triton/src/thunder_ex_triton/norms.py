# SPDX-License-Identifier: Apache-2.0
"""Normalization of images in operations that fuse: with activations, additions and their gradients.

`norm_layouts.py` computes statistics, and sums for gradients, in the order of the image's memory: as sums over leading
dimensions if channels are the last dimension in memory, and as sums of rows of pixels otherwise. The statistics of
groups of channels are computed from those of their channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy, dtypes
from thunder_ex_triton.norm_layouts import Layout, LayoutOfSamples, combined, wide

__all__ = ["HALF", "compute", "images_of", "is_of_batch", "record_cast"]

HALF = (dtypes.float16, dtypes.bfloat16)


def images_of(op: BoundSymbol) -> list[TensorProxy]:
    """Return the image of a normalization, and before it the gradient if the operation is a normalization's gradient.

    Return nothing for other operations.
    """
    name = op.sym.id
    if type(name) is not str or name not in _NORMS:
        return []
    return list(op.args[: 2 if name.endswith("_backward") else 1])


def is_of_batch(op: BoundSymbol) -> bool:
    """Check whether a normalization computes statistics or sums over the samples."""
    return op.sym.id in _OF_BATCHES


def compute(op: BoundSymbol, layout: Layout, narrow: Mapping[str, TensorProxy]) -> Any:
    """Record the operations that compute a normalization or its gradient in a layout, and return its results.

    `narrow` are the values in half precision of which values in single precision are casts. Kernels read these instead.
    """
    images = images_of(op)
    args = [*[narrow.get(p.name, p) for p in images], *op.args[len(images) :]]
    return _NORMS[op.sym.id](layout, images[-1].dtype, *args, **op.kwargs)


def record_cast(op: BoundSymbol, narrow: dict[str, TensorProxy]) -> None:
    """Add the result of a cast from half precision to single precision to `narrow`."""
    cast = op
    while cast.subsymbols:
        cast = cast.subsymbols[0]
    if cast.sym is prims.convert_element_type and cast.out_names == op.out_names:
        a, out = cast.args[0], cast.output
        if isinstance(a, TensorProxy) and a.dtype in HALF and out.dtype is dtypes.float32:
            narrow[out.name] = a


def _running(old: Any, new: Any, momentum: float) -> Any:
    return None if old is None else ltorch.to(wide(old) * (1 - momentum) + new * momentum, old.dtype)


def _unbiased(variance: Any, count: Any) -> Any:
    return variance * (count / (count - 1) if count > 1 else math.nan)


def _of_evaluation(running_mean: Any, running_var: Any, eps: float) -> tuple[Any, Any]:
    """Return the mean and reciprocal standard deviation of each channel that running statistics amount to."""
    return wide(running_mean), ltorch.rsqrt(wide(running_var) + eps)


def _weighted(scale: Any, weight: Any) -> Any:
    # By promotion. A cast of the weight on its own would be a kernel, if several kernels read it.
    return scale if weight is None else scale * weight


# -- batches -----------------------------------------------------------------------------------------------------------
def _of_batch(
    layout: Layout, dtype: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any,
    momentum: float, eps: float,
) -> tuple[Any, ...]:  # fmt: skip
    count = layout.samples * layout.pixels
    mean, variance = layout.statistics_of_batch(input)
    invstd = ltorch.rsqrt(variance + eps)
    line = layout.line(layout.view(input), layout.of_channels, mean, _weighted(invstd, weight), bias)
    new = _running(running_mean, mean, momentum), _running(running_var, _unbiased(variance, count), momentum)
    reserve = ltorch.empty((0,), dtype=torch.uint8, device=input.device)
    return layout.image(line, dtype), mean, invstd, reserve, *new


def _of_batch_train(layout: Layout, dtype: Any, *args: Any) -> tuple[Any, ...]:
    outs = _of_batch(layout, dtype, *args)
    return outs[0], outs[4], outs[5]


def _of_batch_backward(
    layout: Layout, dtype: Any, grad: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, mean: Any,
    invstd: Any, train: bool, eps: float, reserve: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    if not train:
        mean, invstd = _of_evaluation(running_mean, running_var, eps)
    count = layout.samples * layout.pixels
    g, x = layout.view(grad), layout.view(input)
    sum_g = layout.sums_of_batch(g)
    sum_gn = layout.sums_of_batch(g * (x - layout.of_channels(mean))) * invstd
    of_input = g
    if train:
        start, slope = (_after(v, sum_g) for v in (mean, -sum_gn / count * invstd))
        of_input = layout.line(x, layout.of_channels, start, slope, -sum_g / count) + of_input
    of_input = layout.image(of_input * layout.of_channels(_weighted(invstd, weight)), dtype)
    kind = input.dtype if weight is None else weight.dtype
    return of_input, None if weight is None else ltorch.to(sum_gn, kind), ltorch.to(sum_g, kind)


def _batch_norm(
    layout: Layout, dtype: Any, input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if training:
        return _of_batch(layout, dtype, input, weight, bias, None, None, momentum, eps)[0]
    mean, invstd = _of_evaluation(running_mean, running_var, eps)
    return _normalized(layout, dtype, input, mean, invstd, weight, bias)


def _normalized(layout: Layout, dtype: Any, input: Any, mean: Any, invstd: Any, weight: Any, bias: Any) -> Any:
    """Normalize with statistics that are the same for all samples."""
    out = (layout.view(input) - layout.of_channels(mean)) * layout.of_channels(_weighted(invstd, weight))
    return layout.image(out if bias is None else out + layout.of_channels(bias), dtype)


# -- groups of channels ------------------------------------------------------------------------------------------------
def _by_groups(
    layout: LayoutOfSamples, dtype: Any, input: Any, num_groups: int, weight: Any, bias: Any, eps: float
) -> tuple[Any, Any, Any, Any]:
    """Return the result, and the mean, reciprocal standard deviation and variance of each group."""
    shape = layout.shape[:2]
    means, variances = (_grouped(x, num_groups) for x in layout.statistics(input))
    mean, variance = combined(means, variances, (2,))
    rstd = ltorch.rsqrt(variance + eps)
    scale = _of_channels(rstd, shape) if weight is None else rstd * _grouped(weight, num_groups)
    start = ltorch.expand(mean, (*mean.shape[:2], shape[1] // num_groups))
    offset = None if bias is None else ltorch.expand(_grouped(bias, num_groups), start.shape)
    line = (None if x is None else ltorch.reshape(x, shape) for x in (start, scale, offset))
    out = layout.image(layout.line(layout.view(input), layout.of_samples, *line), dtype)
    return out, *(ltorch.squeeze(x, 2) for x in (mean, rstd, variance))


def _of_groups(
    layout: Any, dtype: Any, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[Any, Any, Any]:
    return _by_groups(layout, dtype, input, num_groups, weight, bias, eps)[:3]


def _gradients_by_groups(
    layout: LayoutOfSamples, dtype: Any, grad: Any, input: Any, num_groups: int, mean: Any, rstd: Any, weight: Any
) -> tuple[Any, Any, Any]:
    """Return the gradient of the input, and the sums over pixels which are each sample's gradients of weight and bias.

    The sums have dimensions of groups and of a group's channels.
    """
    shape = layout.shape[:2]
    mean, rstd = (ltorch.unsqueeze(x, 2) for x in (mean, rstd))
    start = ltorch.reshape(ltorch.expand(mean, (*mean.shape[:2], shape[1] // num_groups)), shape)
    sum_g, sum_gx = (_grouped(x, num_groups) for x in _sums(layout, grad, input, start))
    sums = sum_gx * rstd, sum_g
    factor = None if weight is None else _grouped(weight, num_groups)
    total, total_x = (_total(x if factor is None else x * factor) for x in (sum_g, sum_gx))
    count = shape[1] // num_groups * layout.pixels
    slope, offset = total_x / -count * rstd * rstd * rstd, total / -count * rstd
    scale = _after(rstd, total)
    numbers = _after(mean, total), slope, offset, scale if factor is None else scale * factor
    start, slope, offset, scale = (_of_channels(x, shape) for x in numbers)
    line = layout.line(layout.view(input), layout.of_samples, start, slope, offset)
    return layout.image(line + layout.view(grad) * layout.of_samples(scale), dtype), *sums


def _sums(layout: LayoutOfSamples, grad: Any, input: Any, start: Any) -> tuple[Any, Any]:
    """Return sums over pixels of the gradient, and of the gradient times the distance from `start`."""
    g = layout.view(grad)
    product = g * (layout.view(input) - layout.of_samples(start))
    return layout.sums(g), layout.sums(product)


def _of_groups_backward(
    layout: Any, dtype: Any, grad: Any, input: Any, num_groups: int, mean: Any, rstd: Any, weight: Any, bias: Any
) -> tuple[Any, Any, Any]:
    of_input, *sums = _gradients_by_groups(layout, dtype, grad, input, num_groups, mean, rstd, weight)
    of_weight, of_bias = (_sum_of_samples(ltorch.reshape(of, layout.shape[:2])) for of in sums)
    if weight is not None:
        of_weight = ltorch.to(of_weight if bias is None else _after(of_weight, of_bias), weight.dtype)
    return of_input, None if weight is None else of_weight, None if bias is None else ltorch.to(of_bias, bias.dtype)


# -- instances: a group for each channel -------------------------------------------------------------------------------
def _of_instances(
    layout: Any, dtype: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any,
    momentum: float, eps: float,
) -> tuple[Any, ...]:  # fmt: skip
    out, mean, rstd, variance = _by_groups(layout, dtype, input, layout.channels, weight, bias, eps)
    unbiased = _unbiased(variance, layout.pixels)
    return out, mean, rstd, _running(running_mean, mean, momentum), _running(running_var, unbiased, momentum)


def _of_instances_train(layout: Any, dtype: Any, *args: Any) -> tuple[Any, ...]:
    out, _, _, *new = _of_instances(layout, dtype, *args)
    return out, *(None if x is None else ltorch.mean(x, 0) for x in new)


def _instance_norm(
    layout: Any, dtype: Any, input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None,
    bias: Any = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if use_input_stats:
        return _of_instances(layout, dtype, input, weight, bias, None, None, momentum, eps)[0]
    mean, invstd = _of_evaluation(running_mean, running_var, eps)
    return _normalized(layout, dtype, input, mean, invstd, weight, bias)


def _of_instances_backward(
    layout: Any, dtype: Any, grad: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, mean: Any,
    invstd: Any, train: bool, eps: float,
) -> tuple[Any, Any, Any]:  # fmt: skip
    if train:
        of_input, *sums = _gradients_by_groups(layout, dtype, grad, input, layout.channels, mean, invstd, weight)
        return of_input, *(ltorch.squeeze(x, 2) for x in sums)
    mean, invstd = _of_evaluation(running_mean, running_var, eps)
    sum_g, sum_gx = _sums(layout, grad, input, ltorch.expand(mean, layout.shape[:2]))
    scale = layout.of_channels(_weighted(invstd, weight))
    return layout.image(layout.view(grad) * scale, dtype), sum_gx * invstd, sum_g


_OF_BATCHES: dict[str, Callable[..., Any]] = {
    "torch.batch_norm_train": _of_batch_train,
    "torch.batch_norm_forward": _of_batch,
    "torch.batch_norm_backward": _of_batch_backward,
    "torch.batch_norm": _batch_norm,
}
_NORMS: dict[str, Callable[..., Any]] = {
    "torch.group_norm_forward": _of_groups,
    "torch.group_norm_backward": _of_groups_backward,
    "torch.group_norm": lambda *args, **kwargs: _of_groups(*args, **kwargs)[0],
    "torch.instance_norm_forward": _of_instances,
    "torch.instance_norm_backward": _of_instances_backward,
    "torch.instance_norm_train": _of_instances_train,
    "torch.instance_norm": _instance_norm,
    **_OF_BATCHES,
}


def _grouped(x: Any, groups: int) -> Any:
    """Return values of channels with a dimension of groups, and one of the values of a group."""
    *batch, count = x.shape
    return ltorch.reshape(x, (*batch, groups, count // groups))


def _total(x: Any) -> Any:
    """Return the sum of the values of each group's channels."""
    return x if x.shape[2] == 1 else ltorch.sum(x, 2, keepdim=True)


def _after(x: Any, total: Any) -> Any:
    """Return `x`, or NaN where a sum is NaN, as the result then is.

    The value depends on the sum. Otherwise the kernel of the sums would also compute its product with an image, and
    write it in single precision, and two sums that are computed in the same way would be two kernels.
    """
    return ltorch.where(total == total, x, math.nan)


def _sum_of_samples(x: Any) -> Any:
    """Return the sums of numbers of each sample's channels, by one kernel, whose rows are channels."""
    return ltorch.sum(ltorch.permute(x, (1, 0)), 1)


def _of_channels(x: Any, shape: Any) -> Any:
    """Return the values of groups for each of their channels, in memory, so that images are multiplied by vectors."""
    n, groups, _ = x.shape
    return ltorch.reshape(ltorch.clone(ltorch.expand(x, (n, groups, shape[1] // groups))), shape)
