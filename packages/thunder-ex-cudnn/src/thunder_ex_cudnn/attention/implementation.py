# SPDX-License-Identifier: Apache-2.0
"""Check which calls of attention the executor supports; execute and differentiate them."""

from __future__ import annotations

import math
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.extend import dtypes, get_grad, put_grad, put_grads
from thunder_ex_cudnn.attention import operators
from thunder_ex_cudnn.attention.graphs import Causal
from thunder_ex_cudnn.plans import has_deterministic_attention
from thunder_ex_cudnn.probe import unusable_device

__all__ = ["DTYPES", "added_by", "register", "takes", "why_not_kinds"]

DTYPES = ("float16", "bfloat16")
_TAKEN = tuple(getattr(dtypes, name) for name in DTYPES)
_STEP = 8  # the alignment of rows is 16 bytes
_WIDEST = 256  # the largest head dimension of the backward kernels
# For so many short sequences (windows of 49 pixels in vision transformers), cuDNN's kernels with a bias take several
# times as long as torch's, most of all the gradient of a bias that the sequences share.
_SHORT, _MANY = 64, 1024


def why_not_kinds(query: Any, key: Any, value: Any) -> str | None:
    """Return why cuDNN does not support these devices, dtypes, heads or head dimensions; None if it does."""
    reason = unusable_device(query.device)
    if reason is not None:
        return reason
    if query.device != key.device or query.device != value.device:
        return "the tensors are on several devices"
    if query.dtype not in _TAKEN:
        return f"supports {' and '.join(DTYPES)}, not {query.dtype}"
    if torch.are_deterministic_algorithms_enabled() and not has_deterministic_attention(query.device.index or 0):
        return "cuDNN has no deterministic gradients of attention on this GPU"
    if any(n == 0 for x in (query, key, value) for n in x.shape):
        return "the tensors have no elements"
    if key.shape[1] != value.shape[1] or query.shape[1] % key.shape[1]:
        return "key and value must have the same number of heads, which must divide the query's"
    for width in (query.shape[-1], value.shape[-1]):
        if width % _STEP or width > _WIDEST:
            return f"supports head dimensions that are multiples of {_STEP} up to {_WIDEST}, not {width}"
    return None


def _why_not_shapes(query: Any, key: Any, value: Any) -> str | None:
    if not query.ndim == key.ndim == value.ndim == 4:
        return unusable_device(query.device) or "supports only four dimensions (batch, heads, length, width)"
    if query.shape[0] != key.shape[0] or query.shape[0] != value.shape[0]:
        return unusable_device(query.device) or "query, key and value must have the same batch size"
    reason = why_not_kinds(query, key, value)
    if reason is None and key.shape[2] == 1:
        return "does not support a single key: cuDNN's gradients of masked rows are wrong"
    return reason


def _why_not_mask(query: Any, key: Any, mask: Any, is_causal: bool) -> str | None:
    if mask is None:
        return None
    if is_causal:
        return "supports either a mask or is_causal, not both"
    if mask.device != query.device:
        return "the tensors are on several devices"
    if mask.dtype not in (dtypes.bool8, dtypes.float32, query.dtype):
        return f"supports masks in bool, float32 or {query.dtype}, not {mask.dtype}"
    if mask.ndim > 4:
        return "supports masks of at most four dimensions"
    full = (*query.shape[:3], key.shape[2])
    if any(n not in (1, m) for n, m in zip(mask.shape[::-1], full[::-1])):
        return f"supports masks that can be expanded to {full}, not {tuple(mask.shape)}"
    return None


def _one_width(query: Any, value: Any) -> bool:
    return bool(query.shape[-1] == value.shape[-1])


