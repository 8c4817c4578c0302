# SPDX-License-Identifier: Apache-2.0
"""torch's kernels for negative log likelihood, and for gradients of losses of two tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder.runtime.kernels.table import kernel

aten = torch.ops.aten
_NUMBERS = {"none": 0, "mean": 1, "sum": 2}


# -- negative log likelihood -------------------------------------------------------------------------------------------
def _two_dimensional(input: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Reshape to `(batch, classes, …)`, with matching targets and weights, as torch's 2-D kernel requires."""
    rows = (
        (input.shape[0], 1, -1) if input.numel() else (input.shape[0], 1, others[0].numel() // max(input.shape[0], 1))
    )
    return (
        input.reshape(input.shape[0], input.shape[1], *rows[1:]).contiguous(),
        *[x.reshape(rows).contiguous() for x in others],
    )


@kernel
def nll_loss_forward(
    input: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: str, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss and the sum of the weights."""
    number = _NUMBERS[reduction]
    if input.ndim <= 2:
        loss, total = aten.nll_loss_forward(input, target, weight, number, ignore_index)
    else:
        x, t = (input, target) if input.ndim == 4 else _two_dimensional(input, target)
        loss, total = aten.nll_loss2d_forward(x, t, weight, number, ignore_index)
    if reduction == "none":
        # If the total weight is not used as a divisor, the kernels leave a value in it that depends on the shape.
        return loss.reshape(target.shape), torch.zeros_like(total)
    return loss, total


@kernel
def nll_loss_backward(
    grad: torch.Tensor,
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: str,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient of the input."""
    how = (weight, _NUMBERS[reduction], ignore_index, total_weight)
    if input.ndim <= 2:
        return aten.nll_loss_backward(grad, input, target, *how)
    if input.ndim == 4:
        return aten.nll_loss2d_backward(grad, input, target, *how)
    x, t = _two_dimensional(input, target)
    g = grad.reshape(t.shape) if reduction == "none" else grad
    return aten.nll_loss2d_backward(g, x, t, *how).reshape(input.shape)


# -- differences of two tensors ----------------------------------------------------------------------------------------
def _difference_backward(name: str) -> Callable[..., torch.Tensor]:
    """Return torch's kernel for the gradient of the loss `name` with respect to its first tensor."""
    kernel = getattr(aten, f"{name}_loss_backward")

    def backward(grad: torch.Tensor, self: torch.Tensor, target: torch.Tensor, *how: Any) -> torch.Tensor:
        if not self.is_floating_point():  # the kernels accept integers, but round intermediate values
            raise NotImplementedError(f'"{name}_backward" not implemented for {self.dtype}')
        return kernel(grad, self, target, *how)  # type: ignore[no-any-return]

    backward.__name__ = f"{name}_loss_backward"
    return backward


for _name in ("mse", "smooth_l1", "huber"):
    kernel(_difference_backward(_name))
