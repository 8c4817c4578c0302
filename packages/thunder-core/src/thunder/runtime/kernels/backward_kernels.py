# SPDX-License-Identifier: Apache-2.0
"""torch's backward kernels, under the names of the operations whose gradients they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder.runtime.kernels import reductions, sorting
from thunder.runtime.kernels.table import kernel, kernels

aten = torch.ops.aten
SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


# -- gradients that read the input -------------------------------------------------------------------------------------
@kernel
def gelu_backward(g: Any, input: Any, approximate: str = "none") -> Any:
    """Return the gradient of gelu's input."""
    return aten.gelu_backward(g, input, approximate=approximate)


@kernel
def silu_backward(g: Any, input: Any, inplace: bool = False) -> Any:
    """Return the gradient of silu's input."""
    return aten.silu_backward(g, input)


@kernel
def mish_backward(g: Any, input: Any, inplace: bool = False) -> Any:
    """Return the gradient of mish's input."""
    return aten.mish_backward(g, input)


@kernel
def hardswish_backward(g: Any, input: Any, inplace: bool = False) -> Any:
    """Return the gradient of hardswish's input."""
    return aten.hardswish_backward(g, input)


@kernel
def hardsigmoid_backward(g: Any, input: Any, inplace: bool = False) -> Any:
    """Return the gradient of hardsigmoid's input."""
    return aten.hardsigmoid_backward(g, input)


@kernel
def logsigmoid_backward(g: Any, input: Any) -> Any:
    """Return the gradient of logsigmoid's input."""
    # Only the CPU's kernel reads the second result of forward.
    buffer = aten.log_sigmoid_forward(input)[1] if input.device.type == "cpu" else input.new_empty(0)
    return aten.log_sigmoid_backward(g, input, buffer)


@kernel
def softplus_backward(g: Any, input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Return the gradient of softplus's input."""
    return aten.softplus_backward(g, input, beta, threshold)


@kernel
def elu_backward(g: Any, input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """Return the gradient of elu's input."""
    return aten.elu_backward(g, alpha, 1, 1, False, input)


@kernel
def selu_backward(g: Any, input: Any, inplace: bool = False) -> Any:
    """Return the gradient of selu's input."""
    return aten.elu_backward(g, SELU_ALPHA, SELU_SCALE, 1, False, input)


@kernel
def celu_backward(g: Any, input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """Return the gradient of celu's input."""
    return aten.elu_backward(g, alpha, 1, 1.0 / _in_float32(alpha), False, input)


def _in_float32(x: float) -> float:
    return torch.tensor(x, dtype=torch.float32, device="cpu").item()


@kernel
def glu_backward(g: Any, input: Any, dim: int = -1) -> Any:
    """Return the gradient of glu's input."""
    return aten.glu_backward(g, input, dim)


# -- gradients that read the result ------------------------------------------------------------------------------------
kernels["tanh_backward"] = aten.tanh_backward
kernels["sigmoid_backward"] = aten.sigmoid_backward


@kernel
def relu_backward(g: Any, out: Any) -> Any:
    """Return the gradient of relu's input."""
    return aten.threshold_backward(g, out, 0)


# -- gradients of several tensors --------------------------------------------------------------------------------------
@kernel
def convolution_parameters_grad(g: Any, a: Any, weight: Any, *how: Any) -> tuple[Any, Any]:
    """Return the gradients of a convolution's weight and bias."""
    size = [filters(weight, *how)]
    return aten.convolution_backward(g, a, weight, size, *how, [False, True, True])[1:]  # type: ignore[no-any-return]


@kernel
def convolution_grads(g: Any, a: Any, weight: Any, has_bias: bool, *how: Any) -> tuple[Any, ...]:
    """Return the gradients of a convolution's input, weight and, if it has one, bias."""
    size = [filters(weight, *how)] if has_bias else None
    found = aten.convolution_backward(g, a, weight, size, *how, [True, True, has_bias])
    return found if has_bias else found[:2]  # type: ignore[no-any-return]


def filters(weight: Any, *how: Any) -> int:
    """Return the number of a convolution's filters: how many channels its result has."""
    return weight.shape[1] * how[-1] if how[3] else weight.shape[0]  # type: ignore[no-any-return]


# -- gradients whose formulas are in torch's autograd alone ------------------------------------------------------------
def _by_autograd(name: str, run: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def backward(g: Any, input: Any, *options: Any) -> Any:
        with torch.enable_grad():
            leaf = input.detach().requires_grad_()
            return torch.autograd.grad(run(leaf, *options), leaf, g)[0]

    backward.__name__ = name
    return backward


kernel(_by_autograd("prod_backward", reductions.prod))
kernel(_by_autograd("cumprod_backward", sorting.cumprod))
