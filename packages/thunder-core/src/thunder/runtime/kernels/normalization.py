# SPDX-License-Identifier: Apache-2.0
"""torch's kernels for softmax and the normalizations: forward with the saved statistics, and backward.

In traces, the statistics of 16-bit floats are float32. On the CPU some of torch's kernels use the input's dtype for
statistics. This module converts them, both after forward and before backward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from thunder.runtime.kernels.table import kernel
from thunder.runtime.torch_private import suggest_memory_format

aten = torch.ops.aten
Optional = torch.Tensor | None


def _wide(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Convert statistics to the dtype that they have in traces."""
    return x.float() if like.dtype in (torch.bfloat16, torch.float16) else x


def _as_kernel_has_them(x: torch.Tensor, input: torch.Tensor, weight: Optional) -> torch.Tensor:
    """Convert statistics to the dtype that the backward kernel requires."""
    if input.dtype not in (torch.bfloat16, torch.float16):
        return x
    mixed = weight is not None and weight.dtype != input.dtype
    return x if mixed else x.to(input.dtype)


# -- softmax -----------------------------------------------------------------------------------------------------------
@kernel
def softmax_backward(grad: torch.Tensor, output: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the gradient of softmax's input."""
    return torch._softmax_backward_data(grad, output, dim, output.dtype)


@kernel
def log_softmax_backward(grad: torch.Tensor, output: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the gradient of log_softmax's input."""
    return torch._log_softmax_backward_data(grad, output, dim, output.dtype)


# -- layer normalization -----------------------------------------------------------------------------------------------
@kernel
def layer_norm_forward(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: Optional, bias: Optional, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the result, the mean and the reciprocal of the standard deviation."""
    out, mean, rstd = torch.native_layer_norm(input, normalized_shape, weight, bias, eps)
    return out, _wide(mean, input), _wide(rstd, input)


@kernel
def layer_norm_backward(
    grad: torch.Tensor, input: torch.Tensor, normalized_shape: Sequence[int], mean: torch.Tensor, rstd: torch.Tensor,
    weight: Optional, bias: Optional,
) -> tuple[Optional, Optional, Optional]:  # fmt: skip
    """Return the gradients of input, weight and bias."""
    if input.device.type == "cpu":
        mean, rstd = (_as_kernel_has_them(x, input, weight if weight is not None else bias) for x in (mean, rstd))
    mask = [True, weight is not None, bias is not None]
    return aten.native_layer_norm_backward(grad.contiguous(), input, normalized_shape, mean, rstd, weight, bias, mask)


# -- root mean square normalization ------------------------------------------------------------------------------------
@kernel
def rms_norm_forward(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: Optional, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result, and the reciprocal of the root mean square."""
    return torch._fused_rms_norm(input, list(normalized_shape), weight, eps)


@kernel
def rms_norm_backward(
    grad: torch.Tensor, input: torch.Tensor, normalized_shape: Sequence[int], rstd: torch.Tensor, weight: Optional
) -> tuple[Optional, Optional]:
    """Return the gradients of input and weight."""
    mask = [True, weight is not None]
    if input.device.type == "cuda" and not input.is_complex():
        return aten._fused_rms_norm_backward(grad, input, list(normalized_shape), rstd, weight, mask)
    # torch has no such kernel on the CPU, where it differentiates `input * (input**2).mean().add(eps).rsqrt()`. These
    # are the operations of its backward, in their order. Compute in place if that saves memory.
    first = input.ndim - len(normalized_shape)
    dims = tuple(range(first, input.ndim))
    x, r = _wide(input, input).conj(), rstd.conj()
    of_weight = None
    if weight is not None:
        of_weight = grad * (x * r).to(grad.dtype)
        of_weight = (of_weight.sum(tuple(range(first))) if first else of_weight).to(weight.dtype)
        grad = grad * weight.conj()
    g = _wide(grad, grad)
    of_mean = (g * x).sum(dims, True).mul_(-0.5).mul_(r * r * r).div_(math.prod(normalized_shape))
    of_input = (x * 2).mul_(of_mean).add_(g * r)
    return of_input.to(input.dtype), of_weight


# -- group normalization -----------------------------------------------------------------------------------------------
def _sizes(input: torch.Tensor) -> tuple[int, int, int]:
    return input.shape[0], input.shape[1], math.prod(input.shape[2:])


@kernel
def group_norm_forward(
    input: torch.Tensor, num_groups: int, weight: Optional, bias: Optional, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the result, and the mean and reciprocal standard deviation of each group."""
    weight, bias = (None if x is None else x.contiguous() for x in (weight, bias))
    out, mean, rstd = torch.native_group_norm(_laid_out(input), weight, bias, *_sizes(input), num_groups, eps)
    return out, _wide(mean, input), _wide(rstd, input)


def _laid_out(input: torch.Tensor) -> torch.Tensor:
    # torch's kernels require dense memory in the format that the strides suggest. Only the CPU supports channels-last.
    if input.device.type == "cpu" and input.ndim == 4 and not input.is_contiguous():
        return input.contiguous(memory_format=suggest_memory_format(input))
    return input.contiguous()


@kernel
def group_norm_backward(
    grad: torch.Tensor, input: torch.Tensor, num_groups: int, mean: torch.Tensor, rstd: torch.Tensor,
    weight: Optional, bias: Optional,
) -> tuple[Optional, Optional, Optional]:  # fmt: skip
    """Return the gradients of input, weight and bias."""
    mean, rstd = (_as_kernel_has_them(x, input, weight if weight is not None else bias) for x in (mean, rstd))
    input = _laid_out(input)
    layout = torch.contiguous_format if input.is_contiguous() else torch.channels_last
    mask = [True, weight is not None, bias is not None]
    weight = None if weight is None else weight.contiguous()
    return aten.native_group_norm_backward(
        grad.contiguous(memory_format=layout), input, mean, rstd, weight, *_sizes(input), num_groups, mask
    )


# -- batch normalization -----------------------------------------------------------------------------------------------
@kernel
def batch_norm_forward(
    input: torch.Tensor, weight: Optional, bias: Optional, running_mean: Optional, running_var: Optional,
    momentum: float, eps: float,
) -> tuple[Optional, ...]:  # fmt: skip
    """Return the result, the batch statistics, the kernel's reserve, and the new running statistics."""
    if not input.numel():  # torch's kernels refuse it; its function leaves the running statistics as they are
        mean, invstd = (_wide(input.new_zeros(input.shape[1]), input) for _ in range(2))
        reserve = torch.empty(0, dtype=torch.uint8, device=input.device)
        running = (None if x is None else x.clone() for x in (running_mean, running_var))
        return torch.empty_like(input), mean, invstd, reserve, *running
    if input.device.type == "cuda" and running_mean is not None and running_var is not None:
        return aten._batch_norm_with_update_functional(input, weight, bias, running_mean, running_var, momentum, eps)
    # torch updates the running statistics in place.
    new_mean, new_var = (None if x is None else x.clone() for x in (running_mean, running_var))
    out, mean, invstd = torch.native_batch_norm(input, weight, bias, new_mean, new_var, True, momentum, eps)
    reserve = torch.empty(0, dtype=torch.uint8, device=input.device)
    return out, _wide(mean, input), _wide(invstd, input), reserve, new_mean, new_var


@kernel
def batch_norm_backward(
    grad: torch.Tensor, input: torch.Tensor, weight: Optional, running_mean: Optional, running_var: Optional,
    mean: Optional, invstd: Optional, train: bool, eps: float, reserve: Optional,
) -> tuple[Optional, Optional, Optional]:  # fmt: skip
    """Return the gradients of input, weight and bias."""
    if not input.numel():  # a division by zero would end the process
        like = input if weight is None else weight
        of_weight, of_bias = (like.new_zeros(input.shape[1]) for _ in range(2))
        return torch.empty_like(input), None if weight is None else of_weight, of_bias
    if mean is None and running_mean is not None and running_var is not None and input.device.type == "cuda":
        mean, var = _wide(running_mean, running_mean), _wide(running_var, running_var)
        invstd = (var + eps).rsqrt()  # some kernels require the running statistics
    # Without a weight, torch computes no gradient of the bias. The weight must have the dtype of the running
    # statistics.
    like = weight
    if like is None:
        dtype = input.dtype if running_mean is None else running_mean.dtype
        like = torch.ones(input.shape[1], dtype=dtype, device=input.device)
    if train and running_mean is not None:  # they are not read, but must have the weight's dtype
        running_mean = running_var = like
    if mean is not None and input.device.type == "cpu":
        mean, invstd = (_as_kernel_has_them(x, input, like) for x in (mean, invstd))
    if (
        train
        and reserve is not None
        and reserve.numel()  # cuDNN's, or the forward kernel was torch's
        and input.device.type == "cuda"
        and running_mean is not None
        and weight is not None
    ):
        return aten.batch_norm_backward(
            grad, input, weight, running_mean, running_var, mean, invstd, True, eps, [True, True, True], reserve
        )
    of_input, of_weight, of_bias = aten.native_batch_norm_backward(
        grad, input, like, running_mean, running_var, mean, invstd, train, eps, [True, True, True]
    )
    return of_input, None if weight is None else of_weight, of_bias.to(input.dtype) if weight is None else of_bias


# -- instance normalization --------------------------------------------------------------------------------------------
def _as_one_sample(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(1, x.shape[0] * x.shape[1], *x.shape[2:])


@kernel
def instance_norm_forward(
    input: torch.Tensor, weight: Optional, bias: Optional, running_mean: Optional, running_var: Optional,
    momentum: float, eps: float,
) -> tuple[Optional, ...]:  # fmt: skip
    """Return the result, and of each instance the mean, reciprocal standard deviation and new running statistics."""
    n, c = input.shape[:2]
    w, b, *old = (None if x is None else x.repeat(n) for x in (weight, bias, running_mean, running_var))
    outs: Any = batch_norm_forward(_as_one_sample(input), w, b, old[0], old[1], momentum, eps)
    out, mean, invstd, _, *new = outs
    return out.reshape(input.shape), *(None if x is None else x.reshape(n, c) for x in (mean, invstd, *new))


@kernel
def instance_norm_backward(
    grad: torch.Tensor, input: torch.Tensor, weight: Optional, running_mean: Optional, running_var: Optional,
    mean: Optional, invstd: Optional, train: bool, eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the gradient of input, and each sample's gradients of weight and bias in single precision or more."""
    n, c = input.shape[:2]
    if weight is None:
        weight = torch.ones(c, dtype=input.dtype, device=input.device)
    # The gradients of the weight and bias have the dtype of the weight.
    w, m, v = (None if x is None else _wide(x, x).repeat(n) for x in (weight, running_mean, running_var))
    mean, invstd = (None if x is None else x.reshape(-1) for x in (mean, invstd))
    outs: Any = batch_norm_backward(
        _as_one_sample(grad), _as_one_sample(input), w, m, v, mean, invstd, train, eps, None
    )
    of_input, *sums = outs
    return of_input.reshape(input.shape), *(x.reshape(n, c) for x in sums)
