# SPDX-License-Identifier: Apache-2.0
"""Primitives that create tensors without tensor inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core import devices, dtypes
from thunder.core.dtypes import COMPLEX
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.metas import is_number
from thunder.core.proxies import TensorProxy, number_type
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import NON_DIFFERENTIABLE

_TAGS = (NON_DIFFERENTIABLE,)


def _new(name: str, shape: Sequence[int], device: devices.Device, dtype: dtypes.dtype) -> TensorProxy:
    check(
        all(size >= 0 for size in shape),
        lambda: f"{name}: trying to create a tensor with the negative dimension {min(shape)}: {list(shape)}",
    )
    return TensorProxy(shape=tuple(shape), device=device, dtype=dtype)


@prim(tags=_TAGS)
def full(shape: Sequence[int], fill_value: Any, /, *, device: devices.Device, dtype: dtypes.dtype) -> TensorProxy:
    """Return a tensor of `shape` in which every element is `fill_value`."""
    check(
        is_number(fill_value),
        lambda: f"full: fill_value must be a number, but it is {type(fill_value).__name__}: {fill_value!r}",
        TypeError,
    )
    check(
        dtypes.category(number_type(fill_value)) < COMPLEX or dtype.category == COMPLEX,
        lambda: f"full: the complex number {fill_value} cannot be converted to {dtype} without overflow",
    )
    return _new("full", shape, device, dtype)


@full.samples
def _(make: MakeTensor) -> Any:
    for shape in ((2, 2), (), (0, 3), (4, 1, 3)):
        yield SampleInput(shape, 1.0, device=devices.to_device(make.device), dtype=dtypes.to_dtype(make.dtype))


@full.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput((2, -1), 1.0, device=devices.cpu, dtype=dtypes.float32), RuntimeError, "negative dimension -1"
    yield (
        SampleInput((2,), 1j, device=devices.cpu, dtype=dtypes.float32),
        RuntimeError,
        "cannot be converted to float32",
    )
    yield SampleInput((2,), "1", device=devices.cpu, dtype=dtypes.float32), TypeError, "fill_value must be a number"


@prim(tags=_TAGS)
def empty(shape: Sequence[int], /, *, device: devices.Device, dtype: dtypes.dtype) -> TensorProxy:
    """Return a tensor of `shape` with uninitialized elements."""
    return _new("empty", shape, device, dtype)


@empty.samples
def _(make: MakeTensor) -> Any:
    for shape in ((2, 3), (), (0, 3)):
        yield SampleInput(shape, device=devices.to_device(make.device), dtype=dtypes.to_dtype(make.dtype))


@empty.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput((-2,), device=devices.cpu, dtype=dtypes.float32), RuntimeError, "negative dimension -2"


@prim(tags=_TAGS)
def iota(length: int, /, *, start: int, step: int, device: devices.Device, dtype: dtypes.dtype) -> TensorProxy:
    """Return the integers start, start + step, start + 2 * step … as a tensor of `length` elements."""
    check(length >= 0, lambda: f"iota: the length must not be negative, but it is {length}")
    check(
        dtype.category == dtypes.INTEGER,
        lambda: f"iota needs an integer dtype, but got {dtype}: convert its result instead",
        NotImplementedError,
    )
    return TensorProxy(shape=(length,), device=device, dtype=dtype)


@iota.samples
def _(make: MakeTensor) -> Any:
    for length, start, step in ((4, 0, 1), (0, 0, 1), (1, 5, -3), (7, 2, 3), (5, 9, -2)):
        yield SampleInput(
            length, start=start, step=step, device=devices.to_device(make.device), dtype=dtypes.to_dtype(make.dtype)
        )


@iota.errors
def _(make: MakeTensor) -> Any:
    where = {"device": devices.cpu, "dtype": dtypes.int64}
    yield SampleInput(-1, start=0, step=1, **where), RuntimeError, "length must not be negative"


@prim(tags=_TAGS)
def tensor_from_sequence(values: Any, /, *, device: devices.Device, dtype: dtypes.dtype) -> TensorProxy:
    """Return a tensor with the numbers in `values`, which is a number or a nested sequence of numbers."""
    return _new("tensor_from_sequence", _shape_of(values), device, dtype)


def _shape_of(values: Any) -> tuple[int, ...]:
    if is_number(values):
        return ()
    if not isinstance(values, (tuple, list)):
        raise TypeError(
            f"a tensor is made of numbers or sequences of numbers, but got {type(values).__name__}: {values!r}"
        )
    if not values:
        return (0,)
    inner = [_shape_of(v) for v in values]
    for i, shape in enumerate(inner):
        if shape != inner[0]:
            raise ValueError(
                f"the items of a nested sequence must have one shape: item 0 has {inner[0]}, but item {i} has {shape}"
            )
    return (len(values), *inner[0])


@tensor_from_sequence.samples
def _(make: MakeTensor) -> Any:
    for values in ([1, 2, 3], 1, [], [[1, 0], [0, 1], [1, 1]], [[], []]):
        yield SampleInput(values, device=devices.to_device(make.device), dtype=dtypes.to_dtype(make.dtype))


@tensor_from_sequence.errors
def _(make: MakeTensor) -> Any:
    where = {"device": devices.cpu, "dtype": dtypes.int64}
    yield SampleInput([[1], [1, 2]], **where), ValueError, "must have one shape"
    yield SampleInput(["1"], **where), TypeError, "made of numbers"
