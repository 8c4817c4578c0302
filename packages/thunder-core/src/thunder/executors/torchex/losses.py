# SPDX-License-Identifier: Apache-2.0
"""torch's kernels for negative log likelihood, and a gradient rule for cross-entropy that uses them.

The declared gradient rule of cross-entropy saves the input and recomputes softmax. torch's kernels are fastest if they
are used as in eager mode: log_softmax, which is saved for backward, and then nll_loss. This module's rule does that if
torch runs cross-entropy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import thunder.torch as ltorch
from thunder import clang
from thunder.core.prims import get_grad, put_grad
from thunder.executors.torchex.base import ex, torch_impl, torch_operator
from thunder.torch.cross_entropy import (
    _by_class,
    _check_numbers,
    _check_smoothing,
    _class_dim,
    _rows,
    check_constant,
    probability_rule,
    rule_options,
)

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


@torch_impl(ltorch.nll_loss_forward)
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


@torch_impl(ltorch.nll_loss_backward)
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
def _alike(grad: Any, self: Any, target: Any, *how: Any) -> bool | str:
    same = grad.dtype == self.dtype == target.dtype and tuple(self.shape) == tuple(target.shape)
    return same or "torch's kernel supports only tensors of the same shape and dtype"


def _difference_backward(name: str) -> Callable[..., torch.Tensor]:
    """Return torch's kernel for the gradient of the loss `name` with respect to its first tensor."""
    kernel = getattr(aten, f"{name}_loss_backward")

    def backward(grad: torch.Tensor, self: torch.Tensor, target: torch.Tensor, *how: Any) -> torch.Tensor:
        if not self.is_floating_point():  # the kernels accept integers, but round intermediate values
            raise NotImplementedError(f'"{name}_backward" not implemented for {self.dtype}')
        return kernel(grad, self, target, *how)  # type: ignore[no-any-return]

    backward.__name__ = f"{name}_loss_backward"
    return backward


for _sym in (ltorch.mse_loss_backward, ltorch.smooth_l1_loss_backward, ltorch.huber_loss_backward):
    torch_impl(_sym, checker=_alike)(_difference_backward(_sym.name.removesuffix("_loss_backward")))


# -- cross-entropy -----------------------------------------------------------------------------------------------------
def _smoothing_loss(x: Any, target: Any, weight: Any, ignore_index: int, reduction: str, smoothing: float) -> Any:
    """Return the term that label smoothing adds to the loss of log-probabilities.

    Also return the function that computes each row's gradient from the cotangent, in the order of torch's formulas.
    """
    dim = _class_dim(x)
    _, of_row, counts = _rows(x, target, weight, ignore_index)
    product = x if weight is None else x * _by_class(weight, x)
    loss = ltorch.where(counts, -clang.sum(product, dim), 0.0)
    share = smoothing / x.shape[dim]
    if reduction == "mean":
        total = clang.sum(of_row)
        return clang.sum(loss) / total * share, lambda g: ltorch.where(counts, g * share / total, 0.0)
    # `where` of two numbers would be float32. A cotangent that is a number would be promoted to float32.
    of_rows = clang.maybe_convert_to_dtype(counts, clang.reductions.compute_dtype(x.dtype)) * share
    return (loss if reduction == "none" else clang.sum(loss)) * share, lambda g: g * of_rows


def _cross_entropy_rule(input: Any, target: Any, *options: Any, **named: Any) -> Any:
    weight, ignore_index, reduction, label_smoothing = rule_options(*options, **named)
    if target.shape == input.shape:
        return probability_rule(input, target, weight, reduction, label_smoothing)
    _check_numbers(input, target, weight)
    _check_smoothing(label_smoothing)
    dim = _class_dim(input)
    x = ltorch.log_softmax(input, dim)
    check_constant(weight)
    loss, total = ltorch.nll_loss_forward(x, target, weight, reduction, ignore_index)
    if not label_smoothing:
        g = get_grad(loss)
        of_x = ltorch.nll_loss_backward(g, x, target, weight, reduction, ignore_index, total)
        put_grad(input, ltorch.log_softmax_backward(of_x, x, dim))
        return loss
    smoothed, of_row = _smoothing_loss(x, target, weight, ignore_index, reduction, label_smoothing)
    out = loss * (1 - label_smoothing) + smoothed.to(loss.dtype)
    g = get_grad(out)
    of_loss = g * (1 - label_smoothing)
    of_x = ltorch.nll_loss_backward(of_loss, x, target, weight, reduction, ignore_index, total)
    spread = ltorch.unsqueeze(of_row(g), dim)
    of_x = of_x - (spread if weight is None else spread * _by_class(weight, x))
    put_grad(input, ltorch.log_softmax_backward(of_x.to(x.dtype), x, dim))
    return out


ex.register_implementation(
    ltorch.cross_entropy, torch_operator(torch.nn.functional.cross_entropy), grad_transform=_cross_entropy_rule
)
