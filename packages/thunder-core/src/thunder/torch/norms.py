# SPDX-License-Identifier: Apache-2.0
"""Normalization of each sample: layer, root mean square, group and local response normalization.

The first three have a `_forward` operation, which also returns the statistics, and a `_backward` operation. Only the
input and the statistics are saved for backward. An executor can claim either operation. Statistics of 16-bit floats are
float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims import get_grad, put_grads
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags, Symbol
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol


def _check_affine(name: str, x: Any, shape: Sequence[int]) -> None:
    check(
        x is None or tuple(x.shape) == tuple(shape),
        lambda: (
            f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape {list(x.shape)} and "
            f"normalized_shape = {list(shape)}"
        ),
    )


def _check_normalized(input: Any, normalized_shape: Any, separator: str) -> tuple[int, ...]:
    check(
        isinstance(normalized_shape, Sequence),
        lambda: (
            f"argument 'normalized_shape' (position 2) must be tuple of ints, not {type(normalized_shape).__name__}"
        ),
        TypeError,
    )
    shape = tuple(normalized_shape)
    check(
        bool(shape),
        lambda: (
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
            "normalized_shape = []"
        ),
    )
    check(
        tuple(input.shape[-len(shape) :]) == shape,
        lambda: (
            f"Given normalized_shape={list(shape)}, expected input with shape [*{separator}"
            f"{', '.join(map(str, shape))}], but got input of size{list(input.shape)}"
        ),
    )
    return shape


def check_floating(name: str, input: Any, *, complex: bool = False) -> None:
    """Raise torch's error unless the dtype is floating point."""
    fits = dtypes.is_inexact_dtype(input.dtype) if complex else dtypes.is_float_dtype(input.dtype)
    if not fits:
        raise NotImplementedError(f'"{name}" not implemented for {input.dtype}')


def wide(x: Any) -> Any:
    """Return a tensor in the dtype that its operation computes in. None stays None."""
    return None if x is None else clang.maybe_convert_to_dtype(x, clang.reductions.compute_dtype(x.dtype))


# -- layer normalization -----------------------------------------------------------------------------------------------
@torchsymbol(torch.nn.functional.layer_norm, is_method=False, autocast={"cuda": "float32"}, layout="contiguous")
def layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Normalize `input` to mean 0 and variance 1 over its last dimensions, then multiply by weight and add bias."""
    return _layer_norm(input, normalized_shape, weight, bias, eps)[0]


def _layer_norm(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    shape = _check_normalized(input, normalized_shape, ", ")
    _check_affine("weight", weight, shape)
    _check_affine("bias", bias, shape)
    check_floating("LayerNormKernelImpl", input)
    x = wide(input)
    dims = tuple(range(input.ndim - len(shape), input.ndim))
    variance, mean = clang.var_mean(x, dims, True, correction=0)
    rstd = ltorch.rsqrt(variance + eps)
    out = (x - mean) * rstd
    if weight is not None:
        out = out * wide(weight)
    if bias is not None:
        out = out + wide(bias)
    return clang.maybe_convert_to_dtype(out, input.dtype), mean, rstd


@torchsymbol(id="torch.layer_norm_forward", layout="contiguous on gpu")
def layer_norm_forward(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Return the result of layer_norm, and its statistics: the mean and 1 / standard deviation."""
    return _layer_norm(input, normalized_shape, weight, bias, eps)


@torchsymbol(id="torch.layer_norm_backward", layout="contiguous on gpu")
def layer_norm_backward(
    grad: Any, input: Any, normalized_shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any
) -> Any:
    """Return the gradients of the input, weight and bias of layer_norm."""
    g, x = wide(grad), wide(input)
    first = input.ndim - len(normalized_shape)
    dims, rows = tuple(range(first, input.ndim)), tuple(range(first))
    normal = (x - mean) * rstd
    gx = g if weight is None else g * wide(weight)
    of_input = rstd * (gx - clang.mean(gx, dims, True) - normal * clang.mean(gx * normal, dims, True))
    of_weight = None if weight is None else _summed(g * normal, rows, weight)
    of_bias = None if bias is None else _summed(g, rows, bias)
    return clang.maybe_convert_to_dtype(of_input, input.dtype), of_weight, of_bias


