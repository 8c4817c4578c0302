# SPDX-License-Identifier: Apache-2.0
"""Norms on tensors: look up the plan of a call, allocate the results, and execute the plan."""

from __future__ import annotations

import functools
import math
from typing import Any, TypeAlias

import torch

from thunder_ex_cudnn.norms.graphs import Call, backward_plan, forward_plan
from thunder_ex_cudnn.plans import Context, context, current_device, dense, new_tensor

__all__ = ["layer_norm_backward", "layer_norm_forward", "rms_norm_backward", "rms_norm_forward"]

Tensor: TypeAlias = torch.Tensor


@functools.lru_cache(maxsize=64)
def _epsilon(eps: float) -> Tensor:
    """Return a number in the form that cuDNN accepts: a tensor on the CPU."""
    return torch.tensor(eps, dtype=torch.float32, device="cpu")


def _numbers(input: Tensor, normalized_shape: Any, weight: Tensor, *, centred: bool, backward: bool) -> Call:
    columns = math.prod(normalized_shape)
    return Call(backward, centred, input.numel() // columns, columns, input.dtype, weight.dtype)


def _plan(call: Call, device: int) -> Any:
    here = context(device)
    plan = here.plans.get(call, here)
    if plan is not here:
        return plan

    def build(here: Context) -> Any:
        return (backward_plan if call.backward else forward_plan)(here, call)

    return here.make(call, build, f"a norm of {call.rows} rows of {call.columns} elements")


def _statistic(input: Tensor, normalized_shape: Any) -> tuple[int, ...]:
    lead = input.ndim - len(normalized_shape)
    return (*input.shape[:lead], *([1] * (input.ndim - lead)))


def _dims(input: Tensor, normalized_shape: Any) -> tuple[int, ...]:
    return tuple(range(input.ndim - len(normalized_shape), input.ndim))


def _row_major(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return new_tensor(tuple(shape), tuple(reversed(strides)), dtype)


def _forward(input: Tensor, normalized_shape: Any, weight: Tensor, bias: Tensor | None, eps: float) -> Any:
    device = input.get_device()
    if device != current_device():
        with torch.cuda.device(device):
            return _forward(input, normalized_shape, weight, bias, eps)
    plan = _plan(_numbers(input, normalized_shape, weight, centred=bias is not None, backward=False), device)
    if plan is None:
        return None
    out = _row_major(tuple(input.shape), input.dtype)
    shape = _statistic(input, normalized_shape)
    statistics = [_row_major(shape, torch.float32) for _ in plan.outputs[1:]]
    parameters = (dense(weight),) if bias is None else (dense(weight), dense(bias))
    plan.run((dense(input), *parameters, _epsilon(eps), out, *statistics))
    return out, *statistics


def _backward(
    grad: Tensor, input: Tensor, normalized_shape: Any, mean: Tensor | None, rstd: Tensor, weight: Tensor
) -> Any:
    if torch.are_deterministic_algorithms_enabled():  # chosen after forward ran
        return None
    device = input.get_device()
    if device != current_device():
        with torch.cuda.device(device):
            return _backward(grad, input, normalized_shape, mean, rstd, weight)
    plan = _plan(_numbers(input, normalized_shape, weight, centred=mean is not None, backward=True), device)
    if plan is None:
        return None
    of_input = _row_major(tuple(input.shape), input.dtype)
    of_parameters = [_row_major(tuple(weight.shape), weight.dtype) for _ in plan.outputs[1:]]
    statistics = (dense(rstd),) if mean is None else (dense(mean), dense(rstd))
    plan.run((dense(grad), dense(input), dense(weight), *statistics, of_input, *of_parameters))
    return of_input, *of_parameters


def rms_norm_forward(input: Tensor, normalized_shape: Any, weight: Tensor, eps: float | None) -> tuple[Tensor, Tensor]:
    """Return the result, and the reciprocal root mean square (rstd) of each row."""
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    made = _forward(input, normalized_shape, weight, None, eps)
    if made is None:  # in steps
        x = input.float()
        rstd = (x.square().mean(_dims(input, normalized_shape), keepdim=True) + eps).rsqrt()
        return (x * rstd * weight.float()).to(input.dtype), rstd
    return made


def rms_norm_backward(
    grad: Tensor, input: Tensor, normalized_shape: Any, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of rows and weight."""
    made = _backward(grad, input, normalized_shape, None, rstd, weight)
    if made is None:  # in steps
        dims, x, g = _dims(input, normalized_shape), input.float() * rstd, grad.float()
        gx = g * weight.float()
        of_input = (gx - x * (gx * x).mean(dims, keepdim=True)) * rstd
        return of_input.to(input.dtype), (g * x).sum_to_size(weight.shape).to(weight.dtype)
    return made


def layer_norm_forward(
    input: Tensor, normalized_shape: Any, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result, and mean and reciprocal standard deviation (rstd) of each row."""
    made = _forward(input, normalized_shape, weight, bias, eps)
    if made is None:
        out, mean, rstd = torch.ops.aten.native_layer_norm(input, list(normalized_shape), weight, bias, eps)
        return out, mean.float(), rstd.float()
    return made


def layer_norm_backward(
    grad: Tensor, input: Tensor, normalized_shape: Any, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of rows, weight and bias."""
    made = _backward(grad, input, normalized_shape, mean, rstd, weight)
    if made is None:  # in steps
        dims, g = _dims(input, normalized_shape), grad.float()
        x, gx = (input.float() - mean) * rstd, g * weight.float()
        of_input = rstd * (gx - gx.mean(dims, keepdim=True) - x * (gx * x).mean(dims, keepdim=True))
        of_weight, of_bias = ((y.sum_to_size(weight.shape)).to(weight.dtype) for y in (g * x, g))
        return of_input.to(input.dtype), of_weight, of_bias
    return made
