# SPDX-License-Identifier: Apache-2.0
"""The samples with which the conformance suite tests the operators of this wheel.

The reference of an operator is what it stands for, run by torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from thunder_ex_cudnn.attention import fallback

__all__ = ["opinfos"]

# (batch, heads, heads of keys, length, length of keys, width, width of values)
SHAPES = (
    (2, 4, 4, 64, 64, 64, 64), (1, 2, 2, 5, 7, 8, 8), (2, 6, 2, 33, 33, 72, 72), (1, 4, 1, 16, 48, 128, 64),
    (2, 2, 2, 1, 40, 32, 32),
)  # fmt: skip


def _attention(make: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    """Query, key, value, bias, causal, scale."""
    small: Any = partial(make, low=-2, high=2)
    for b, h, hk, s, t, d, dv in SHAPES:
        q, k, v = small((b, h, s, d)), small((b, hk, t, d)), small((b, hk, t, dv))
        yield q, k, v, None, None, 1 / math.sqrt(d)
        yield q, k, v, None, "top-left", 0.3
        if s <= t:
            yield q, k, v, None, "bottom-right", 0.3
        yield q, k, v, small((1, 1, s, t)), None, 0.2
    q, k, v = (small((2, n, 3, 64)).transpose(1, 2) for n in (16, 24, 24))  # heads beside their widths
    yield q, k, v, small((2, 3, 16, 24)), None, 0.125


def _backward(make: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    """Gradient, query, key, value, result, sums, bias, causal, scale, whether the bias's gradient is wanted."""
    for q, k, v, bias, causal, scale in _attention(make):
        out, sums = fallback.forward(q, k, v, bias, causal, scale)
        out = torch.empty_like(q[..., :1].expand(*q.shape[:3], v.shape[3])).copy_(out)
        g = make(tuple(out.shape), low=-1, high=1)
        yield g, q, k, v, out, sums, bias, causal, scale, False
        if bias is not None:
            yield g, q, k, v, out, sums, bias, causal, scale, True


# With a probability of zero nothing is left out, so that results can be compared.
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


def _generator(samples: Callable[..., Iterator[tuple[Any, ...]]]) -> Any:
    def generate(op: Any, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[Any]:
        from thunder.tests.make_tensor import make_tensor
        from thunder.tests.opinfos import SampleInput

        for args in samples(partial(make_tensor, device=device, dtype=dtype)):
            yield SampleInput(*args)

    return generate


def opinfos() -> list[Any]:
    """One for each operator of the executor."""
    from thunder.extend import get_executor
    from thunder.tests.opinfos import OpInfo

    operator = get_executor("cudnn").opmap
    table = (
        ("cudnn_attention", lambda *args: fallback.forward(*args)[0], _attention),
        ("cudnn_attention_forward", fallback.forward, _attention),
        ("cudnn_attention_backward", fallback.backward, _backward),
        ("cudnn_attention_dropout_forward", _dropout_reference, _dropout),
        ("cudnn_attention_dropout_backward", _dropout_backward_reference, _dropout_backward),
    )
    return [
        OpInfo(
            operator[name], sample_input_generator=_generator(samples), torch_reference=reference, family="attention"
        )
        for name, reference, samples in table
    ]
