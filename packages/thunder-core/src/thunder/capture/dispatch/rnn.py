# SPDX-License-Identifier: Apache-2.0
"""Result rules of torch's recurrent functions, e.g. `torch.lstm`.

These functions are opaque operations. With fake tensors, torch would step through the whole sequence to find the shapes
of the results. The rules below are about a hundred times faster.
"""

from __future__ import annotations

from typing import Any

import torch

from thunder.capture.dispatch.registry import gives, gradient_formula
from thunder.core.proxies import TensorProxy

__all__: list[str] = []


def _arguments(*args: Any) -> tuple[TensorProxy, Any, Any, int, float, bool, bool]:
    """Return the input, states, weights, layers, dropout, training and bidirectional of a padded or packed call."""
    if isinstance(args[3], (tuple, list)):  # (data, batch_sizes, hx, params, has_biases, ...)
        args = (args[0], *args[2:])
    x, hx, params, _, layers, dropout, train, bidirectional = args[:8]
    return x, hx, params, layers, dropout, train, bidirectional


def _shaped(x: TensorProxy, h: TensorProxy, params: Any, bidirectional: bool) -> TensorProxy:
    if x.shape[-1] != params[0].shape[-1]:
        raise RuntimeError(f"the input has {x.shape[-1]} features, but the weights expect {params[0].shape[-1]}")
    return TensorProxy(like=x, shape=(*x.shape[:-1], h.shape[-1] * (2 if bidirectional else 1)), requires_grad=True)


def _drops(*args: Any) -> bool:
    """Check whether the call applies dropout between layers."""
    *_, layers, dropout, train, _ = _arguments(*args)
    return bool(train and dropout > 0 and layers > 1)


@gives(torch.gru, torch.rnn_tanh, torch.rnn_relu, draws=_drops)
def _plain(*args: Any) -> Any:
    x, hx, params, *_, bidirectional = _arguments(*args)
    return _shaped(x, hx, params, bidirectional), TensorProxy(like=hx, requires_grad=True)


@gives(torch.lstm, draws=_drops)
def _lstm(*args: Any) -> Any:
    x, (h, c), params, *_, bidirectional = _arguments(*args)
    states = (TensorProxy(like=state, requires_grad=True) for state in (h, c))
    return (_shaped(x, h, params, bidirectional), *states)


@gives(torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
def _cell(x: TensorProxy, hx: TensorProxy, *weights: Any) -> Any:
    return TensorProxy(like=hx, requires_grad=True)


@gives(torch.lstm_cell)
def _lstm_cell(x: TensorProxy, hx: Any, *weights: Any) -> Any:
    return tuple([TensorProxy(like=state, requires_grad=True) for state in hx])


@gradient_formula(torch.lstm_cell)
def _lstm_cell_gradients(args: Any, kwargs: Any, cotangents: Any) -> list[torch.Tensor] | None:
    """Compute the gradients from the gates, which takes half the time of running the cell again with autograd."""
    x, (h, c), w_ih, w_hh, *rest = args
    biases = [bias for bias in rest if bias is not None]
    tensors = [x, h, c, w_ih, w_hh, *biases]
    if kwargs or not all(type(t) in (torch.Tensor, torch.nn.Parameter) and t.device.type == "cpu" for t in tensors):
        return None  # a GPU has one kernel for the cell and one for its gradients
    to_h, to_c = cotangents
    linear = torch.nn.functional.linear
    gates = linear(x, w_ih, biases[0] if biases else None).add_(linear(h, w_hh, biases[1] if biases else None))
    i, f, g, o = gates.chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    backward = torch.ops.aten
    to_cell, to_o = to_c, torch.zeros_like(o)
    if to_h is not None:
        cell = torch.addcmul(f * c, i, g).tanh()
        to_o = backward.sigmoid_backward(to_h * cell, o)
        through_h = backward.tanh_backward(to_h * o, cell)
        to_cell = through_h if to_c is None else through_h.add_(to_c)
    to_gates = torch.cat([
        backward.sigmoid_backward(to_cell * g, i), backward.sigmoid_backward(to_cell * c, f),
        backward.tanh_backward(to_cell * i, g), to_o,
    ], -1)  # fmt: skip
    rows, flat = to_gates.reshape(-1, to_gates.shape[-1]), [t.reshape(-1, t.shape[-1]) for t in (x, h)]
    to_bias = rows.sum(0)
    found = [to_gates @ w_ih, to_gates @ w_hh, to_cell * f, rows.mT @ flat[0], rows.mT @ flat[1]]
    return [*found, *([to_bias, to_bias.clone()] if biases else [])]
