# SPDX-License-Identifier: Apache-2.0
"""Samples for the conformance tests of this plugin's operators.

The reference of an operator is its decomposition, run by torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.toolkit.conformance import OperatorSamples, operator_opinfos
from thunder_ex_cudnn.attention import fallback, varlen

__all__ = ["opinfos"]

# (batch, heads, heads of keys, length, length of keys, width, width of values)
SHAPES = (
    (2, 4, 4, 64, 64, 64, 64), (1, 2, 2, 5, 7, 8, 8), (2, 6, 2, 33, 33, 72, 72), (1, 4, 1, 16, 48, 128, 64),
    (2, 2, 2, 1, 40, 32, 32),
)  # fmt: skip


def _attention(make: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    """Yield query, key, value, bias, causal, scale."""
    small: Any = partial(make, low=-2, high=2)
    for b, h, hk, s, t, d, dv in SHAPES:
        q, k, v = small((b, h, s, d)), small((b, hk, t, d)), small((b, hk, t, dv))
        yield q, k, v, None, None, 1 / math.sqrt(d)
        yield q, k, v, None, "top-left", 0.3
        if s <= t:
            yield q, k, v, None, "bottom-right", 0.3
            yield q, k, v, None, ("top-left", 4), 0.3
            yield q, k, v, None, ("bottom-right", 4), 0.3
        yield q, k, v, small((1, 1, s, t)), None, 0.2
    q, k, v = (small((2, n, 3, 64)).transpose(1, 2) for n in (16, 24, 24))  # heads are next to widths in memory
    yield q, k, v, small((2, 3, 16, 24)), None, 0.125


def _backward(make: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    """Yield gradient, query, key, value, result, sums, bias, causal, scale, whether to compute the bias's gradient."""
    for q, k, v, bias, causal, scale in _attention(make):
        out, sums = fallback.forward(q, k, v, bias, causal, scale)
        out = torch.empty_like(q[..., :1].expand(*q.shape[:3], v.shape[3])).copy_(out)
        g = make(tuple(out.shape), low=-1, high=1)
        yield g, q, k, v, out, sums, bias, causal, scale, False
        if bias is not None:
            yield g, q, k, v, out, sums, bias, causal, scale, True


# With a probability of zero nothing is dropped, so that results can be compared.
def _dropout(make: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    for args in _attention(make):
        yield *args, 0.0


def _dropout_backward(make: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    for g, q, k, v, out, sums, bias, causal, scale, bias_grad in _backward(make):
        seed = torch.tensor([1, 2], device=q.device)
        yield g, q, k, v, out, sums, seed, bias, causal, scale, 0.0, bias_grad


def _dropout_reference(*args: Any) -> Any:
    return *fallback.forward(*args[:-1]), fallback.seed(args[0].device)


def _dropout_backward_reference(
    grad: Any, query: Any, key: Any, value: Any, out: Any, sums: Any, seed: Any, bias: Any, causal: Any, scale: float,
    dropout_p: float, bias_grad: bool,
) -> Any:  # fmt: skip
    return fallback.backward(grad, query, key, value, out, sums, bias, causal, scale, bias_grad)


def _sequences(make: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    """Yield query, key, value, (lengths and offsets), longest, whether both sides are the same, window, scale."""
    small: Any = partial(make, low=-2, high=2)
    d, dv = 64, 32
    for lengths, of_keys, h, hk, window in (
        ((5, 1, 70), (5, 1, 70), 4, 4, (-1, 0)), ((8, 8), (8, 8), 4, 2, (-1, -1)),
        ((5, 1, 7), (3, 40, 9), 2, 1, (-1, -1)), ((5, 9, 7), (3, 40, 9), 2, 2, (-1, 0)),
        ((5, 40, 7), (5, 40, 7), 2, 2, (6, 0)), ((1, 1, 1), (4, 1, 30), 2, 1, (-1, 0)),
    ):  # fmt: skip
        n, m = sum(lengths), sum(of_keys)
        q, k, v = small((n, h, d)), small((m, hk, d)), small((m, hk, dv))
        sides = [torch.tensor(x, dtype=torch.int32, device=q.device) for x in (lengths, of_keys)]
        begins = [torch.nn.functional.pad(x.long().cumsum(0), (1, 0)) for x in sides]
        steps = ((0, h * d), (1, hk * d), (1, hk * dv), (0, h * dv), (0, h))
        places = (*sides, *(begins[side] * step for side, step in steps))
        yield q, k, v, places, (max(lengths), max(of_keys)), lengths == of_keys, window, 0.125


def _sequences_backward(make: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    for q, k, v, *how in _sequences(make):
        out, sums = varlen.forward_in_steps(q, k, v, *how)
        yield make(tuple(out.shape), low=-1, high=1), q, k, v, out, sums, *how


def _rows(make: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    """Yield rows, their shape, weight, bias."""
    for shape, size in (((32, 64), (64,)), ((3, 5), (5,)), ((2, 3, 8), (3, 8)), ((2, 7, 1000), (1000,))):
        yield make(shape, low=-2, high=2), size, make(size, low=-2, high=2), make(size, low=-2, high=2)


def _rms(make: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    for x, size, w, _ in _rows(make):
        yield x, size, w, 1e-5


def _rms_backward(make: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    for x, size, w, _ in _rows(make):
        dims = tuple(range(x.ndim - len(size), x.ndim))
        rstd = (x.float().square().mean(dims, keepdim=True) + 1e-5).rsqrt()
        yield make(tuple(x.shape), low=-1, high=1), x, size, rstd, w


def _layer(make: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    for x, size, w, b in _rows(make):
        yield x, size, w, b, 1e-5


def _layer_backward(make: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    for x, size, w, b in _rows(make):
        dims = tuple(range(x.ndim - len(size), x.ndim))
        mean = x.float().mean(dims, keepdim=True)
        rstd = (x.float().var(dims, correction=0, keepdim=True) + 1e-5).rsqrt()
        yield make(tuple(x.shape), low=-1, high=1), x, size, mean, rstd, w, b


def opinfos() -> list[Any]:
    """Return an OpInfo for each operator of the executor. Gradients are separate operators."""
    attention: dict[str, tuple[Any, Any]] = {
        "cudnn_attention": (_attention, lambda *args: fallback.forward(*args)[0]),
        "cudnn_attention_forward": (_attention, fallback.forward),
        "cudnn_attention_backward": (_backward, fallback.backward),
        "cudnn_attention_dropout_forward": (_dropout, _dropout_reference),
        "cudnn_attention_dropout_backward": (_dropout_backward, _dropout_backward_reference),
        "cudnn_varlen_forward": (_sequences, varlen.forward_in_steps),
        "cudnn_varlen_backward": (_sequences_backward, varlen.backward_in_steps),
    }
    norms: dict[str, tuple[Any, Any]] = {
        "cudnn_rms_norm_forward": (_rms, ltorch.rms_norm_forward),
        "cudnn_rms_norm_backward": (_rms_backward, ltorch.rms_norm_backward),
        "cudnn_layer_norm_forward": (_layer, ltorch.layer_norm_forward),
        "cudnn_layer_norm_backward": (_layer_backward, ltorch.layer_norm_backward),
    }
    short = (torch.float16, torch.bfloat16)
    of_attention = {name: OperatorSamples(*entry, short, supports_grad=False) for name, entry in attention.items()}
    of_norms = {name: OperatorSamples(*entry, supports_grad=False) for name, entry in norms.items()}
    return [
        *operator_opinfos("cudnn", of_attention, family="attention"),
        *operator_opinfos("cudnn", of_norms, family="norms"),
    ]
