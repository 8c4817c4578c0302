# SPDX-License-Identifier: Apache-2.0
"""Check which calls of cross-entropy the executor supports; execute and differentiate them."""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
from thunder.extend import dtypes, get_grad, put_grad
from thunder.toolkit.claiming import loss_reduction
from thunder_ex_triton.cross_entropy.operators import (
    Loss,
    LossBackward,
    LossForward,
    SoftBackward,
    SoftForward,
    gradient_of_probabilities,
)
from thunder_ex_triton.probe import unusable_device

__all__ = ["DTYPES", "register", "takes"]

DTYPES = ("float64", "float32", "float16", "bfloat16")
_TAKEN = tuple(getattr(dtypes, name) for name in DTYPES)


def takes(
    input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> bool | str:  # fmt: skip
    """Return True, or the reason why the kernels do not support the call."""
    reason = unusable_device(input.device)
    if reason is not None:
        return reason
    if any(x is not None and x.device != input.device for x in (target, weight)):
        return "the tensors are on several devices"
    if input.dtype not in _TAKEN:
        return f"the kernels support logits in {', '.join(DTYPES)}, not {input.dtype}"
    if input.numel() == 0:
        return "the logits have no elements"
    if weight is not None and weight.requires_grad:
        return "the kernels do not compute the gradient of the weight"
    return True


def register(registry: Any, executor: str) -> None:
    """Register the operators and their gradient, and implement cross-entropy with them."""

    def operator(name: str, of: Any) -> Any:
        return registry.register_operator(name, executor=executor, like=of.like, fn=of.run)

    loss = operator("triton_crossentropy", Loss)
    forward = operator("triton_crossentropy_forward", LossForward)
    backward = operator("triton_crossentropy_backward", LossBackward)
    soft_forward = operator("triton_crossentropy_soft_forward", SoftForward)
    soft_backward = operator("triton_crossentropy_soft_backward", SoftBackward)

    def execution(
        input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
        reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
    ) -> Any:  # fmt: skip
        reduction = loss_reduction(reduction, size_average, reduce)
        return loss(input, target, weight, None, ignore_index, None, reduction, label_smoothing)

    def gradient(
        input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
        reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
    ) -> Any:  # fmt: skip
        reduction = loss_reduction(reduction, size_average, reduce)
        return gradient_of_loss(input, target, weight, None, ignore_index, None, reduction, label_smoothing)

    def gradient_of_loss(
        input: Any, target: Any, weight: Any, size_average: Any, ignore_index: int, reduce: Any, reduction: str,
        label_smoothing: float, loss_dtype: str | None = None,
    ) -> Any:  # fmt: skip
        if target.shape == input.shape:
            out, lse, mass = soft_forward(input, target, weight, reduction, label_smoothing)
            g = get_grad(out)
            put_grad(input, soft_backward(g, input, target, lse, mass, weight, reduction, label_smoothing))
            of_target = gradient_of_probabilities(g, input, target, lse, weight, reduction, label_smoothing)
            put_grad(target, of_target)
            return out
        how = (weight, ignore_index, reduction, label_smoothing)
        out, lse, total = forward(input, target, *how, *([] if loss_dtype is None else [loss_dtype]))
        put_grad(input, backward(get_grad(out), input, target, lse, total, *how))
        return out

    registry.register_implementation(
        ltorch.cross_entropy,
        executor=executor,
        checker=takes,
        execution_transform=execution,
        grad_transform=gradient,
    )
    registry.register_implementation(loss, loss, executor=executor, grad_transform=gradient_of_loss)
