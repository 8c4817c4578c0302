# SPDX-License-Identifier: Apache-2.0
"""Meta functions and checks that families of primitives share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core import dtypes
from thunder.core.devices import Device
from thunder.core.errors import check
from thunder.core.proxies import NumberProxy, TensorProxy, number_type
from thunder.core.symint.numbers import same_shape

__all__ = [
    "Number",
    "canonicalize_dim",
    "canonicalize_dims",
    "check_same_device",
    "check_same_dtype",
    "check_same_shape",
    "elementwise_meta",
    "is_number",
]

Number = (bool, int, float, complex)


def is_number(x: Any) -> bool:
    """Check whether `x` is a Python number, a symbolic number or a NumberProxy."""
    return isinstance(x, (bool, int, float, complex, NumberProxy))


def canonicalize_dim(rank: int, dim: int, wrap_scalar: bool = True) -> int:
    """Return `dim` as a non-negative number; raise torch's IndexError if it is out of range for `rank` dimensions."""
    if rank == 0 and wrap_scalar:
        rank = 1
    if not -rank <= dim < rank:
        check(rank > 0, lambda: f"Dimension specified as {dim} but tensor has no dimensions", IndexError)
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")
    return dim if dim >= 0 else dim + rank


def canonicalize_dims(rank: int, dims: Sequence[int] | int, wrap_scalar: bool = True) -> tuple[int, ...]:
    """Return `canonicalize_dim` of each dimension in `dims`; the dimensions must be different."""
    if isinstance(dims, int):
        return (canonicalize_dim(rank, dims, wrap_scalar),)
    out = tuple(canonicalize_dim(rank, d, wrap_scalar) for d in dims)
    for i, d in enumerate(out):
        check(d not in out[:i], lambda: f"dim {d} appears multiple times in the list of dims", RuntimeError)
    return out


def check_same_shape(name: str, *tensors: Any) -> None:
    """Check that all tensors among the arguments have the same shape."""
    shapes = [t.shape for t in tensors if isinstance(t, TensorProxy)]
    check(
        all(s == shapes[0] for s in shapes),
        lambda: f"{name}: the tensors must have one shape, but have {', '.join(map(str, shapes))}",
    )


def check_same_device(name: str, *tensors: Any) -> Device:
    """Check that the tensors are on one device, and return it; a 0-d CPU tensor is allowed with any device."""
    device: Device | None = None
    for t in tensors:
        if not isinstance(t, TensorProxy):
            continue
        if device is None or (device.type == "cpu" and _scalar_on_cpu_only(tensors, device)):
            device = t.device
        elif t.device is not device and not (t.ndim == 0 and t.device.type == "cpu"):
            found = sorted({str(x.device) for x in tensors if isinstance(x, TensorProxy)})
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{' and '.join(found)}! (in {name}; move them with .to())"
            )
    assert device is not None
    return device


def _scalar_on_cpu_only(tensors: Sequence[Any], device: Device) -> bool:
    return all(t.ndim == 0 for t in tensors if isinstance(t, TensorProxy) and t.device is device)


def check_same_dtype(name: str, *args: Any) -> dtypes.dtype:
    """Check that the tensors have one dtype, to which all numbers can be converted, and return it."""
    found = [a.dtype for a in args if isinstance(a, TensorProxy)]
    check(
        all(d is found[0] for d in found),
        lambda: f"{name}: the tensors must have one dtype, but have {', '.join(map(str, found))}",
    )
    for a in args:
        if is_number(a):
            kind = number_type(a)
            check(
                dtypes.category(kind) <= found[0].category,
                lambda: f"{name}: the {kind.__name__} {a} does not fit a tensor of dtype {found[0]}",
            )
    return found[0]


def _plainly_alike(args: tuple[Any, ...]) -> TensorProxy | None:
    """Return a tensor with the result's metadata if all operands have the same metadata (the usual case); else None."""
    first: TensorProxy | None = None
    for a in args:
        if type(a) is TensorProxy:
            if first is None:
                first = a
            elif not same_shape(a.shape, first.shape) or a.dtype is not first.dtype or a.device is not first.device:
                return None
        elif (
            first is None
            or a.__class__ not in dtypes.number_types
            or dtypes.category(a.__class__) > first.dtype.category
        ):
            return None
    return first


def elementwise_meta(name: str, *args: Any, out_dtype: dtypes.dtype | None = None) -> TensorProxy:
    """Return the result of an elementwise primitive, whose operands must have the same shape, device and dtype."""
    like = _plainly_alike(args)
    if like is not None:
        return TensorProxy(like=like, dtype=out_dtype)
    tensors = [a for a in args if isinstance(a, TensorProxy)]
    check(bool(tensors), lambda: f"{name} needs at least one tensor", TypeError)
    for a in args:
        if not (isinstance(a, TensorProxy) or is_number(a)):
            raise TypeError(f"{name}: expected tensors and numbers, but got {type(a).__name__}: {a!r}")
    check_same_shape(name, *tensors)
    device = check_same_device(name, *tensors)
    dtype = check_same_dtype(name, *args)
    return TensorProxy(like=tensors[0], device=device, dtype=out_dtype or dtype)
