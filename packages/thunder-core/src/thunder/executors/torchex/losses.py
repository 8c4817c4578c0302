# SPDX-License-Identifier: Apache-2.0
"""Losses: a gradient rule for cross-entropy that uses torch's kernels for negative log likelihood.

The declared gradient rule of cross-entropy saves the input and recomputes softmax. torch's kernels are fastest if they
are used as in eager mode: log_softmax, which is saved for backward, and then nll_loss. This module's rule does that if
torch runs cross-entropy.
"""

from __future__ import annotations

from typing import Any

import torch

import thunder.torch as ltorch
from thunder import clang
from thunder.core.prims import get_grad, put_grad
from thunder.executors.torchex.base import ex, torch_impl, torch_operator
from thunder.runtime.kernels.table import kernels
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


def _alike(grad: Any, self: Any, target: Any, *how: Any) -> bool | str:
    same = grad.dtype == self.dtype == target.dtype and tuple(self.shape) == tuple(target.shape)
    return same or "torch's kernel supports only tensors of the same shape and dtype"


for _sym in (ltorch.mse_loss_backward, ltorch.smooth_l1_loss_backward, ltorch.huber_loss_backward):
    torch_impl(_sym, checker=_alike)(kernels[_sym.name])


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