def _summed(x: Any, dims: Any, like: Any) -> Any:
    return clang.maybe_convert_to_dtype(clang.sum(x, dims) if dims else x, like.dtype)


def _with_shared_parameters(op: Symbol) -> Any:
    """Return the batching rule of a normalization whose parameters are the same for all examples."""

    def rule(b: Any, input: Any, normalized_shape: Any, *parameters: Any, **options: Any) -> Any:
        if any(p in b for p in (*parameters, *options.values())):
            return NotImplemented
        return op(input, normalized_shape, *parameters, **options)

    return rule


for _op in (layer_norm, layer_norm_forward):
    _op.batch(_with_shared_parameters(_op))


@layer_norm.grad
def _(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    out, mean, rstd = layer_norm_forward(input, normalized_shape, weight, bias, eps)
    grads = layer_norm_backward(get_grad(out), input, normalized_shape, mean, rstd, weight, bias)
    put_grads((input, weight, bias), grads)
    return out


@layer_norm.samples
def _(make: MakeTensor) -> Any:
    for shape, normalized in (((3, 4), (4,)), ((2, 3, 4), (3, 4)), ((4,), (4,)), ((0, 4), (4,)), ((2, 3, 5), (5,))):
        yield SampleInput(make(shape), normalized, make(normalized), make(normalized))
    yield SampleInput(make((3, 4)), (4,))
    yield SampleInput(make((3, 4)), (4,), make((4,)))
    yield SampleInput(make((3, 4)), (4,), None, make((4,)), 0.1)
    yield SampleInput(make((4, 3)).mT, [4], make((4,)), make((4,)))


@layer_norm.errors
def _(make: MakeTensor) -> Any:
    expected = r"Given normalized_shape=\[4\], expected input with shape \[\*, 4\]"
    yield SampleInput(make((2, 3)), (4,)), RuntimeError, expected
    yield SampleInput(make((2, 3)), (3,), make((4,))), RuntimeError, "Expected weight to be of same shape"
    yield SampleInput(make((2, 3)), ()), RuntimeError, "Expected normalized_shape to be at least 1-dimensional"
    yield SampleInput(make((2, 3), dtype=torch.int64), (3,)), NotImplementedError, "LayerNormKernelImpl"


def _forward_samples(make: MakeTensor) -> Any:
    # torch's kernels give the statistics no gradient. The decomposition does, because second derivatives need it.
    fixed: Any = functools.partial(make, requires_grad=False)
    yield SampleInput(fixed((3, 4)), (4,), fixed((4,)), fixed((4,)), 1e-5)
    yield SampleInput(fixed((2, 3, 4)), (3, 4), None, None, 1e-5)


layer_norm_forward.samples(_forward_samples)


@layer_norm_backward.samples
def _(make: MakeTensor) -> Any:
    # Here, the statistics are arguments, but torch differentiates them as functions of the input. So the test only
    # compares gradients that depend on neither. The tests of layer_norm cover the other second derivatives.
    fixed: Any = functools.partial(make, requires_grad=False)
    kind = _statistics(make)
    mean, rstd = fixed((3, 1), dtype=kind), fixed((3, 1), low=0.1, dtype=kind)
    yield SampleInput(make((3, 4)), fixed((3, 4)), (4,), mean, rstd, make((4,)), fixed((4,)))
    yield SampleInput(make((3, 4)), fixed((3, 4)), (4,), mean, rstd, None, None)


def _statistics(make: MakeTensor) -> Any:
    kind = make(()).dtype
    return torch.float32 if kind in (torch.float16, torch.bfloat16) else kind


# -- root mean square normalization ------------------------------------------------------------------------------------
def _rms_norm(input: Any, normalized_shape: Any, weight: Any, eps: float | None) -> tuple[Any, Any]:
    shape = _check_normalized(input, normalized_shape, "")
    _check_affine("weight", weight, shape)
    check_floating("rms_norm", input, complex=True)
    x = wide(input)
    if eps is None:
        kind = dtypes.corresponding_real_dtype(x.dtype)
        eps = torch.finfo(dtypes.to_torch_dtype(kind)).eps
    dims = tuple(range(input.ndim - len(shape), input.ndim))
    rstd = ltorch.rsqrt(clang.mean(x * x, dims, True) + eps)
    out = x * rstd
    if weight is not None:
        out = out * wide(weight)
    return clang.maybe_convert_to_dtype(out, input.dtype), rstd


@torchsymbol(
    torch.rms_norm,
    torch.nn.functional.rms_norm,
    is_method=False,
    autocast={"cuda": "float32"},
    layout="contiguous on gpu",
)
def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Divide `input` by the root mean square over its last dimensions, then multiply by weight."""
    return _rms_norm(input, normalized_shape, weight, eps)[0]


@torchsymbol(id="torch.rms_norm_forward", layout="contiguous on gpu")
def rms_norm_forward(input: Any, normalized_shape: Any, weight: Any, eps: float | None) -> Any:
    """Return the result of rms_norm, and 1 / the root mean square."""
    return _rms_norm(input, normalized_shape, weight, eps)


@torchsymbol(id="torch.rms_norm_backward", layout="contiguous on gpu")
def rms_norm_backward(grad: Any, input: Any, normalized_shape: Any, rstd: Any, weight: Any) -> Any:
    """Return the gradients of the input and weight of rms_norm."""
    g, x, r, w = wide(grad), wide(input), rstd, wide(weight)
    if dtypes.is_complex_dtype(input.dtype):
        x, r, w = (None if t is None else ltorch.conj(t) for t in (x, r, w))
    first = input.ndim - len(normalized_shape)
    dims, rows = tuple(range(first, input.ndim)), tuple(range(first))
    gx = g if w is None else g * w
    of_input = (gx - x * (r * r * clang.mean(gx * x, dims, True))) * r
    of_weight = None if weight is None else _summed(g * x * r, rows, weight)
    return clang.maybe_convert_to_dtype(of_input, input.dtype), of_weight


for _op in (rms_norm, rms_norm_forward):
    _op.batch(_with_shared_parameters(_op))


@rms_norm.grad
def _(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    out, rstd = rms_norm_forward(input, normalized_shape, weight, eps)
    put_grads((input, weight), rms_norm_backward(get_grad(out), input, normalized_shape, rstd, weight))
    return out


@rms_norm.samples
def _(make: MakeTensor) -> Any:
    for shape, normalized in (((3, 4), (4,)), ((2, 3, 4), (3, 4)), ((4,), (4,)), ((0, 4), (4,))):
        yield SampleInput(make(shape), normalized, make(normalized))
    yield SampleInput(make((3, 4)), (4,))
    yield SampleInput(make((3, 4)), [4], make((4,)), 0.1)
    yield SampleInput(make((4, 3)).mT, (4,), make((4,)), 1e-6)


@rms_norm.errors
def _(make: MakeTensor) -> Any:
    expected = r"Given normalized_shape=\[4\], expected input with shape \[\*4\]"
    yield SampleInput(make((2, 3)), (4,)), RuntimeError, expected
    yield SampleInput(make((2, 3)), (3,), make((4,))), RuntimeError, "Expected weight to be of same shape"
    yield SampleInput(make((2, 3), dtype=torch.int64), (3,)), NotImplementedError, "rms_norm"


@rms_norm_forward.samples
def _(make: MakeTensor) -> Any:
    fixed: Any = functools.partial(make, requires_grad=False)
    yield SampleInput(fixed((3, 4)), (4,), fixed((4,)), 1e-5)
    yield SampleInput(fixed((2, 3, 4)), (3, 4), None, 1e-5)


@rms_norm_backward.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 4)), make((3, 4)), (4,), make((3, 1), low=0.1, dtype=_statistics(make)), make((4,)))


# -- group normalization -----------------------------------------------------------------------------------------------
def _check_group_norm(input: Any, num_groups: int, weight: Any, bias: Any) -> None:
    check(input.ndim >= 2, lambda: f"Expected at least 2 dimensions for input tensor but received {input.ndim}")
    shape = list(input.shape)
    check(num_groups > 0, lambda: f"Expected num groups to be greater than 0, got {num_groups}")
    per_group = shape[0] * shape[1] // num_groups * math.prod(shape[2:])
    check(
        per_group != 1,
        lambda: f"Expected more than 1 value per channel when training, got input size {shape}",
        ValueError,
    )
    check(
        shape[1] % num_groups == 0,
        lambda: (
            "Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{shape} and num_groups={num_groups}"
        ),
    )
    for name, x in (("weight", weight), ("bias", bias)):
        check(
            x is None or (x.ndim == 1 and x.shape[0] == shape[1]),
            lambda: (
                f"Expected {name} to be a vector of size equal to the number of channels in input, but got {name} of "
                "shape "
                f"{list(x.shape)} and input of shape {shape}"
            ),
        )
    check_floating("GroupNormKernelImpl", input)


def by_channel(x: Any, rank: int) -> Any:
    """Return a vector with one number per channel, with a shape that broadcasts to `(batch, channels, …)`."""
    return ltorch.reshape(x, (1, x.shape[0], *([1] * (rank - 2))))


def _group_norm(input: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    _check_group_norm(input, num_groups, weight, bias)
    n, c, *spatial = input.shape
    grouped = clang.reshape(wide(input), (n, num_groups, c // num_groups * math.prod(spatial)))
    variance, mean = clang.var_mean(grouped, 2, True, correction=0)
    rstd = ltorch.rsqrt(variance + eps)
    out = clang.reshape((grouped - mean) * rstd, input.shape)
    if weight is not None:
        out = out * by_channel(wide(weight), input.ndim)
    if bias is not None:
        out = out + by_channel(wide(bias), input.ndim)
    statistics = (ltorch.reshape(x, (n, num_groups)) for x in (mean, rstd))
    return (clang.maybe_convert_to_dtype(out, input.dtype), *statistics)


@torchsymbol(
    torch.group_norm,
    torch.nn.functional.group_norm,
    is_method=False,
    tags=(OpTags.LAYOUT_OF_KERNEL,),
    autocast={"cuda": "float32"},
    layout="contiguous on gpu",
)
def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Normalize groups of channels to mean 0 and variance 1, then multiply each channel by weight and add bias."""
    return _group_norm(input, num_groups, weight, bias, eps)[0]


@torchsymbol(id="torch.group_norm_forward", layout="contiguous on gpu")
def group_norm_forward(input: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """Return the result of group_norm, and the mean and 1 / standard deviation of each group."""
    return _group_norm(input, num_groups, weight, bias, eps)


@torchsymbol(id="torch.group_norm_backward", layout="contiguous on gpu")
def group_norm_backward(grad: Any, input: Any, num_groups: int, mean: Any, rstd: Any, weight: Any, bias: Any) -> Any:
    """Return the gradients of the input, weight and bias of group_norm."""
    n, c, *spatial = input.shape
    grouped = (n, num_groups, c // num_groups * math.prod(spatial))
    g, rstd = wide(grad), ltorch.unsqueeze(rstd, 2)
    normal = (clang.reshape(wide(input), grouped) - ltorch.unsqueeze(mean, 2)) * rstd
    gx = clang.reshape(g if weight is None else g * by_channel(wide(weight), input.ndim), grouped)
    of_input = rstd * (gx - clang.mean(gx, 2, True) - normal * clang.mean(gx * normal, 2, True))
    of_input = clang.maybe_convert_to_dtype(clang.reshape(of_input, input.shape), input.dtype)
    dims = tuple(d for d in range(input.ndim) if d != 1)
    of_weight = None if weight is None else _summed(g * clang.reshape(normal, input.shape), dims, weight)
    return of_input, of_weight, None if bias is None else _summed(g, dims, bias)


@group_norm.grad
def _(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    out, mean, rstd = group_norm_forward(input, num_groups, weight, bias, eps)
    grads = group_norm_backward(get_grad(out), input, num_groups, mean, rstd, weight, bias)
    put_grads((input, weight, bias), grads)
    return out


@group_norm.samples
def _(make: MakeTensor) -> Any:
    for shape, groups in (((2, 6, 4), 3), ((2, 4), 2), ((2, 6, 3, 2), 6), ((1, 2, 5), 1), ((0, 4, 2), 2)):
        yield SampleInput(make(shape), groups, make((shape[1],)), make((shape[1],)))
    yield SampleInput(make((2, 6, 4)), 2)
    yield SampleInput(make((2, 6, 4)), 2, make((6,)), None, 0.1)
    yield SampleInput(make((4, 6, 2)).permute(2, 1, 0), 3, make((6,)), make((6,)))


@group_norm.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 6, 4)), 4), RuntimeError, "to be divisible by num_groups"
    yield SampleInput(make((2, 6, 4)), 3, make((3,))), RuntimeError, "Expected weight to be a vector of size equal"
    yield SampleInput(make((2,)), 1), RuntimeError, "Expected at least 2 dimensions for input tensor but received 1"


@group_norm_forward.samples
def _(make: MakeTensor) -> Any:
    fixed: Any = functools.partial(make, requires_grad=False)
    yield SampleInput(fixed((2, 6, 4)), 3, fixed((6,)), fixed((6,)), 1e-5)
    yield SampleInput(fixed((2, 6)), 2, None, None, 1e-5)


@group_norm_backward.samples
def _(make: MakeTensor) -> Any:
    kind = _statistics(make)
    mean, rstd = make((2, 3), dtype=kind), make((2, 3), low=0.1, dtype=kind)
    yield SampleInput(make((2, 6, 4)), make((2, 6, 4)), 3, mean, rstd, make((6,)), make((6,)))


# -- local response normalization --------------------------------------------------------------------------------------
@torchsymbol(torch.nn.functional.local_response_norm, is_method=False)
def local_response_norm(input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
    """Divide `input` by (k + alpha * the mean square of `size` neighboring channels) ** beta."""
    check(
        input.ndim >= 3,
        lambda: f"Expected 3D or higher dimensionality                          input (got {input.ndim} dimensions)",
        ValueError,
    )
    if 0 in input.shape:
        return input
    n, c, *spatial = input.shape
    around = size // 2, (size - 1) // 2
    if spatial[1:] and input.device.type == "cpu":  # as torch: autocast casts the inputs of this operation on the CPU
        squares = ltorch.reshape(input * input, (n, 1, c, spatial[0], math.prod(spatial[1:])))
        means = ltorch.avg_pool3d(ltorch.pad(squares, (0, 0, 0, 0, *around)), (size, 1, 1), 1)
    else:
        squares = ltorch.reshape(input * input, (n, 1, c, math.prod(spatial)))
        means = ltorch.avg_pool2d(ltorch.pad(squares, (0, 0, *around)), (size, 1), 1)
    return input / (ltorch.reshape(means, input.shape) * alpha + k) ** beta


@local_response_norm.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 5, 4)), 2)
    yield SampleInput(make((2, 5, 3, 4)), 3, 0.1, 0.5, 2.0)
    yield SampleInput(make((2, 5, 3, 4, 2)), 2)
