# SPDX-License-Identifier: Apache-2.0
"""The multiplications that multimul claims. Only gradients use its second product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.extend import TensorProxy, get_grad, put_grads

DTYPES = ("float32", "float64", "int32", "int64")


def takes(a: Any, b: Any) -> bool | str:
    """Return True, or the reason why not, which thunder.examine shows."""
    if not (isinstance(a, TensorProxy) and isinstance(b, TensorProxy)):
        return "multiplies two tensors, not a tensor and a number"
    for x in (a, b):
        if x.device.type != "cpu":
            return f"NumPy does not support {x.device}"
    if tuple(a.shape) != tuple(b.shape):
        return "does not broadcast"
    if a.dtype != b.dtype or str(a.dtype).rpartition(".")[2] not in DTYPES:
        return f"multiplies two tensors of one dtype, which is one of {', '.join(DTYPES)}"
    return True


def make_transforms(multimul: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return functions that run a multiplication with `multimul`, and differentiate it with a single call."""

    def mul_to_multimul(a: TensorProxy, b: TensorProxy) -> TensorProxy:
        result, _ = multimul(a, b, 0, 0)
        return result

    def mul_grad(a: TensorProxy, b: TensorProxy) -> TensorProxy:
        forward = a * b
        g = get_grad(forward)
        a_grad, b_grad = multimul(b, g, a, g)
        put_grads((a, b), (a_grad, b_grad))
        return forward

    return mul_to_multimul, mul_grad
