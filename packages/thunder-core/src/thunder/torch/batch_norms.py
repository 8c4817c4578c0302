# SPDX-License-Identifier: Apache-2.0
"""Normalization with statistics of the batch: batch normalization and instance normalization.

torch writes the running statistics in place, but operations of a trace do not. Instead, `batch_norm_train` and
`instance_norm_train` return the new running statistics as further results. The handlers of torch's functions write them
back.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from thunder import clang
from thunder.core.errors import check
from thunder.core.prims import get_grad, put_grads
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol
from thunder.torch.norms import _statistics, by_channel, check_floating, wide


def _check_vectors(input: Any, **vectors: Any) -> None:
    # torch's kernels accept fewer dimensions where there are no elements; its functions compute that.
    check(input.ndim > 1, lambda: f"batch_norm: expected at least 2 dimensions, got {input.ndim}")
    channels = input.shape[1]
    for name, x in vectors.items():
        check(
            x is None or tuple(x.shape) == (channels,),
            lambda: f"{name} should contain {channels} elements not {math.prod(x.shape)}",
        )
    check_floating("batch_norm", input)


def _check_batch(input: Any) -> None:
    shape = tuple(input.shape)
    check(
        math.prod(shape[:1] + shape[2:]) != 1,
        lambda: f"Expected more than 1 value per channel when training, got input size torch.Size({list(shape)})",
        ValueError,
    )


def _affine(normal: Any, weight: Any, bias: Any) -> Any:
    if weight is not None:
        normal = normal * by_channel(wide(weight), normal.ndim)
    if bias is not None:
        normal = normal + by_channel(wide(bias), normal.ndim)
    return normal


def _running(old: Any, new: Any, momentum: float) -> Any:
    if old is None:
        return None
    return clang.maybe_convert_to_dtype(wide(old) * (1 - momentum) + new * momentum, old.dtype)


# -- batch normalization -----------------------------------------------------------------------------------------------
@torchsymbol(id="torch.batch_norm_forward")
def batch_norm_forward(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    """Compute `batch_norm_train` and the values for its gradient: `(out, mean, invstd, reserve, new_mean, new_var)`.

    `reserve` is memory that some kernels need again in backward. For other kernels, it is empty.
    """
    _check_vectors(input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    x = wide(input)
    dims = tuple(d for d in range(input.ndim) if d != 1)
    variance, mean = clang.var_mean(x, dims, correction=0)
    invstd = ltorch.rsqrt(variance + eps)
    normal = (x - by_channel(mean, x.ndim)) * by_channel(invstd, x.ndim)
    out = clang.maybe_convert_to_dtype(_affine(normal, weight, bias), input.dtype)
    count = math.prod(input.shape[d] for d in dims)
    new_mean = _running(running_mean, mean, momentum)
    unbiased = variance * (count / (count - 1) if count > 1 else math.nan)
    reserve = ltorch.empty((0,), dtype=torch.uint8, device=input.device)
    return out, mean, invstd, reserve, new_mean, _running(running_var, unbiased, momentum)


@torchsymbol(id="torch.batch_norm_train")
def batch_norm_train(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    """Normalize with the statistics of this batch. Return `(out, new_running_mean, new_running_var)`.

    The new running statistics are None if no running statistics were passed in. `torch.batch_norm` in training mode
    writes them into its arguments. Its handler calls this operation and writes them back.
    """
    _check_batch(input)
    outs = batch_norm_forward(input, weight, bias, running_mean, running_var, momentum, eps)
    return outs[0], outs[4], outs[5]


@batch_norm_train.grad
def _(input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float) -> Any:
    outs = batch_norm_forward(input, weight, bias, running_mean, running_var, momentum, eps)
    out, mean, invstd, reserve, new_mean, new_var = outs
    running = _unread(running_mean, running_var, mean, invstd)
    grads = batch_norm_backward(get_grad(out), input, weight, *running, mean, invstd, True, eps, reserve)
    put_grads((input, weight, bias), grads)
    return out, new_mean, new_var


def _unread(running_mean: Any, running_var: Any, mean: Any, invstd: Any) -> tuple[Any, Any]:
    """Return what stands for the running statistics in backward, where there are any, if the batch's are used.

    Some kernels require the arguments, but none reads them. Backward would save copies of the running statistics,
    because forward writes them.
    """
    return None if running_mean is None else mean, None if running_var is None else invstd


@torchsymbol(id="torch.batch_norm_backward")
def batch_norm_backward(
    grad: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, mean: Any, invstd: Any, train: bool,
    eps: float, reserve: Any,
) -> Any:  # fmt: skip
    """Return the gradients of the input, weight and bias of batch normalization.

    If `train`, the statistics `mean` and `invstd` of the batch are differentiated too, and the values of the running
    statistics do not matter. Otherwise, they are None, and the running statistics are constants.
    """
    g, x = wide(grad), wide(input)
    dims = tuple(d for d in range(input.ndim) if d != 1)
    if not train:
        mean, invstd = wide(running_mean), ltorch.rsqrt(wide(running_var) + eps)
    scale = by_channel(invstd, x.ndim)
    normal = (x - by_channel(mean, x.ndim)) * scale
    sum_g, sum_gn = clang.sum(g, dims), clang.sum(g * normal, dims)
    of_input = g
    if train:
        count = max(math.prod(input.shape[d] for d in dims), 1)
        of_input = g - by_channel(sum_g / count, x.ndim) - normal * by_channel(sum_gn / count, x.ndim)
    if weight is not None:
        scale = scale * by_channel(wide(weight), x.ndim)
    kind = input.dtype if weight is None else weight.dtype
    of_weight = None if weight is None else clang.maybe_convert_to_dtype(sum_gn, kind)
    return (
        clang.maybe_convert_to_dtype(of_input * scale, input.dtype),
        of_weight,
        clang.maybe_convert_to_dtype(sum_g, kind),
    )


@torchsymbol(torch.nn.functional.batch_norm, is_method=False, tags=(OpTags.LAYOUT_OF_KERNEL,))
def batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Normalize each channel of `input`, with the batch's statistics in training, else with the running statistics.

    This operation does not write. In training, `batch_norm_train` returns the new running statistics.
    """
    _check_vectors(input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    if training:
        return batch_norm_train(input, weight, bias, running_mean, running_var, momentum, eps)[0]
    for name, x in (("running_mean", running_mean), ("running_var", running_var)):
        check(x is not None, lambda: f"{name} must be defined in evaluation mode")
    invstd = by_channel(ltorch.rsqrt(wide(running_var) + eps), input.ndim)
    normal = (wide(input) - by_channel(wide(running_mean), input.ndim)) * invstd
    return clang.maybe_convert_to_dtype(_affine(normal, weight, bias), input.dtype)


@batch_norm.grad
def _(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if training:
        outs = batch_norm_forward(input, weight, bias, running_mean, running_var, momentum, eps)
        out, mean, invstd, reserve = outs[:4]
        running_mean, running_var = _unread(running_mean, running_var, mean, invstd)
    else:
        out = batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
        mean = invstd = reserve = None
    g = get_grad(out)
    grads = batch_norm_backward(g, input, weight, running_mean, running_var, mean, invstd, training, eps, reserve)
    put_grads((input, weight, bias), grads)
    return out


def _batch_arguments(make: MakeTensor, shape: tuple[int, ...]) -> dict[str, Any]:
    c = (shape[1],)
    return {
        "running_mean": make(c, requires_grad=False),
        "running_var": make(c, low=0.5, high=2, requires_grad=False),
        "weight": make(c),
        "bias": make(c),
    }


@batch_norm.samples
def _(make: MakeTensor) -> Any:
    for shape in ((4, 3), (2, 3, 4), (2, 3, 4, 5), (1, 2, 3, 2, 2)):
        yield SampleInput(make(shape), **_batch_arguments(make, shape))
        given = _batch_arguments(make, shape)
        yield SampleInput(make(shape), None, None, given["weight"], given["bias"], True)
    given = _batch_arguments(make, (2, 3))
    yield SampleInput(make((2, 3, 4)), given["running_mean"], given["running_var"], eps=0.1)
    yield SampleInput(make((2, 3, 4)), None, None, training=True)


@batch_norm.errors
def _(make: MakeTensor) -> Any:
    three, four = make((3,)), make((4,))
    yield SampleInput(make((2, 3)), None, None), RuntimeError, "running_mean must be defined in evaluation mode"
    yield SampleInput(make((2, 4)), three, three), RuntimeError, "running_mean should contain 4 elements not 3"
    yield SampleInput(make((2, 3)), three, three, four), RuntimeError, "weight should contain 3 elements not 4"
    yield SampleInput(make((1, 3)), None, None, training=True), ValueError, "Expected more than 1 value per channel"


def _train_samples(make: MakeTensor) -> Any:
    # The running statistics have no gradient with respect to the input.
    fixed: Any = functools.partial(make, requires_grad=False)
    for shape in ((4, 3), (2, 3, 4, 5)):
        given = _batch_arguments(fixed, shape)
        yield SampleInput(
            fixed(shape), given["weight"], given["bias"], given["running_mean"], given["running_var"], 0.1, 1e-5
        )
    yield SampleInput(fixed((4, 3)), None, None, None, None, 0.1, 1e-5)


batch_norm_train.samples(_train_samples)
batch_norm_forward.samples(_train_samples)


@batch_norm_backward.samples
def _(make: MakeTensor) -> Any:
    # Same as for layer_norm_backward: here the statistics are arguments, but torch computes them from the input.
    fixed: Any = functools.partial(make, requires_grad=False)
    given = _batch_arguments(make, (2, 3, 4))
    stats = [given["running_mean"], given["running_var"]]
    batch = [fixed((3,), dtype=_statistics(make)), fixed((3,), low=0.5, dtype=_statistics(make))]
    x, g = fixed((2, 3, 4)), make((2, 3, 4))
    empty = torch.empty((0,), dtype=torch.uint8, device=x.device)
    yield SampleInput(g, x, given["weight"], *stats, *batch, True, 1e-5, empty)
    yield SampleInput(g, x, given["weight"], *stats, None, None, False, 1e-5, None)


# -- instance normalization --------------------------------------------------------------------------------------------
def _check_instances(input: Any, **vectors: Any) -> None:
    check(input.ndim >= 2, lambda: f"Expected at least 2D input for instance_norm, but got {list(input.shape)}")
    _check_vectors(input, **vectors)


def _by_instance(x: Any, rank: int) -> Any:
    """Return numbers of channels, or of each sample's channels, with a shape that broadcasts to the input's."""
    return by_channel(x, rank) if x.ndim == 1 else ltorch.reshape(x, (*x.shape, *([1] * (rank - 2))))


@torchsymbol(id="torch.instance_norm_forward", layout="contiguous on gpu")
def instance_norm_forward(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    """Normalize each instance. Return `(out, mean, invstd, new_means, new_vars)`, of shape `(n, c)` but for `out`.

    The means over the samples of `new_means` and `new_vars` are the new running statistics.
    """
    _check_instances(input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    n, c, *spatial = input.shape
    count = math.prod(spatial)
    x = clang.reshape(wide(input), (n, c, count))
    variance, mean = clang.var_mean(x, 2, correction=0)
    invstd = ltorch.rsqrt(variance + eps)
    normal = (x - _by_instance(mean, 3)) * _by_instance(invstd, 3)
    out = clang.maybe_convert_to_dtype(_affine(normal, weight, bias), input.dtype)
    new_means = _running(running_mean, mean, momentum)
    unbiased = variance * (count / (count - 1) if count > 1 else math.nan)
    return clang.reshape(out, input.shape), mean, invstd, new_means, _running(running_var, unbiased, momentum)


@torchsymbol(id="torch.instance_norm_backward", layout="contiguous on gpu")
def instance_norm_backward(
    grad: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, mean: Any, invstd: Any, train: bool,
    eps: float,
) -> Any:  # fmt: skip
    """Return the gradient of instance normalization's input, and each sample's gradients of the weight and bias.

    The latter have the shape `(n, c)`, and are not rounded. If `train`, the statistics `mean` and `invstd` of the
    instances are differentiated too. Otherwise, they are None, and the running statistics are constants.
    """
    n, c, *spatial = input.shape
    count = math.prod(spatial)
    g, x = (clang.reshape(wide(p), (n, c, count)) for p in (grad, input))
    if not train:
        mean, invstd = wide(running_mean), ltorch.rsqrt(wide(running_var) + eps)
    scale = _by_instance(invstd, 3)
    normal = (x - _by_instance(mean, 3)) * scale
    sum_g, sum_gn = clang.sum(g, 2), clang.sum(g * normal, 2)
    of_input = g
    if train:
        of_input = g - _by_instance(sum_g / max(count, 1), 3) - normal * _by_instance(sum_gn / max(count, 1), 3)
    if weight is not None:
        scale = scale * by_channel(wide(weight), 3)
    of_input = clang.maybe_convert_to_dtype(of_input * scale, input.dtype)
    return clang.reshape(of_input, input.shape), sum_gn, sum_g


def _put_gradients(out: Any, input: Any, weight: Any, bias: Any, *statistics: Any) -> None:
    of_input, *sums = instance_norm_backward(get_grad(out), input, weight, *statistics)
    of_weight, of_bias = (
        None if x is None else clang.maybe_convert_to_dtype(clang.sum(of, 0), x.dtype)
        for of, x in zip(sums, (weight, bias))
    )
    put_grads((input, weight, bias), (of_input, of_weight, of_bias))


@torchsymbol(id="torch.instance_norm_train", layout="contiguous on gpu")
def instance_norm_train(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    """Normalize each instance. Return `(out, new_running_mean, new_running_var)`.

    The new running statistics are None if no running statistics were passed in. `torch.instance_norm` writes them into
    its arguments. Its handler calls this operation and writes them back.
    """
    return _train(input, weight, bias, running_mean, running_var, momentum, eps)[:3]


def _train(input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float) -> Any:
    _check_instances(input)
    check(
        math.prod(input.shape[2:]) != 1,
        lambda: f"Expected more than 1 spatial element when training, got input size torch.Size({list(input.shape)})",
        ValueError,
    )
    outs = instance_norm_forward(input, weight, bias, running_mean, running_var, momentum, eps)
    out, mean, invstd, *new = outs
    return out, *(None if x is None else clang.mean(x, 0) for x in new), mean, invstd


@instance_norm_train.grad
def _(input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float) -> Any:
    *outs, mean, invstd = _train(input, weight, bias, running_mean, running_var, momentum, eps)
    _put_gradients(outs[0], input, weight, bias, None, None, mean, invstd, True, eps)
    return tuple(outs)


@torchsymbol(torch.nn.functional.instance_norm, is_method=False, layout="contiguous on gpu")
def instance_norm(
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Normalize each channel of each sample of `input`, with its own statistics or with the running statistics.

    This operation does not write. `instance_norm_train` returns the new running statistics.
    """
    if use_input_stats:
        return instance_norm_train(input, weight, bias, running_mean, running_var, momentum, eps)[0]
    check(
        running_mean is not None and running_var is not None,
        lambda: "Expected running_mean and running_var to be defined when use_input_stats is false",
    )
    _check_instances(input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)


@instance_norm.grad
def _(
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if use_input_stats:
        out, _, _, *instances = _train(input, weight, bias, running_mean, running_var, momentum, eps)
        statistics = None, None, *instances
    else:
        out = instance_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
        statistics = running_mean, running_var, None, None
    _put_gradients(out, input, weight, bias, *statistics, use_input_stats, eps)
    return out


@instance_norm.samples
def _(make: MakeTensor) -> Any:
    for shape in ((2, 3, 4), (2, 3, 4, 5)):
        given = _batch_arguments(make, shape)
        yield SampleInput(make(shape))
        yield SampleInput(make(shape), weight=given["weight"], bias=given["bias"], eps=0.1)
        yield SampleInput(make(shape), **given, use_input_stats=False)


@instance_norm.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3, 1))), ValueError, "Expected more than 1 spatial element when training"
    yield SampleInput(make((2, 3, 4)), use_input_stats=False), RuntimeError, "Expected running_mean and running_var"


def _instance_samples(make: MakeTensor) -> Any:
    fixed: Any = functools.partial(make, requires_grad=False)
    given = _batch_arguments(fixed, (2, 3, 4))
    yield SampleInput(
        fixed((2, 3, 4)), given["weight"], given["bias"], given["running_mean"], given["running_var"], 0.1, 1e-5
    )
    yield SampleInput(fixed((2, 3, 4)), None, None, None, None, 0.1, 1e-5)


instance_norm_train.samples(_instance_samples)
instance_norm_forward.samples(_instance_samples)


@instance_norm_backward.samples
def _(make: MakeTensor) -> Any:
    # Same as for batch_norm_backward.
    fixed: Any = functools.partial(make, requires_grad=False)
    given = _batch_arguments(make, (2, 3, 4))
    stats = [given["running_mean"], given["running_var"]]
    instances = [fixed((2, 3), dtype=_statistics(make)), fixed((2, 3), low=0.5, dtype=_statistics(make))]
    x, g = fixed((2, 3, 4)), make((2, 3, 4))
    yield SampleInput(g, x, given["weight"], None, None, *instances, True, 1e-5)
    yield SampleInput(g, x, None, *stats, None, None, False, 1e-5)
