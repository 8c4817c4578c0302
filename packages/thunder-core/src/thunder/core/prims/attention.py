# SPDX-License-Identifier: Apache-2.0
"""Attention with dropout inside one of torch's fused kernels.

The kernel draws its mask from a seed and an offset, which it gives back, so that its backward pass can draw it again.
There is no other way to the same random numbers, hence these are primitives.
"""

from __future__ import annotations

from typing import Any

from thunder.core import dtypes
from thunder.core.errors import UnsupportedError
from thunder.core.prims.base import prim
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import OpTags

_TAGS = (OpTags.MATMUL_OP, OpTags.RANDOM_OP)


@prim(tags=_TAGS)
def attention_dropout(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    attn_mask: TensorProxy | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    kernel: str,
    /,
) -> tuple[TensorProxy, TensorProxy, TensorProxy, TensorProxy]:
    """Attention by torch's `kernel`, with each row's logarithm of the sum of exponentials, the seed and the offset."""
    out = TensorProxy(like=query, shape=(*query.shape[:-1], value.shape[-1]))
    lse = TensorProxy(like=query, shape=query.shape[:-1], dtype=dtypes.float32)
    # The flash kernel keeps both numbers in one tensor and has the other one empty.
    seed_shape, kind = ((2,), dtypes.uint64) if kernel == "flash" else ((), dtypes.int64)
    seed = TensorProxy(like=query, shape=seed_shape, dtype=kind)
    return out, lse, seed, TensorProxy(like=query, shape=(), dtype=kind)


@attention_dropout.vjp
def _(g: Any, out: Any, query: Any, key: Any, value: Any, attn_mask: Any, *how: Any) -> Any:
    result, lse, seed, offset = out
    grads = attention_dropout_backward(g[0], query, key, value, attn_mask, result, lse, seed, offset, *how)
    return (*grads, None)


@prim(tags=(OpTags.MATMUL_OP,))
def attention_dropout_backward(
    grad: TensorProxy,
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    attn_mask: TensorProxy | None,
    out: TensorProxy,
    lse: TensorProxy,
    seed: TensorProxy,
    offset: TensorProxy,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    kernel: str,
    /,
) -> tuple[TensorProxy, TensorProxy, TensorProxy]:
    """The gradients of query, key and value of `attention_dropout`."""
    return TensorProxy(like=query), TensorProxy(like=key), TensorProxy(like=value)


@attention_dropout_backward.vjp
def _(*args: Any) -> Any:
    raise UnsupportedError(
        "the gradient of a gradient through attention with dropout is not supported, as in torch: use dropout_p=0 or "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    )
