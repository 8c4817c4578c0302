# SPDX-License-Identifier: Apache-2.0
"""Elementwise selection between two values by a condition."""

from __future__ import annotations

from typing import Any

from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.elementwise_base import ELEMENTWISE, differentiable
from thunder.core.prims.metas import check_same_device, check_same_shape, elementwise_meta, is_number
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput


@prim(torch="torch.where", tags=ELEMENTWISE, cost="light")
def where(pred: TensorProxy, a: Any, b: Any, /) -> TensorProxy:
    """Return `a` where `pred` is true, and `b` elsewhere; at least one of `a` and `b` must be a tensor."""
    check(
        isinstance(pred, TensorProxy) and pred.dtype is dtypes.bool8,
        lambda: (
            "where expected condition to be a boolean tensor, but got "
            + (
                f"a tensor with dtype {pred.dtype}"
                if isinstance(pred, TensorProxy)
                else f"{type(pred).__name__}: {pred!r}"
            )
        ),
    )
    check(
        not (is_number(a) and is_number(b)),
        lambda: "where: at least one of the two values must be a tensor, but both are numbers",
        TypeError,
    )
    check_same_shape("where", pred, a, b)
    return TensorProxy(like=elementwise_meta("where", a, b), device=check_same_device("where", pred, a, b))


@where.vjp
def _(g: Any, out: Any, pred: Any, a: Any, b: Any) -> Any:
    return None, (where(pred, g, 0) if differentiable(a) else None), (where(pred, 0, g) if differentiable(b) else None)


@where.samples
def _(make: MakeTensor) -> Any:
    for shape in ((4, 4), (), (0, 3), (8, 3, 5)):
        yield SampleInput(make(shape, dtype=dtypes.bool8), make(shape), make(shape))
    yield SampleInput(make((5, 3), dtype=dtypes.bool8).mT, make((3, 5)), make((1, 5)).expand(3, 5))
    yield SampleInput(make((4, 4), dtype=dtypes.bool8), make((4, 4)), 1)
    yield SampleInput(make((4, 4), dtype=dtypes.bool8), 0, make((4, 4)))


@where.errors
def _(make: MakeTensor) -> Any:
    a = make((2, 2))
    yield SampleInput(make((2, 2), dtype=dtypes.int64), a, a), RuntimeError, "expected condition to be a boolean tensor"
