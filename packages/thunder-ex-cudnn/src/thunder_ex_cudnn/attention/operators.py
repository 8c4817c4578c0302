# SPDX-License-Identifier: Apache-2.0
"""Operators of the attention executor: their decompositions (`like`) and their implementations (`run`).

`causal` is the alignment of a causal mask ("top-left", "bottom-right" or None), or a pair of the alignment and the
window size. `bias` has four dimensions and is added to the scores. Each operator's metadata, and its gradient for
second derivatives, are derived from its decomposition. Dropout with cuDNN's random numbers has no decomposition.
"""

from __future__ import annotations

import math
from typing import Any

import thunder.torch as ltorch
from thunder.extend import OpTags, TensorProxy, UnsupportedError, dtypes
from thunder_ex_cudnn.attention import run
from thunder_ex_cudnn.attention.graphs import Causal, side_and_window

__all__ = ["Backward", "DropoutBackward", "DropoutForward", "Forward", "Plain", "register"]


def _masked(query: Any, key: Any, bias: Any, causal: Causal) -> tuple[Any, bool]:
    """Return the bias and the causal mask as the arguments `attn_mask` and `is_causal` of torch's attention."""
    side, window = side_and_window(causal)
    if side is None:
        return bias, False
    if causal == "top-left" and bias is None:
        return None, True
    rows, columns = query.shape[-2], key.shape[-2]
    shift = 0 if side == "top-left" else columns - rows
    own = ltorch.unsqueeze(ltorch.arange(rows, device=query.device), 1) + shift
    keys = ltorch.arange(columns, device=query.device)
    allowed = keys <= own if window is None else ltorch.logical_and(keys <= own, keys > own - window)
    if bias is None:
        return allowed, False
    return ltorch.where(allowed, bias, -math.inf), False


class Plain:
    """`cudnn_attention`: computes only the result."""

    @staticmethod
    def like(query: Any, key: Any, value: Any, bias: Any, causal: Causal, scale: float) -> Any:
        """Decompose into torch's operations."""
        mask, is_causal = _masked(query, key, bias, causal)
        grouped = query.shape[1] != key.shape[1]
        return ltorch.scaled_dot_product_attention(
            query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=grouped
        )

    run = staticmethod(run.attention)


class Forward:
    """`cudnn_attention_forward`: computes the result and the log-sum-exp of each row."""

    @staticmethod
    def like(query: Any, key: Any, value: Any, bias: Any, causal: Causal, scale: float) -> tuple[Any, Any]:
        """Decompose into torch's operations."""
        mask, is_causal = _masked(query, key, bias, causal)
        return ltorch.attention_forward(query, key, value, mask, is_causal, scale, "cudnn")

    run = staticmethod(run.attention_forward)


class Backward:
    """`cudnn_attention_backward`: computes the gradients of query, key and value, and of the bias if requested."""

    @staticmethod
    def like(
        grad: Any, query: Any, key: Any, value: Any, out: Any, sums: Any, bias: Any, causal: Causal, scale: float,
        bias_grad: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Decompose into torch's operations."""
        mask, is_causal = _masked(query, key, bias, causal)
        grads = ltorch.attention_backward(grad, query, key, value, mask, out, sums, is_causal, scale, "cudnn")
        if not bias_grad:
            return grads
        of_bias = ltorch.attention_mask_grad(grad, query, key, value, mask, out, sums, is_causal, scale)
        return *grads, ltorch.sum_to_size(of_bias, bias.shape)

    run = staticmethod(run.attention_backward)


class DropoutForward:
    """`cudnn_attention_dropout_forward`: computes the result, the sums, and the random numbers' seed and offset."""

    @staticmethod
    def meta(
        query: TensorProxy, key: TensorProxy, value: TensorProxy, bias: TensorProxy | None, causal: Causal,
        scale: float, dropout_p: float,
    ) -> tuple[TensorProxy, TensorProxy, TensorProxy]:  # fmt: skip
        """Return the results' metadata."""
        out = TensorProxy(like=query, shape=(*query.shape[:-1], value.shape[-1]))
        sums = TensorProxy(like=query, shape=query.shape[:-1], dtype=dtypes.float32)
        return out, sums, TensorProxy(like=query, shape=(2,), dtype=dtypes.int64)

    run = staticmethod(run.dropout_forward)


class DropoutBackward:
    """`cudnn_attention_dropout_backward`: computes the gradients of the forward operator.

    It draws the same random numbers.
    """

    @staticmethod
    def meta(
        grad: TensorProxy, query: TensorProxy, key: TensorProxy, value: TensorProxy, out: TensorProxy,
        sums: TensorProxy, seed: TensorProxy, bias: TensorProxy | None, causal: Causal, scale: float,
        dropout_p: float, bias_grad: bool,
    ) -> tuple[TensorProxy, ...]:  # fmt: skip
        """Return the results' metadata."""
        of = (query, key, value, bias) if bias_grad and bias is not None else (query, key, value)
        return tuple(TensorProxy(like=x) for x in of)

    run = staticmethod(run.dropout_backward)


def _no_second_gradient(*args: Any) -> Any:
    raise UnsupportedError(
        "second derivatives of attention with dropout are not supported, as in torch: use dropout_p=0 or "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    )


def register(registry: Any, executor: str) -> dict[str, Any]:
    """Register the operators. Return their symbols by name."""
    matmul, random = (OpTags.MATMUL_OP,), (OpTags.MATMUL_OP, OpTags.RANDOM_OP)
    found = {
        name: registry.register_operator(name, executor=executor, like=of.like, fn=of.run, tags=matmul)
        for name, of in (
            ("cudnn_attention", Plain),
            ("cudnn_attention_forward", Forward),
            ("cudnn_attention_backward", Backward),
        )
    }
    for name, drop, tags in (
        ("cudnn_attention_dropout_forward", DropoutForward, random),
        ("cudnn_attention_dropout_backward", DropoutBackward, matmul),
    ):
        found[name] = registry.register_operator(name, executor=executor, meta=drop.meta, fn=drop.run, tags=tags)
    twice = found["cudnn_attention_dropout_backward"]
    registry.register_implementation(twice, twice, executor=executor, grad_transform=_no_second_gradient)
    return found
