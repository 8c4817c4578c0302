# SPDX-License-Identifier: Apache-2.0
"""A cache of fp8 copies of parameters, valid until the parameter changes.

A parameter is quantized once between two steps of its optimizer, for all micro-batches. The cache detects a change of a
parameter in three ways. Its version changes: torch increments it at each write. Its address changes. Or, for a trained
parameter, any optimizer of torch makes a step: some optimizers write without incrementing the version. The cache cannot
detect a write through `.data` outside of an optimizer. Programs with such writes must turn the cache off
(`te_keep_weights=False`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from thunder_ex_te.reference import Quantized

__all__ = ["kept"]

_lock = threading.Lock()
_steps = [0]  # the number of steps of all optimizers
_copies: dict[int, _Copies] = {}


class _Copies:
    """The fp8 copies of one parameter, by their quantization."""

    __slots__ = ("made", "parameter", "state")

    def __init__(self, parameter: torch.Tensor):
        key = id(parameter)
        self.parameter = weakref.ref(parameter, lambda _: _copies.pop(key, None))
        self.state: Any = None
        self.made: dict[Any, Quantized] = {}


def _is_captured(x: torch.Tensor) -> bool:
    """Check whether a CUDA graph is being captured. Its replays would always use the copies of the capture."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _stepped(*_: Any) -> None:
    _steps[0] += 1


register_optimizer_step_post_hook(_stepped)


def kept(x: torch.Tensor, key: Any, rows: bool, columns: bool, make: Callable[[bool, bool], Quantized]) -> Quantized:
    """Return the requested fp8 copies of `x`. If `x` is a parameter that has not changed, they come from the cache."""
    if not isinstance(x, torch.nn.Parameter) or x.is_inference() or _is_captured(x):
        return make(rows, columns)
    state = x._version, x.data_ptr(), _steps[0] if x.requires_grad else -1
    with _lock:
        found = _copies.get(id(x))
        if found is None or found.parameter() is not x:
            found = _copies[id(x)] = _Copies(x)
        if found.state != state:
            found.made.clear()
            found.state = state
        made = found.made.get(key)
        if made is None:
            made = found.made[key] = make(rows, columns)
        elif (rows and made.data is None) or (columns and made.transposed is None):
            made = found.made[key] = make(True, True)
    assert made is not None
    # Autograd marks the float tensors that a program returns, so return aliases of the cached tensors.
    own = [None if scale is None else scale.detach() for scale in (made.scale, made.transposed_scale)]
    return made._replace(scale=own[0], transposed_scale=own[1])
