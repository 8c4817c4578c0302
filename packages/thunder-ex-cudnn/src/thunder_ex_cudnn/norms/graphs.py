# SPDX-License-Identifier: Apache-2.0
"""cuDNN's graphs for norms of rows, forward and backward.

For cuDNN, a tensor of N rows of C elements has the shape (N, C, 1, 1) and contiguous rows. Statistics have the shape
(N, 1, 1, 1).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from thunder_ex_cudnn.plans import Context, Description, Layout, Plan, library

__all__ = ["Call", "backward_plan", "forward_plan"]


class Call(NamedTuple):
    """Everything that a plan depends on.

    It is also the cache key of the plan. `centred`: layer norm, otherwise RMS norm.
    """

    backward: bool
    centred: bool
    rows: int
    columns: int
    dtype: torch.dtype
    weight_dtype: torch.dtype


class _Description(Description):
    """The graph of a norm.

    A letter selects the layout and dtype of a tensor: x, the rows; w, the weight; s, a statistic.
    """

    def __init__(self, context: Context, call: Call):
        super().__init__(context, call.dtype)
        n, c = call.rows, call.columns
        self.like: dict[str, tuple[Layout, torch.dtype]] = {
            "x": (((n, c, 1, 1), (c, 1, c, c)), call.dtype),
            "w": (((1, c, 1, 1), (c, 1, c, c)), call.weight_dtype),
            "s": (((n, 1, 1, 1), (1, 1, 1, 1)), torch.float32),
        }

    def input(self, name: str, what: str) -> Any:
        return self.tensor(name, *self.like[what])

    def epsilon(self) -> Any:
        return self.tensor("epsilon", ((1,) * 4, (1,) * 4), torch.float32, is_pass_by_value=True)

    def output(self, made: Any, what: str) -> None:
        self.result(made, *self.like[what])


def forward_plan(context: Context, call: Call) -> Plan:
    """Plan forward. Its tensors are rows, weight, (bias,) epsilon, the result, (means,) and rstd."""
    d = _Description(context, call)
    x, w = d.input("x", "x"), d.input("weight", "w")
    phase = library().norm_forward_phase.TRAINING
    if call.centred:
        bias = d.input("bias", "w")
        made = d.graph.layernorm(norm_forward_phase=phase, input=x, scale=w, bias=bias, epsilon=d.epsilon())
    else:
        made = d.graph.rmsnorm(norm_forward_phase=phase, input=x, scale=w, epsilon=d.epsilon())
    out, *statistics = made
    d.output(out, "x")
    for each in statistics:
        d.output(each, "s")
    return d.plan()


def backward_plan(context: Context, call: Call) -> Plan:
    """Plan backward. Its tensors are grad, rows, weight, statistics, and the gradients of rows, weight (and bias)."""
    d = _Description(context, call)
    g, x, w = d.input("grad", "x"), d.input("x", "x"), d.input("weight", "w")
    if call.centred:
        mean = d.input("mean", "s")
        made = d.graph.layernorm_backward(grad=g, input=x, scale=w, mean=mean, inv_variance=d.input("rstd", "s"))
    else:
        rstd = d.input("rstd", "s")
        made = d.graph.rmsnorm_backward(grad=g, input=x, scale=w, inv_variance=rstd, has_dbias=False)
    of_x, *of_parameters = [each for each in made if each is not None]
    d.output(of_x, "x")
    for each in of_parameters:
        d.output(each, "w")
    return d.plan()
