# SPDX-License-Identifier: Apache-2.0
"""Check which norms the executor supports.

Fusion executors have priority, because they fuse more operations into a kernel.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.extend import dtypes
from thunder_ex_cudnn.norms import run
from thunder_ex_cudnn.probe import unusable_device

__all__ = ["PRIORITY", "register"]

PRIORITY = 5
_TAKEN = tuple(getattr(dtypes, name) for name in ("float16", "bfloat16", "float32"))


def _why_not(input: Any, normalized_shape: Any, weight: Any) -> str | None:
    reason = unusable_device(input.device)
    if reason is not None:
        return reason
    if torch.are_deterministic_algorithms_enabled():
        return "leaves norms to torch if deterministic algorithms are chosen: cuDNN does not promise that its norms are"
    if input.dtype not in _TAKEN:
        return f"supports float16, bfloat16 and float32, not {input.dtype}"
    if weight is None:
        return "supports only norms with a weight"
    if weight.dtype not in (input.dtype, dtypes.float32):
        return f"supports weights in {input.dtype} or float32, not {weight.dtype}"
    if math.prod(input.shape) == 0:
        return "the tensors have no elements"
    return None


def _takes_rms(input: Any, normalized_shape: Any, weight: Any, eps: Any) -> bool | str:
    return _why_not(input, normalized_shape, weight) or True


def _takes_rms_backward(grad: Any, input: Any, normalized_shape: Any, rstd: Any, weight: Any) -> bool | str:
    return _why_not(input, normalized_shape, weight) or True


def _takes_layer(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> bool | str:
    if bias is None or (weight is not None and bias.dtype is not weight.dtype):
        return "supports only layer norms whose weight and bias have the same dtype"
    return _why_not(input, normalized_shape, weight) or True


def _takes_layer_backward(
    grad: Any, input: Any, normalized_shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any
) -> bool | str:
    return _takes_layer(input, normalized_shape, weight, bias, 0.0)


def register(registry: Any, executor: str) -> None:
    """Register the operators as implementations of thunder's operations of the same names."""
    table = (
        ("rms_norm_forward", ltorch.rms_norm_forward, run.rms_norm_forward, _takes_rms),
        ("rms_norm_backward", ltorch.rms_norm_backward, run.rms_norm_backward, _takes_rms_backward),
        ("layer_norm_forward", ltorch.layer_norm_forward, run.layer_norm_forward, _takes_layer),
        ("layer_norm_backward", ltorch.layer_norm_backward, run.layer_norm_backward, _takes_layer_backward),
    )
    for name, symbol, fn, takes in table:
        op = registry.register_operator(f"cudnn_{name}", executor=executor, like=symbol, fn=fn)
        registry.register_implementation(symbol, op, executor=executor, checker=takes, priority=PRIORITY, measured=True)
