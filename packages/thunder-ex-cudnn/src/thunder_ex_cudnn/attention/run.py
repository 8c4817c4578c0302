# SPDX-License-Identifier: Apache-2.0
"""Attention on tensors: look up the plan of a call, allocate the results, and execute the plan.

Plans are cached by a tuple of shapes, strides and flags. If cuDNN does not support the layout of a tensor, the plan is
for a contiguous copy. If cuDNN has no plan for the call, torch computes the result, and a warning is logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from thunder_ex_cudnn.attention import fallback
from thunder_ex_cudnn.attention.graphs import Call, Causal, backward_plan, fits, forward_plan
from thunder_ex_cudnn.plans import Context, Unsupported, context, current_device, new_tensor

__all__ = ["attention", "attention_backward", "attention_forward", "dropout_backward", "dropout_forward"]

Tensor: TypeAlias = torch.Tensor
Optional: TypeAlias = torch.Tensor | None


class _Copied:
    """A cache entry in place of a plan: some of the tensors must be copied first."""

    def __init__(self, which: tuple[bool, ...]):
        self.which = which


def _layout(x: Optional) -> Any:
    return None if x is None else (tuple(x.shape), x.stride())


def _readable(tensors: Sequence[Tensor], bias: Optional) -> _Copied | None:
    which = [not fits(tuple(x.shape), x.stride(), x.element_size()) for x in tensors]
    which.append(bias is not None and bias.stride(3) != 1 and bias.shape[3] > 1)
    return _Copied(tuple(which)) if any(which) else None


def _copies(tensors: Sequence[Tensor], bias: Optional, found: Any) -> list[Any]:
    """Return the tensors and the bias. Copy tensors whose layout cuDNN does not support."""
    every = (*tensors, bias)
    which = found.which if isinstance(found, _Copied) else [False] * len(every)
    return [
        x.clone(memory_format=torch.contiguous_format) if x is not None and (copied or x.data_ptr() & 15) else x
        for x, copied in zip(every, which)
    ]


def _planned(here: Context, key: Any, call: Call, tensors: Sequence[Tensor], bias: Optional, sums: bool) -> Any:
    """Return the new cache entry of a key: a plan, the tensors to copy, or None if cuDNN has no plan."""

    def make(here: Context) -> Any:
        copied = _readable(tensors, bias)
        if copied is not None:
            return copied
        return backward_plan(here, call) if call.grad is not None else forward_plan(here, call, sums=sums)

    return here.make(key, make, f"attention of {', '.join(str(tuple(x.shape)) for x in tensors[:3])}")


def _results(plan: Any) -> list[Tensor]:
    return [new_tensor(shape, strides, dtype) for shape, strides, dtype in plan.outputs]


def _without_plan(what: str, query: Tensor) -> Unsupported:
    """Return the error for a call that torch cannot compute, because only cuDNN draws its random numbers."""
    return Unsupported(
        f"cuDNN has no plan for {what} of shape {tuple(query.shape)} on {query.device}: disable it with "
        "torch.backends.cuda.enable_cudnn_sdp(False), or thunder.jit(…, executors=[…])"
    )


# -- forward -----------------------------------------------------------------------------------------------------------
def _forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Optional, causal: Causal, scale: float, dropout_p: float,
    seed: Optional, sums: bool,
) -> Any:  # fmt: skip
    """Return the results of the plan as a list; None if cuDNN has no plan."""
    device = query.get_device()
    if device != current_device():
        with torch.cuda.device(device):
            return _forward(query, key, value, bias, causal, scale, dropout_p, seed, sums)
    here = context(device)
    masked = None if bias is None else (bias.shape, bias.stride(), bias.dtype)
    kind = (
        sums, query.dtype, query.shape, query.stride(), key.shape, key.stride(), value.shape, value.stride(), masked,
        causal, scale, dropout_p,
    )  # fmt: skip
    plan: Any = here.plans.get(kind, here)
    if plan is here:
        layouts = (_layout(query), _layout(key), _layout(value), _layout(bias))
        added = None if bias is None else bias.dtype
        call = Call(query.dtype, *layouts, causal, scale, dropout_p, bias_dtype=added)
        plan = _planned(here, kind, call, (query, key, value), bias, sums)
    if plan is None:
        return None
    seen = query.data_ptr() | key.data_ptr() | value.data_ptr()
    if bias is not None:
        seen |= bias.data_ptr()
    if type(plan) is _Copied or seen & 15:
        query, key, value, bias = _copies((query, key, value), bias, plan)
        return _forward(query, key, value, bias, causal, scale, dropout_p, seed, sums)
    made = _results(plan)
    options = () if bias is None else (bias,)
    if dropout_p and seed is not None:
        options += (seed[:1], seed[1:])
    plan.run((query, key, value, *options, *made))
    return made


def attention(query: Tensor, key: Tensor, value: Tensor, bias: Optional, causal: Causal, scale: float) -> Tensor:
    """Compute softmax(query @ key.T * scale + bias) @ value."""
    made = _forward(query, key, value, bias, causal, scale, 0.0, None, False)
    return fallback.forward(query, key, value, bias, causal, scale)[0] if made is None else made[0]


def attention_forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Optional, causal: Causal, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the result of attention, and the log-sum-exp of each row."""
    made = _forward(query, key, value, bias, causal, scale, 0.0, None, True)
    if made is None:
        return fallback.forward(query, key, value, bias, causal, scale)
    return made[0], made[1]