def takes(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> bool | str:  # fmt: skip
    """Return True, or the reason why cuDNN does not support the call."""
    reason = _why_not_shapes(query, key, value) or _why_not_mask(query, key, attn_mask, is_causal)
    if reason is not None:
        return reason
    if query.shape[1] != key.shape[1] and not enable_gqa:
        return "if key and value have fewer heads than query, enable_gqa=True is required"
    if scale is not None and not scale > 0:
        return "supports only positive scales"
    added = attn_mask is not None and attn_mask.dtype is not dtypes.bool8
    if added and max(query.shape[2], key.shape[2]) <= _SHORT and query.shape[0] * query.shape[1] >= _MANY:
        return "leaves many short sequences with an additive mask to torch, whose kernels are faster"
    if dropout_p and added and not _one_width(query, value):
        return "does not support additive masks with dropout if value and key differ in width: the gradient is wrong"
    if not 0 <= dropout_p < 1:
        return "supports only dropout probabilities in [0, 1)"
    if dropout_p and torch.are_deterministic_algorithms_enabled():
        return "leaves dropout to torch if deterministic algorithms are chosen: not every GPU has such gradients"
    if not torch.backends.cuda.cudnn_sdp_enabled():
        return "cuDNN is disabled by torch.backends.cuda.enable_cudnn_sdp(False) or sdpa_kernel"
    return True


def added_by(mask: Any, dtype: Any) -> Any:
    """Return the additive form of a mask."""
    return ltorch.to(ltorch.where(mask, 0.0, -math.inf), dtype) if mask.dtype is dtypes.bool8 else mask


def bias_of(mask: Any, query: Any, key: Any) -> Any:
    """Return the additive form of a mask, with four dimensions, expanded to all rows and columns."""
    if mask is None:
        return None
    mask = added_by(mask, query.dtype)
    shape = (*([1] * (4 - mask.ndim)), *mask.shape)
    if mask.ndim < 4:
        mask = ltorch.reshape(mask, shape)
    full = (*shape[:2], query.shape[2], key.shape[2])
    return mask if shape == full else ltorch.expand(mask, full)


def register(registry: Any, executor: str) -> None:
    """Register the operators, and implement attention with them."""
    found = operators.register(registry, executor)
    plain = found["cudnn_attention"]
    forward, backward = found["cudnn_attention_forward"], found["cudnn_attention_backward"]
    dropout, dropout_backward = found["cudnn_attention_dropout_forward"], found["cudnn_attention_dropout_backward"]

    def execution(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        how = (bias_of(attn_mask, query, key), "top-left" if is_causal else None, _scale(query, scale))
        if dropout_p:
            return dropout(query, key, value, *how, float(dropout_p))[0]
        return plain(query, key, value, *how)

    def gradient(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        bias, causal, factor = bias_of(attn_mask, query, key), "top-left" if is_causal else None, _scale(query, scale)
        added = bias is not None and attn_mask.dtype is not dtypes.bool8
        if dropout_p:
            p = float(dropout_p)
            out, sums, seed = dropout(query, key, value, bias, causal, factor, p)
            args = (query, key, value, out, sums, seed, bias, causal, factor, p, added)
            grads = dropout_backward(get_grad(out), *args)
        else:
            out, sums = forward(query, key, value, bias, causal, factor)
            grads = backward(get_grad(out), query, key, value, out, sums, bias, causal, factor, added)
        put_grads((query, key, value), grads[:3])
        if added:
            put_grad(attn_mask, ltorch.to(ltorch.sum_to_size(grads[3], attn_mask.shape), attn_mask.dtype))
        return out

    registry.register_implementation(
        ltorch.scaled_dot_product_attention,
        executor=executor,
        checker=takes,
        execution_transform=execution,
        grad_transform=gradient,
        measured=True,
    )

    def plain_gradient(query: Any, key: Any, value: Any, bias: Any, causal: Causal, scale: float) -> Any:
        out, sums = forward(query, key, value, bias, causal, scale)
        grads = backward(get_grad(out), query, key, value, out, sums, bias, causal, scale, bias is not None)
        put_grads((query, key, value, bias)[: len(grads)], grads)
        return out

    registry.register_implementation(plain, plain, executor=executor, grad_transform=plain_gradient)


def _scale(query: Any, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
