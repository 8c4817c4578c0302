# SPDX-License-Identifier: Apache-2.0
"""Layer and RMS norms by apex's `fused_layer_norm_cuda`: the checkers and the implementations.

apex treats the input as a matrix whose columns are the normalized dimensions. The statistics are returned in torch's
shape and saved for backward: the mean and rstd (the reciprocal standard deviation, or the reciprocal root mean square).
"""

from __future__ import annotations

from typing import Any

import torch

import thunder.torch as ltorch
from thunder.extend import dtypes, get_grad, put_grads
from thunder.toolkit.launch import on_its_device
from thunder_ex_apex.probe import NORMS, extension, unusable_device

__all__ = ["DTYPES", "OF_LAYERS", "OF_ROOTS", "TOLERANCES", "register", "takes_layer_norm", "takes_rms_norm"]

DTYPES = ("float32", "float16", "bfloat16", "float64")
# apex's layer norm has no gradient in double precision.
OF_LAYERS = (dtypes.float32, dtypes.float16, dtypes.bfloat16)
OF_ROOTS = (*OF_LAYERS, dtypes.float64)
# apex rounds the normalized value to the input's dtype before it multiplies by the weight; torch rounds after the
# multiplication.
TOLERANCES = {"bfloat16": (1.6e-2, 1e-2), "float16": (2e-3, 2e-3)}
# Rows, columns and offsets are 32-bit integers.
MOST_ELEMENTS = 2**31


def _takes(input: Any, normalized_shape: Any, *parameters: Any) -> bool | str:
    if input.ndim == 0 or len(normalized_shape) > input.ndim:
        return "apex normalizes only the last dimensions of a tensor"
    if input.numel() == 0:
        return "the input has no elements"
    if input.numel() >= MOST_ELEMENTS:
        return "apex uses 32-bit indices, but the input has 2**31 or more elements"
    for p in parameters:
        if p is not None and (p.dtype != input.dtype or p.device != input.device):
            return "apex supports only an input and parameters with the same dtype and device"
    return unusable_device(NORMS, input.device) or True


def takes_layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> bool | str:
    """Return True, or the reason why apex does not support the call."""
    if input.dtype not in OF_LAYERS:
        return f"apex's layer norm has no gradient in {input.dtype}"
    if (weight is None) != (bias is None):
        return "apex's layer norm needs a weight and a bias, or none of them"
    return _takes(input, normalized_shape, weight, bias)


def takes_rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> bool | str:
    """Return True, or the reason why apex does not support the call."""
    if input.dtype not in OF_ROOTS:
        return f"apex's norms support {', '.join(DTYPES)}, not {input.dtype}"
    return _takes(input, normalized_shape, weight)


# -- the operators -----------------------------------------------------------------------------------------------------
def _statistics(x: torch.Tensor, like: torch.Tensor, columns: int) -> torch.Tensor:
    """Reshape the statistics of rows to torch's shape."""
    return x.view(*like.shape[: like.ndim - columns], *([1] * columns))


def _shape(normalized_shape: Any) -> list[int]:
    return [int(n) for n in normalized_shape]


