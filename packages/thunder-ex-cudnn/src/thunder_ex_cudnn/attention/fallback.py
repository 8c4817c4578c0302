# SPDX-License-Identifier: Apache-2.0
"""Attention in torch's operations, for calls that cuDNN has no plan for.

Results and saved values are the same as from cuDNN's kernels, so forward and backward can fall back independently. The
fallback materializes the attention weights. It is also the reference of the executor's operators.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from thunder_ex_cudnn.attention.graphs import Causal, side_and_window

__all__ = ["backward", "forward", "seed"]

Tensor: TypeAlias = torch.Tensor
Optional: TypeAlias = torch.Tensor | None


def seed(device: Any) -> Tensor:
    """Return a seed and an offset for random numbers, drawn from torch's generator of the device."""
    return torch.empty(2, dtype=torch.int64, device=device).random_()


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _repeated(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _summed(x: Tensor, like: Tensor) -> Tensor:
    b, h, s, d = like.shape
    return x.reshape(b, h, x.shape[1] // h, s, d).sum(2).to(like.dtype)


def _scores(query: Tensor, key: Tensor, bias: Optional, causal: Causal, scale: float) -> Tensor:
    scores = _wide(query) @ _wide(_repeated(key, query.shape[1])).mT * scale
    if bias is not None:
        scores = scores + bias
    side, window = side_and_window(causal)
    if side is not None:
        rows, columns = scores.shape[-2:]
        last = 0 if side == "top-left" else columns - rows
        allowed = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril(last)
        if window is not None:
            allowed = allowed.triu(last - window + 1)
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores


def forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Optional, causal: Causal, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the result of attention, and the log-sum-exp of each row."""
    scores = _scores(query, key, bias, causal, scale)
    sums = scores.logsumexp(-1)
    out = torch.softmax(scores, -1).nan_to_num(0.0) @ _wide(_repeated(value, query.shape[1]))
    return out.to(query.dtype), sums


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, bias: Optional,
    causal: Causal, scale: float, bias_grad: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the gradients of query, key and value, and the gradient of the bias if requested."""
    heads, g = query.shape[1], _wide(grad)
    sums = sums.masked_fill(sums.isinf(), 0.0).unsqueeze(-1)
    weights = (_scores(query, key, bias, causal, scale) - sums).exp()
    of_scores = weights * (g @ _wide(_repeated(value, heads)).mT - (g * _wide(out)).sum(-1, keepdim=True))
    of_query = (of_scores @ _wide(_repeated(key, heads)) * scale).to(query.dtype)
    of_key = _summed(of_scores.mT @ _wide(query) * scale, key)
    of_value = _summed(weights.mT @ g, value)
    if not bias_grad or bias is None:
        return of_query, of_key, of_value
    return of_query, of_key, of_value, of_scores.sum_to_size(bias.shape).to(bias.dtype)
