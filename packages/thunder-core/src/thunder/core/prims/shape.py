# SPDX-License-Identifier: Apache-2.0
"""Primitives that change a tensor's shape, strides or which of its elements it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags

_VIEW = (OpTags.SHAPE_OP, OpTags.VIEW_OP)


@prim(tags=_VIEW)
def broadcast_in_dim(a: TensorProxy, shape: Sequence[int], broadcast_dimensions: Sequence[int], /) -> TensorProxy:
    """`a` spread over `shape`: its dimension i becomes `broadcast_dimensions[i]`, the others are new."""
    check(
        len(broadcast_dimensions) == a.ndim,
        lambda: f"broadcast_in_dim: {a.ndim} dimensions, but broadcast_dimensions is {tuple(broadcast_dimensions)}",
    )
    for i, d in enumerate(broadcast_dimensions):
        check(
            0 <= d < len(shape) and a.shape[i] in (1, shape[d]),
            lambda: f"broadcast_in_dim: the shape {a.shape} cannot be broadcast to {tuple(shape)}",
        )
    return TensorProxy(like=a, shape=tuple(shape))


@broadcast_in_dim.vjp
def _(g: Any, out: Any, a: Any, shape: Any, dims: Any) -> Any:
    # Sum over the new dimensions and over those that were spread from 1, then take the old shape.
    new = tuple(d for d in range(len(shape)) if d not in dims or (a.shape[dims.index(d)] == 1 and shape[d] != 1))
    if new:
        g = g.sum(new)
    return g if g.shape == a.shape else g.reshape(a.shape)


@broadcast_in_dim.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 1)), [2, 3], (0, 1))
    yield SampleInput(make(()), [2, 2], ())
    yield SampleInput(make((3,)), [2, 3, 1], (1,))
    yield SampleInput(make((0, 1)), [0, 4], (0, 1))
