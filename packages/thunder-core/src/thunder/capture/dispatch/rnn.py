# SPDX-License-Identifier: Apache-2.0
"""Result rules of torch's recurrent functions, e.g. `torch.lstm`.

These functions are opaque operations. With fake tensors, torch would step through the whole sequence to find the shapes
of the results. The rules below are about a hundred times faster.
"""

from __future__ import annotations

from typing import Any

import torch

from thunder.capture.dispatch.registry import gives
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