def dropout_forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Optional, causal: Causal, scale: float, dropout_p: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result of attention with dropout, the sums, and the seed and offset of cuDNN's random numbers.

    Seed and offset are drawn from torch's generator of the device. Results therefore repeat with its seed, and a CUDA
    graph can be replayed.
    """
    seed = fallback.seed(query.device)
    made = _forward(query, key, value, bias, causal, scale, dropout_p, seed, True)
    if made is None:
        raise _without_plan("attention with dropout", query)
    return made[0], made[1], seed


# -- backward ----------------------------------------------------------------------------------------------------------
def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, bias: Optional,
    causal: Causal, scale: float, dropout_p: float, seed: Optional, bias_grad: bool,
) -> Any:  # fmt: skip
    device = query.get_device()
    if device != current_device():
        with torch.cuda.device(device):
            return _backward(grad, query, key, value, out, sums, bias, causal, scale, dropout_p, seed, bias_grad)
    here = context(device)
    masked = None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias_grad)
    deterministic = torch.are_deterministic_algorithms_enabled()
    kind = (
        deterministic, query.dtype, query.shape, query.stride(), key.shape, key.stride(), value.shape, value.stride(),
        out.stride(), grad.stride(), masked, causal, scale, dropout_p,
    )  # fmt: skip
    plan: Any = here.plans.get(kind, here)
    tensors = (query, key, value, out, grad)
    if plan is here:
        layouts = (_layout(query), _layout(key), _layout(value), _layout(bias))
        further = (_layout(grad), _layout(out), None if bias is None else bias.dtype)
        call = Call(query.dtype, *layouts, causal, scale, dropout_p, *further, bias_grad, deterministic)
        plan = _planned(here, kind, call, tensors, bias, False)
    if plan is None:
        return None
    seen = query.data_ptr() | key.data_ptr() | value.data_ptr() | out.data_ptr() | grad.data_ptr()
    if bias is not None:
        seen |= bias.data_ptr()
    if type(plan) is _Copied or seen & 15:
        query, key, value, out, grad, bias = _copies(tensors, bias, plan)
        return _backward(grad, query, key, value, out, sums, bias, causal, scale, dropout_p, seed, bias_grad)
    made = _results(plan)
    options = () if bias is None else (bias,)
    if dropout_p and seed is not None:
        options += (seed[:1], seed[1:])
    plan.run((query, key, value, out, grad, sums.contiguous(), *options, *made))
    if bias_grad and bias is not None and bias.dtype != query.dtype:
        made[3] = made[3].to(bias.dtype)
    return made


def attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, bias: Optional,
    causal: Causal, scale: float, bias_grad: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the gradients of query, key and value, and of the bias if requested.

    If the gradient of the bias is requested and values have another width than keys, torch computes the gradients:
    cuDNN's are wrong in this case.
    """
    made = None
    if not bias_grad or query.shape[3] == value.shape[3]:
        made = _backward(grad, query, key, value, out, sums, bias, causal, scale, 0.0, None, bias_grad)
    if made is None:
        made = fallback.backward(grad, query, key, value, out, sums, bias, causal, scale, bias_grad)
    return tuple(made)


def dropout_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, seed: Tensor, bias: Optional,
    causal: Causal, scale: float, dropout_p: float, bias_grad: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the gradients of `dropout_forward`. The kernel draws the same random numbers again."""
    made = _backward(grad, query, key, value, out, sums, bias, causal, scale, dropout_p, seed, bias_grad)
    if made is None:
        raise _without_plan("the gradient of attention with dropout", query)
    return tuple(made)
