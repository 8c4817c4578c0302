# SPDX-License-Identifier: Apache-2.0
"""Primitives that cast, move, lay out and write tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core import devices, dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_unary
from thunder.core.symbol import OpTags


@prim(tags=(OpTags.ELEMENTWISE_OP,))
def convert_element_type(a: TensorProxy, dtype: dtypes.dtype, /) -> TensorProxy:
    """`a` with its elements converted to `dtype`."""
    return TensorProxy(like=a, dtype=dtype)


@convert_element_type.vjp
def _(g: Any, out: Any, a: Any, dtype: Any) -> Any:
    if not dtypes.is_inexact_dtype(dtype):
        return None
    if dtypes.is_complex_dtype(dtype) and not dtypes.is_complex_dtype(a.dtype):
        g = g.real
    return convert_element_type(g, a.dtype) if g.dtype is not a.dtype else g


@convert_element_type.samples
def _(make: MakeTensor) -> Any:
    for s in elementwise_unary(make):
        yield SampleInput(*s.args, dtypes.float64)
    yield SampleInput(make((3, 2)), dtypes.int32)
    yield SampleInput(make((3, 2)), dtypes.bool8)


@prim()
def device_put(a: TensorProxy, device: devices.Device, /) -> TensorProxy:
    """`a` on `device`."""
    return TensorProxy(like=a, device=device)


@device_put.vjp
def _(g: Any, out: Any, a: Any, device: Any) -> Any:
    return device_put(g, a.device)


@device_put.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), devices.cpu)


@prim(tags=(OpTags.SHAPE_OP,))
def stride_order(a: TensorProxy, order: Sequence[int], /) -> TensorProxy:
    """`a` with its memory laid out so that dimension i has the `order[i]`-th smallest stride; a copy where it was not."""
    check(
        sorted(order) == list(range(a.ndim)),
        lambda: f"stride_order: {tuple(order)} is no order of {a.ndim} dimensions",
    )
    return TensorProxy(like=a)


@stride_order.vjp
def _(g: Any, out: Any, a: Any, order: Any) -> Any:
    return g


@stride_order.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), (1, 0))
    yield SampleInput(make((3, 2)), (0, 1))
    yield SampleInput(make((2, 3, 4, 5)), (3, 0, 2, 1))


@prim(tags=(OpTags.IN_PLACE_OP, OpTags.NON_DIFFERENTIABLE))
def copy_(value: TensorProxy, target: TensorProxy, /) -> TensorProxy:
    """Writes `value` into the memory of `target`, an input of the program, and gives `target` as it is afterwards."""
    check(
        value.shape == target.shape,
        lambda: f"copy_: the value has the shape {value.shape} and what it is written to {target.shape}",
    )
    return TensorProxy(like=target)
