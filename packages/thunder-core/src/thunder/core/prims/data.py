# SPDX-License-Identifier: Apache-2.0
"""Primitives that cast, copy and write tensors, or change their device or memory layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core import devices, dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.batch_rules import as_for_one
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_unary
from thunder.core.symbol import NON_DIFFERENTIABLE, OpTags


@prim(torch="torch.Tensor.to", tags=(OpTags.ELEMENTWISE_OP,), cost="light")
def convert_element_type(a: TensorProxy, dtype: dtypes.dtype, /) -> TensorProxy:
    """Return `a` with its elements converted to `dtype`."""
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
    yield SampleInput(make((3, 2)), dtypes.bfloat16)
    # Values in the range of all integer types: the conversion of other values depends on the machine.
    yield SampleInput(make((3, 2), low=0, high=9), dtypes.int32)
    yield SampleInput(make((3, 2)), dtypes.bool8)
    yield SampleInput(make((3, 2)), dtypes.complex64)


@prim(torch="torch.Tensor.to")
def device_put(a: TensorProxy, device: devices.Device, /) -> TensorProxy:
    """Return a copy of `a` on `device`."""
    return TensorProxy(like=a, device=device)


@device_put.vjp
def _(g: Any, out: Any, a: Any, device: Any) -> Any:
    return device_put(g, a.device)


device_put.batch(as_for_one(device_put))


@device_put.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), devices.cpu)


@prim(tags=(OpTags.SHAPE_OP,), keeps_order=True)
def stride_order(a: TensorProxy, order: Sequence[int], /) -> TensorProxy:
    """Return `a` in the memory layout in which dimension i has the `order[i]`-th smallest stride.

    The result is a copy unless `a` already has this layout.
    """
    check(
        sorted(order) == list(range(a.ndim)),
        lambda: f"stride_order: {tuple(order)} is not a permutation of {a.ndim} dimensions",
    )
    return TensorProxy(like=a)


stride_order.vjp(lambda g, out, *args: g)


@stride_order.batch
def _(b: Any, a: Any, order: Any) -> Any:
    return stride_order(a, (len(order), *order))


@stride_order.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), (1, 0))
    yield SampleInput(make((3, 2)), (0, 1))
    yield SampleInput(make((2, 3, 4, 5)), (3, 0, 2, 1))
    yield SampleInput(make(()), ())


@stride_order.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), (0, 0)), RuntimeError, "is not a permutation of 2 dimensions"


@prim(tags=(OpTags.SHAPE_OP,))
def clone_in_order(a: TensorProxy, order: Sequence[int], /) -> TensorProxy:
    """Return a copy of `a`, which shares no memory with `a`, in the memory layout of `stride_order`."""
    return stride_order.meta(a, order)


clone_in_order.vjp(lambda g, out, *args: g)


@clone_in_order.batch
def _(b: Any, a: Any, order: Any) -> Any:
    return clone_in_order(a, (len(order), *order))


@clone_in_order.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), (1, 0))
    yield SampleInput(make((3, 2)), (0, 1))
    yield SampleInput(make((2, 3, 4, 5)).mT, (3, 0, 2, 1))
    yield SampleInput(make(()), ())


@clone_in_order.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), (0, 0)), RuntimeError, "is not a permutation of 2 dimensions"


@prim(torch="torch.clone")
def clone(a: TensorProxy, /) -> TensorProxy:
    """Return a copy of `a`, which shares no memory with `a`."""
    return TensorProxy(like=a)


clone.vjp(lambda g, out, *args: g)
clone.batch(as_for_one(clone))
clone.samples(elementwise_unary)


@prim(torch="torch.Tensor.detach", tags=(OpTags.VIEW_OP, NON_DIFFERENTIABLE))
def detach(a: TensorProxy, /) -> TensorProxy:
    """Return the values of `a`, without a gradient."""
    return TensorProxy(like=a, requires_grad=False)


detach.batch(as_for_one(detach))
detach.samples(elementwise_unary)


@prim(torch="torch.ops.aten.alias", tags=(OpTags.VIEW_OP,))
def alias(a: TensorProxy, /) -> TensorProxy:
    """Return another tensor with the memory of `a`, which has a gradient of its own."""
    return TensorProxy(like=a)


alias.vjp(lambda g, out, a: g)
alias.batch(as_for_one(alias))
alias.samples(elementwise_unary)


@prim(torch="torch.Tensor.view", tags=(OpTags.VIEW_OP, NON_DIFFERENTIABLE))
def bitcast(a: TensorProxy, dtype: dtypes.dtype, /) -> TensorProxy:
    """Reinterpret the memory of `a` as elements of `dtype`; the last dimension changes if their sizes differ."""
    old, new = a.dtype.bytes, dtype.bytes
    if old == new:
        return TensorProxy(like=a, dtype=dtype)
    sizes = f"from {a.dtype} (element size: {old}) to {dtype} (element size: {new})"
    check(a.ndim > 0, lambda: f"self.dim() cannot be 0 to view {sizes} (different element sizes)")
    last = a.shape[-1] * old
    check(
        last % new == 0,
        lambda: f"self.size(-1) must be divisible by {new // old} to view {sizes}, but got {a.shape[-1]}",
    )
    return TensorProxy(like=a, dtype=dtype, shape=(*a.shape[:-1], last // new))


bitcast.batch(as_for_one(bitcast))


@bitcast.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 16)), dtypes.uint8)
    yield SampleInput(make((3, 16)), dtypes.float64)
    yield SampleInput(make((2, 8)), dtypes.int16)
    yield SampleInput(make((0, 8)), dtypes.int32)


@bitcast.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((), dtype=dtypes.float32), dtypes.float64), RuntimeError, r"self.dim\(\) cannot be 0 to view"
    odd = make((3,), dtype=dtypes.float32)
    yield SampleInput(odd, dtypes.float64), RuntimeError, r"self.size\(-1\) must be divisible by 2 to view"


@prim()
def assign_value(a: TensorProxy, value: TensorProxy, /) -> TensorProxy:
    """Replace `a` by `value` without autograd's knowledge: gradients flow to `a` as if it had not changed."""
    check(
        value.shape == a.shape and value.dtype is a.dtype,
        lambda: f"assign_value: the value is a {value.type_string()}, but it replaces a {a.type_string()}",
    )
    return TensorProxy(like=a)


@assign_value.vjp
def _(g: Any, out: Any, a: Any, value: Any) -> Any:
    return g, None


@assign_value.batch
def _(b: Any, a: Any, value: Any) -> Any:
    return assign_value(b.expand(a), b.expand(value))


@assign_value.samples
def _(make: MakeTensor) -> Any:
    # No gradients: torch has no function with the gradient of this primitive to compare with.
    yield SampleInput(make((3, 2)).detach(), make((3, 2)).detach())


@assign_value.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), make((2, 3))), RuntimeError, "but it replaces"


@prim(tags=(OpTags.IN_PLACE_OP, NON_DIFFERENTIABLE))
def copy_(value: TensorProxy, target: TensorProxy, /) -> TensorProxy:
    """Write `value` into the memory of `target`, an input of the program, and return the updated `target`."""
    check(
        value.shape == target.shape,
        lambda: f"copy_: the value has the shape {value.shape}, but the target has the shape {target.shape}",
    )
    return TensorProxy(like=target)


@copy_.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), make((3, 2)).clone())
    yield SampleInput(make(()), make(()).clone())
    yield SampleInput(make((3, 2)), make((2, 3)).clone().mT)


@copy_.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), make((2, 3))), RuntimeError, "but the target has the shape"