@on_its_device
def layer_norm(
    input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the result, the mean and the reciprocal standard deviation (rstd) of each row."""
    x, shape, apex = input.contiguous(), _shape(normalized_shape), extension(NORMS)
    if weight is None or bias is None:
        out, mean, rstd = apex.forward(x, shape, eps)
    else:
        out, mean, rstd = apex.forward_affine(x, shape, weight.contiguous(), bias.contiguous(), eps)
    return out, _statistics(mean, x, len(shape)), _statistics(rstd, x, len(shape))


@on_its_device
def layer_norm_backward(
    grad: torch.Tensor, input: torch.Tensor, normalized_shape: Any, mean: torch.Tensor, rstd: torch.Tensor,
    weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """Return the gradients of input, weight and bias."""
    shape, apex = _shape(normalized_shape), extension(NORMS)
    what = (grad.contiguous(), mean.reshape(-1), rstd.reshape(-1), input.contiguous(), shape)
    if weight is None or bias is None:
        return apex.backward(*what, eps, False), None, None
    of_input, of_weight, of_bias = apex.backward_affine(*what, weight.contiguous(), bias.contiguous(), eps, False)
    return of_input, of_weight, of_bias


def layer_norm_backward_like(
    grad: Any, input: Any, normalized_shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, eps: float
) -> Any:
    """Decompose the gradients into torch's operations."""
    return ltorch.layer_norm_backward(grad, ltorch.contiguous(input), normalized_shape, mean, rstd, weight, bias)


@on_its_device
def rms_norm(
    input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result, and the reciprocal root mean square (rstd) of each row."""
    x, shape, apex = input.contiguous(), _shape(normalized_shape), extension(NORMS)
    eps = _epsilon(x, eps)
    if weight is None:
        out, rstd = apex.rms_forward(x, shape, eps)
    else:
        out, rstd = apex.rms_forward_affine(x, shape, weight.contiguous(), eps)
    return out, _statistics(rstd, x, len(shape))


@on_its_device
def rms_norm_backward(
    grad: torch.Tensor, input: torch.Tensor, normalized_shape: Any, rstd: torch.Tensor, weight: torch.Tensor | None,
    eps: float | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Return the gradients of input and weight."""
    shape, apex = _shape(normalized_shape), extension(NORMS)
    what = (grad.contiguous(), rstd.reshape(-1), input.contiguous(), shape)
    if weight is None:
        return apex.rms_backward(*what, _epsilon(input, eps), False), None
    of_input, of_weight = apex.rms_backward_affine(*what, weight.contiguous(), _epsilon(input, eps), False)
    return of_input, of_weight


def rms_norm_backward_like(
    grad: Any, input: Any, normalized_shape: Any, rstd: Any, weight: Any, eps: float | None
) -> Any:
    """Decompose the gradients into torch's operations."""
    return ltorch.rms_norm_backward(grad, ltorch.contiguous(input), normalized_shape, rstd, weight)


def _epsilon(x: torch.Tensor, eps: float | None) -> float:
    """Return `eps`. If `eps` is None, return torch's default, which depends on the dtype of torch's computation."""
    return torch.finfo(torch.float64 if x.dtype is torch.float64 else torch.float32).eps if eps is None else eps


def _like_contiguous(forward: Any) -> Any:
    """Return the decomposition into torch's operation on a contiguous input."""

    def like(input: Any, *args: Any) -> Any:
        return forward(ltorch.contiguous(input), *args)

    return like


def register(registry: Any, executor: str) -> None:
    """Register the operators, and implement the norms with them."""

    def operator(name: str, like: Any, fn: Any) -> Any:
        return registry.register_operator(name, executor=executor, like=like, fn=fn)

    layer = operator("apex_layer_norm", _like_contiguous(ltorch.layer_norm_forward), layer_norm)
    layer_backward = operator("apex_layer_norm_backward", layer_norm_backward_like, layer_norm_backward)
    rms = operator("apex_rms_norm", _like_contiguous(ltorch.rms_norm_forward), rms_norm)
    rms_backward = operator("apex_rms_norm_backward", rms_norm_backward_like, rms_norm_backward)

    def layer_execution(input: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        return layer(input, shape, weight, bias, eps)[0]

    def layer_gradient(input: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        out, mean, rstd = layer(input, shape, weight, bias, eps)
        put_grads((input, weight, bias), layer_backward(get_grad(out), input, shape, mean, rstd, weight, bias, eps))
        return out

    def rms_execution(input: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
        return rms(input, shape, weight, eps)[0]

    def rms_gradient(input: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
        out, rstd = rms(input, shape, weight, eps)
        put_grads((input, weight), rms_backward(get_grad(out), input, shape, rstd, weight, eps))
        return out

    for symbol, checker, execution, gradient in (
        (ltorch.layer_norm, takes_layer_norm, layer_execution, layer_gradient),
        (ltorch.rms_norm, takes_rms_norm, rms_execution, rms_gradient),
    ):
        registry.register_implementation(
            symbol, executor=executor, checker=checker, execution_transform=execution, grad_transform=gradient,
            measured=True,
        )  # fmt: skip
