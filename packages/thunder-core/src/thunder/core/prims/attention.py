# SPDX-License-Identifier: Apache-2.0
"""Attention with dropout inside one of torch's fused kernels.

The kernel draws its mask from a seed and an offset, and returns both, so that the backward kernel can draw the same
mask again. No decomposition can draw the same random numbers. Therefore, these operations are primitives.
"""

from __future__ import annotations

from typing import Any

from thunder.core import dtypes
from thunder.core.errors import UnsupportedError
from thunder.core.prims.base import prim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags

_TAGS = (OpTags.MATMUL_OP, OpTags.LAYOUT_OF_KERNEL, OpTags.RANDOM_OP)


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
    """Return the attention that torch's `kernel` computes, the logsumexp of each row, the seed, and the offset."""
    out = TensorProxy(like=query, shape=(*query.shape[:-1], value.shape[-1]))
    wide = dtypes.float64 if query.dtype is dtypes.float64 else dtypes.float32
    lse = TensorProxy(like=query, shape=query.shape[:-1], dtype=wide)
    # The flash kernel stores seed and offset in the first tensor, and the second tensor is empty.
    seed_shape, kind = ((2,), dtypes.uint64) if kernel == "flash" else ((), dtypes.int64)
    seed = TensorProxy(like=query, shape=seed_shape, dtype=kind)
    return out, lse, seed, TensorProxy(like=query, shape=(), dtype=kind)


@attention_dropout.vjp
def _(g: Any, out: Any, query: Any, key: Any, value: Any, attn_mask: Any, *how: Any) -> Any:
    result, lse, seed, offset = out
    grads = attention_dropout_backward(g[0], query, key, value, attn_mask, result, lse, seed, offset, *how)
    return (*grads, None)


def _tensors(make: MakeTensor) -> list[Any]:
    # No gradients: torch computes none for the logsumexp, and the backward kernels have no gradient.
    return [make((2, 3, n, 8), low=-2, high=2, requires_grad=False) for n in (5, 7, 7)]


# The dropout probability is zero: the results are deterministic and can be compared, and all devices support it.
_HOW = (0.0, False, 0.3, "flash")


@attention_dropout.batch
def _(b: Any, query: Any, key: Any, value: Any, attn_mask: Any, *how: Any) -> Any:
    if b.randomness == "same" or attn_mask is not None:
        return NotImplemented
    rows = b.shape(query)[0]
    out, lse, *drawn = attention_dropout(b.merge(query), b.merge(key), b.merge(value), None, *how)
    return b.split(out, rows), b.split(lse, rows), *drawn


@attention_dropout.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(*_tensors(make), None, *_HOW)


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
    """Return the gradients of query, key and value of `attention_dropout`."""
    return TensorProxy(like=query), TensorProxy(like=key), TensorProxy(like=value)


@attention_dropout_backward.vjp
def _(*args: Any) -> Any:
    raise UnsupportedError(
        "second-order gradients of attention with dropout are not supported, as in torch: use dropout_p=0 or "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    )


@attention_dropout_backward.batch
def _(
    b: Any, grad: Any, query: Any, key: Any, value: Any, attn_mask: Any, out: Any, lse: Any, seed: Any, offset: Any,
    *how: Any,
) -> Any:  # fmt: skip
    if attn_mask is not None or seed in b:
        return NotImplemented
    rows = b.shape(query)[0]
    tensors = [b.merge(x) for x in (grad, query, key, value)]
    found = attention_dropout_backward(*tensors, None, b.merge(out), b.merge(lse), seed, offset, *how)
    return tuple([b.split(x, rows) for x in found])


@attention_dropout_backward.samples
def _(make: MakeTensor) -> Any:
    query, key, value = _tensors(make)
    kind = dtypes.float64 if dtypes.to_dtype(query.dtype) is dtypes.float64 else dtypes.float32
    scores = query.to(dtypes.to_torch_dtype(kind)) @ key.to(dtypes.to_torch_dtype(kind)).mT * 0.3
    out = (scores.softmax(-1) @ value.to(scores.dtype)).to(query.dtype)
    drawn = (make((2,), dtype=dtypes.uint64, requires_grad=False), make((), dtype=dtypes.uint64, requires_grad=False))
    grad = make((2, 3, 5, 8), requires_grad=False)
    yield SampleInput(grad, query, key, value, None, out, scores.logsumexp(-1), *drawn, *_HOW)
