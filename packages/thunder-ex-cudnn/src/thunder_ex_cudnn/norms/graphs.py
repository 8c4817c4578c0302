# SPDX-License-Identifier: Apache-2.0
"""cuDNN's graphs for norms of rows, forward and backward.

A tensor of N rows of C elements is (N, C, 1, 1) to cuDNN, with its rows dense; statistics are (N, 1, 1, 1).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from thunder_ex_cudnn.plans import Context, Ints, Plan, library, type_of

__all__ = ["Call", "backward_plan", "forward_plan"]


class Call(NamedTuple):
    """One kind of call, which is also the key that its plan is kept under. `centred`: layer norm."""

    backward: bool
    centred: bool
    rows: int
    columns: int
    dtype: torch.dtype
    weight_dtype: torch.dtype


class _Description:
    """A graph that is being described, and its tensors in the order in which they will be handed over."""

    def __init__(self, context: Context, call: Call):
        kinds = library().data_type
        self.call = call
        self.graph: Any = library().pygraph(
            name="thunder",
            io_data_type=type_of(call.dtype),
            intermediate_data_type=kinds.FLOAT,
            compute_data_type=kinds.FLOAT,
            handle=context.handle,
        )
        self.tensors: list[Any] = []
        self.outputs: list[tuple[Ints, Ints, torch.dtype]] = []
        n, c = call.rows, call.columns
        self.layouts = {"x": ((n, c, 1, 1), (c, 1, c, c)), "w": ((1, c, 1, 1), (c, 1, c, c))}
        self.layouts["s"] = ((n, 1, 1, 1), (1, 1, 1, 1))

    def _kind(self, what: str) -> torch.dtype:
        return {"x": self.call.dtype, "w": self.call.weight_dtype}.get(what, torch.float32)

    def input(self, name: str, what: str) -> Any:
        """`what`: x, like the rows; w, like the weight; s, like a statistic."""
        shape, strides = self.layouts[what]
        kind = type_of(self._kind(what))
        made = self.graph.tensor(name=name, dim=list(shape), stride=list(strides), data_type=kind)
        self.tensors.append(made)
        return made

    def epsilon(self) -> Any:
        made = self.graph.tensor(
            name="epsilon", dim=[1] * 4, stride=[1] * 4, data_type=library().data_type.FLOAT, is_pass_by_value=True
        )
        self.tensors.append(made)
        return made

    def output(self, made: Any, what: str) -> None:
        shape, strides = self.layouts[what]
        kind = self._kind(what)
        made.set_output(True).set_dim(list(shape)).set_stride(list(strides)).set_data_type(type_of(kind))
        self.tensors.append(made)
        self.outputs.append((shape, strides, kind))


def forward_plan(context: Context, call: Call) -> Plan:
    """Takes rows, weight, (bias,) epsilon, and then the result, (the means,) and 1 / the standard deviations."""
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
    return context.finish(d.graph, d.tensors, d.outputs)


def backward_plan(context: Context, call: Call) -> Plan:
    """Takes gradient, rows, weight, the statistics, and then the gradients of rows, weight (and bias)."""
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
    return context.finish(d.graph, d.tensors, d.outputs)
