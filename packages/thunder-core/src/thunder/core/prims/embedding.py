# SPDX-License-Identifier: Apache-2.0
"""Embedding, which selects rows of a table by index, and the gradient of the table."""

from __future__ import annotations

from typing import Any

from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.creation import iota
from thunder.core.prims.data import detach
from thunder.core.prims.elementwise_conditional import where
from thunder.core.prims.metas import check_same_device
from thunder.core.prims.shape import broadcast_in_dim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput


def _check_indices(indices: TensorProxy) -> None:
    check(
        indices.dtype in (dtypes.int64, dtypes.int32),
        lambda: (
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
            "a tensor "
            f"of {indices.dtype} instead (while checking arguments for embedding)"
        ),
    )


@prim(torch="torch.embedding")
def embedding(
    weight: TensorProxy,
    indices: TensorProxy,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    /,
) -> TensorProxy:
    """Return the row of `weight` for each index in `indices`; the row `padding_idx` gets no gradient."""
    check(weight.ndim == 2, lambda: "'weight' must be 2-D")
    _check_indices(indices)
    check_same_device("embedding", weight, indices)
    return TensorProxy(like=weight, shape=(*indices.shape, weight.shape[1]))


@embedding.vjp
def _(
    g: Any, out: Any, weight: Any, indices: Any, padding_idx: Any = -1, scale: Any = False, sparse: Any = False
) -> Any:
    return embedding_backward(g, indices, weight.shape[0], padding_idx, scale)


@prim()
def embedding_backward(
    g: TensorProxy, indices: TensorProxy, num_weights: int, padding_idx: int, scale_grad_by_freq: bool, /
) -> TensorProxy:
    """Return the gradient of an embedding's table: for each index, the sum of the rows of `g` with this index.

    With `scale_grad_by_freq`, each sum is divided by the number of times that the index occurs.
    """
    _check_indices(indices)
    return TensorProxy(like=g, shape=(num_weights, g.shape[-1]))


@embedding_backward.vjp
def _(v: Any, out: Any, g: Any, indices: Any, num_weights: Any, padding_idx: Any, scale_grad_by_freq: Any) -> Any:
    rows = embedding(v, indices)
    if padding_idx >= 0:
        rows = rows * (indices != padding_idx).unsqueeze(-1)
    if scale_grad_by_freq:
        ones = v.new_zeros((num_weights,)).index_add(0, indices.reshape((-1,)), (rows[..., 0] * 0 + 1).reshape((-1,)))
        rows = rows / ones[indices].unsqueeze(-1)
    return rows


def _indices(make: MakeTensor, *shape: int, high: int) -> Any:
    return make(shape, low=0, high=high, dtype=dtypes.int64)


@embedding.jvp
def _(t: Any, out: Any, weight: Any, indices: Any, *how: Any) -> Any:
    return embedding(t[0], indices)  # without padding_idx and scale_grad_by_freq, which apply only to gradients


def _in_one_table(b: Any, indices: Any, rows: Any) -> Any:
    """Return indices into one table that contains the tables of all examples, one below the other."""
    indices = b.expand(indices)
    start = iota(b.size, start=0, step=rows, device=indices.device, dtype=indices.dtype)
    return indices + broadcast_in_dim(start, indices.shape, (0,))


@embedding.batch
def _(b: Any, weight: Any, indices: Any, padding_idx: Any = -1, scale: Any = False, sparse: Any = False) -> Any:
    if weight not in b:
        return embedding(weight, indices, padding_idx, scale, sparse)
    out = embedding(b.merge(weight), _in_one_table(b, indices, weight.shape[1]), -1, scale)
    if padding_idx < 0:
        return out
    kept = (b.expand(indices) != padding_idx).unsqueeze(-1)
    return where(kept.expand(out.shape), out, detach(out))


@embedding_backward.batch
def _(b: Any, g: Any, indices: Any, num_weights: Any, padding_idx: Any, scale: Any) -> Any:
    g = b.expand(g)
    if padding_idx >= 0:
        g = g.masked_fill((b.expand(indices) == padding_idx).unsqueeze(-1), 0)
    found = embedding_backward(g, _in_one_table(b, indices, num_weights), b.size * num_weights, -1, scale)
    return b.split(found, num_weights)


@embedding.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((5, 3)), _indices(make, 2, 4, high=5))
    yield SampleInput(make((5, 3)), _indices(make, 6, high=5), 2)
    yield SampleInput(make((5, 3)), _indices(make, 6, high=5), -1, True)
    yield SampleInput(make((5, 3)), _indices(make, high=5))
    yield SampleInput(make((5, 3)), _indices(make, 0, high=5))
    yield SampleInput(make((5, 0)), _indices(make, 2, high=5)).left_out_when(
        "the kernel of the gradient reads out of bounds", device="cuda"
    )


@embedding.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((5,)), _indices(make, 2, high=5)), RuntimeError, "'weight' must be 2-D"
    yield SampleInput(make((5, 3)), make((2,))), RuntimeError, "to have one of the following scalar types: Long, Int"


@embedding_backward.samples
def _(make: MakeTensor) -> Any:
    for padding_idx in (-1, 2):
        yield SampleInput(make((2, 4, 3)), _indices(make, 2, 4, high=5), 5, padding_idx, False)
    # Without a gradient: torch ignores the frequencies in the second derivative.
    yield SampleInput(make((2, 4, 3), requires_grad=False), _indices(make, 2, 4, high=5), 5, 2, True)
    yield SampleInput(make((3,)), _indices(make, high=5), 5, -1, False)
