# SPDX-License-Identifier: Apache-2.0
"""The random part of dropout: the masks of elements that are kept.

The masks are drawn in the same way as in torch. With the same seed, a differentiated program therefore drops the same
elements as eager mode.
"""

from __future__ import annotations

from typing import Any

from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import NON_DIFFERENTIABLE, OpTags


def check_probability(p: float) -> None:
    """Check that a dropout probability is between 0 and 1."""
    check(0 <= p <= 1, lambda: f"dropout probability has to be between 0 and 1, but got {p}")


@prim(tags=(OpTags.RANDOM_OP, NON_DIFFERENTIABLE))
def dropout_noise(a: TensorProxy, p: float, feature: bool, /) -> TensorProxy:
    """Return a mask of ones (with probability `1 - p`) and zeros, with the dtype and memory layout of `a`.

    If `feature` is true, one number is drawn for each channel, and the shape of the mask is `(batch, channels, 1, …)`.
    The values of `a` are not read.
    """
    check_probability(p)
    shape = (*a.shape[:2], *([1] * (a.ndim - 2))) if feature else a.shape
    return TensorProxy(like=a, shape=shape)


@dropout_noise.batch
def _(b: Any, a: Any, p: Any, feature: Any) -> Any:
    if b.randomness == "same":
        return dropout_noise(b.first(a), p, feature)
    if not feature:
        return dropout_noise(b.expand(a), p, False)
    return b.split(dropout_noise(b.merge(a), p, True), b.shape(a)[0])


@dropout_noise.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 4)), 0.3, False)
    yield SampleInput(make((2, 3, 4)), 0.3, True)


@dropout_noise.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 4)), 1.5, False), RuntimeError, "dropout probability has to be between 0 and 1"


@prim(tags=(OpTags.RANDOM_OP,))
def native_dropout(a: TensorProxy, p: float, /) -> tuple[TensorProxy, TensorProxy]:
    """Return `a` after dropout, and the mask of the kept elements, by torch's fused kernel.

    Kept elements are multiplied by `1 / (1 - p)`.
    """
    check_probability(p)
    return TensorProxy(like=a), TensorProxy(like=a, dtype=dtypes.bool8)


@native_dropout.vjp
def _(g: Any, out: Any, a: Any, p: Any) -> Any:
    return g[0] * out[1] * (0.0 if p == 1 else 1.0 / (1.0 - p))


@native_dropout.batch
def _(b: Any, a: Any, p: Any) -> Any:
    if b.randomness == "different":
        return native_dropout(b.expand(a), p)
    mask = native_dropout(b.first(a), p)[1]
    return a * b.expand(mask) * (0.0 if p == 1 else 1.0 / (1.0 - p)), mask


@native_dropout.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 4)), 0.3)
    yield SampleInput(make((2, 3, 4)), 0.5)
