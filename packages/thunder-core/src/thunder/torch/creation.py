# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language that create tensors.

If no dtype or device is passed, torch's default is used, which the prologue guards. The capture layer handles
`layout=`, `pin_memory=`, `requires_grad=` and `out=`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder import clang
from thunder.core import devices, dtypes, prims
from thunder.core.dtypes import BOOL, FLOAT, INTEGER, bool8, float32, float64, int64
from thunder.core.errors import check
from thunder.core.prims.autodiff import zeros_of
from thunder.core.promotion import default_dtype, result_type
from thunder.core.proxies import NumberProxy, TensorProxy, number_type, number_value
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import NON_DIFFERENTIABLE, proxies_in
from thunder.core.symint.numbers import index
from thunder.torch.base import torchsymbol
from thunder.torch.elementwise_base import sum_to

_TAGS = (NON_DIFFERENTIABLE,)
_SHAPES = ((2, 3), (), (0, 3), (4, 1, 2))


def device_or_default(device: Any) -> devices.Device:
    """Return the given device, or torch's default device."""
    return devices.to_device(torch.get_default_device() if device is None else device)  # type: ignore[return-value]


def dtype_or_default(dtype: Any) -> dtypes.dtype:
    """Return the given dtype, or torch's default floating point dtype."""
    return default_dtype() if dtype is None else dtypes.to_dtype(dtype)  # type: ignore[return-value]


def size_of(name: str, sizes: tuple[Any, ...], size: Any = None) -> tuple[int, ...]:
    """Return the shape requested by `f(2, 3)`, `f((2, 3))` or `f(size=(2, 3))`."""
    if size is None:
        size = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    elif sizes:
        raise TypeError(f"{name}() received the size twice: {sizes} and size={size}")
    size = (size,) if isinstance(size, (int, NumberProxy)) else size
    for n in size:
        if isinstance(n, bool) or not isinstance(n, (int, NumberProxy)):
            raise TypeError(f"{name}(): the size must be ints, but found {type(n).__name__}: {n!r}")
    found = tuple([index(number_value(n)) for n in size])
    for n in found:
        clang.base.demand(n, ">=", 0, lambda: f"Trying to create tensor with negative dimension {n}: {list(found)}")
    return found


# -- one value --------------------------------------------------------------------------------------------------------
@torchsymbol(torch.full, tags=_TAGS)
def full(size: Sequence[int], fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor of `size` filled with `fill_value`."""
    shape = size_of("full", (), size)
    if isinstance(fill_value, TensorProxy):
        check(fill_value.ndim == 0, lambda: "full: fill_value must be a number or a tensor with 0 dimensions")
        kind = dtypes.to_dtype(dtype) or fill_value.dtype
        value = prims.device_put(clang.maybe_convert_to_dtype(fill_value, kind), device_or_default(device))
        return prims.broadcast_in_dim(value, list(shape), ())
    kind = dtypes.to_dtype(dtype) or result_type(fill_value)
    return clang.full(shape, fill_value, device=device_or_default(device), dtype=kind)


@full.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(shape, 3, device=make.device, dtype=make.dtype)
    for value in (True, 7, 2.5, 1j):
        yield SampleInput((2, 2), value, device=make.device)
    yield SampleInput((2,), 2.5, device=make.device, dtype=int64)


@full.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput((2, -1), 1.0), RuntimeError, "Trying to create tensor with negative dimension -1"
    yield SampleInput((2,), 1j, dtype=float32), RuntimeError, "cannot be converted to"
    yield SampleInput((2.0,), 1), TypeError, "the size must be ints"


@torchsymbol(torch.full_like, tags=_TAGS, layout="as input")
def full_like(
    input: TensorProxy, fill_value: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None
) -> Any:
    """Return a tensor with the metadata of `input`, filled with `fill_value`."""
    return _like(input, fill_value, dtype, device)


def _like(input: TensorProxy, value: Any, dtype: Any, device: Any) -> Any:
    kind, where = dtypes.to_dtype(dtype) or input.dtype, devices.to_device(device) or input.device
    if isinstance(value, TensorProxy):
        return full(input.shape, value, dtype=kind, device=where)
    return clang.full(input.shape, value, device=where, dtype=kind)


@torchsymbol(torch.fill)
def fill(input: TensorProxy, value: Any) -> Any:
    """Return a tensor with the metadata of `input`, filled with `value`."""
    return _like(input, value, None, None)


@fill.vjp
def _(g: Any, out: Any, input: TensorProxy, value: Any) -> Any:
    return zeros_of(input), sum_to(g, value)


@torchsymbol(torch.zeros_like, tags=_TAGS, layout="as input")
def zeros_like(input: TensorProxy, *, dtype: Any = None, device: Any = None, memory_format: Any = None) -> Any:
    """Return zeros with the metadata of `input`."""
    return _like(input, 0, dtype, device)


@torchsymbol(torch.ones_like, tags=_TAGS, layout="as input")
def ones_like(input: TensorProxy, *, dtype: Any = None, device: Any = None, memory_format: Any = None) -> Any:
    """Return ones with the metadata of `input`."""
    return _like(input, 1, dtype, device)


@torchsymbol(torch.empty_like, tags=_TAGS, layout="as input")
def empty_like(input: TensorProxy, *, dtype: Any = None, device: Any = None, memory_format: Any = None) -> Any:
    """Return an uninitialized tensor with the metadata of `input`."""
    kind, where = dtypes.to_dtype(dtype) or input.dtype, devices.to_device(device) or input.device
    return prims.empty(input.shape, device=where, dtype=kind)


@torchsymbol(torch.zeros, tags=_TAGS)
def zeros(*sizes: Any, size: Any = None, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor of the given size, filled with zeros."""
    return clang.full(size_of("zeros", sizes, size), 0, device=device_or_default(device), dtype=dtype_or_default(dtype))


@torchsymbol(torch.ones, tags=_TAGS)
def ones(*sizes: Any, size: Any = None, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor of the given size, filled with ones."""
    return clang.full(size_of("ones", sizes, size), 1, device=device_or_default(device), dtype=dtype_or_default(dtype))


@torchsymbol(torch.empty, tags=_TAGS)
def empty(*sizes: Any, size: Any = None, dtype: Any = None, device: Any = None, memory_format: Any = None) -> Any:
    """Return an uninitialized tensor of the given size."""
    return prims.empty(size_of("empty", sizes, size), device=device_or_default(device), dtype=dtype_or_default(dtype))


@torchsymbol(torch.empty_strided, tags=_TAGS)
def empty_strided(size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, device: Any = None) -> Any:
    """Return an uninitialized tensor with the given size and strides."""
    check(len(size) == len(stride), lambda: f"mismatch in length of strides and shape: {tuple(stride)}, {tuple(size)}")
    shape = size_of("empty_strided", (), size)
    return prims.empty(shape, device=device_or_default(device), dtype=dtype_or_default(dtype))


@empty_strided.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput((2, 3), (1, 2), device=make.device, dtype=make.dtype)
    yield SampleInput((0, 3), (3, 1))


@empty_strided.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput((2, 3), (1,)), RuntimeError, "mismatch in length of strides and shape"


@fill.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make(shape), 1)
    yield SampleInput(make((2, 3)), make(()))


@full_like.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make(shape), 1)
    yield SampleInput(make((2, 3)), 7, dtype=float64)
    yield SampleInput(make((2, 3)), True, dtype=bool8)
    yield SampleInput(make((3, 2)).mT, 0)


def _like_samples(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make(shape))
    yield SampleInput(make((2, 3)), dtype=float64)
    yield SampleInput(make((2, 3)), dtype=bool8, device=make.device)


def _size_samples(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(shape, device=make.device, dtype=make.dtype)
    yield SampleInput(2, 3, device=make.device)
    yield SampleInput(3, dtype=make.dtype)
    yield SampleInput(size=(2, 2), dtype=make.dtype)


def _size_errors(make: MakeTensor) -> Any:
    yield SampleInput(2, -1), RuntimeError, "Trying to create tensor with negative dimension -1"
    yield SampleInput(2.5), TypeError, "the size must be ints"


for _op in (zeros_like, ones_like):
    _op.samples(_like_samples)
for _op in (zeros, ones):
    _op.samples(_size_samples)
    _op.errors(_size_errors)
empty.errors(_size_errors)


@empty.samples
def _(make: MakeTensor) -> Any:
    for shape in ((2, 3), (), (0, 3)):
        yield SampleInput(shape, device=make.device, dtype=make.dtype)
        yield SampleInput(*shape)


@empty_like.samples
def _(make: MakeTensor) -> Any:
    for shape in ((2, 3), (), (0, 3)):
        yield SampleInput(make(shape))
        yield SampleInput(make(shape), dtype=float64)


# -- methods: the dtype and device are the tensor's -------------------------------------------------------------------
@torchsymbol(torch.Tensor.new_full, tags=_TAGS)
def new_full(input: TensorProxy, size: Sequence[int], fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor of `size` filled with `fill_value`, with the dtype and device of `input`."""
    kind, where = dtypes.to_dtype(dtype) or input.dtype, devices.to_device(device) or input.device
    return clang.full(size_of("new_full", (), size), fill_value, device=where, dtype=kind)


def _new(name: str, input: TensorProxy, sizes: Any, size: Any, dtype: Any, device: Any) -> dict[str, Any]:
    where = devices.to_device(device) or input.device
    return {"shape": size_of(name, sizes, size), "dtype": dtypes.to_dtype(dtype) or input.dtype, "device": where}


@torchsymbol(torch.Tensor.new_zeros, tags=_TAGS)
def new_zeros(input: TensorProxy, *sizes: Any, size: Any = None, dtype: Any = None, device: Any = None) -> Any:
    """Return zeros with the dtype and device of `input`."""
    return clang.full(fill_value=0, **_new("new_zeros", input, sizes, size, dtype, device))


@torchsymbol(torch.Tensor.new_ones, tags=_TAGS)
def new_ones(input: TensorProxy, *sizes: Any, size: Any = None, dtype: Any = None, device: Any = None) -> Any:
    """Return ones with the dtype and device of `input`."""
    return clang.full(fill_value=1, **_new("new_ones", input, sizes, size, dtype, device))


@torchsymbol(torch.Tensor.new_empty, tags=_TAGS)
def new_empty(input: TensorProxy, *sizes: Any, size: Any = None, dtype: Any = None, device: Any = None) -> Any:
    """Return an uninitialized tensor with the dtype and device of `input`."""
    new = _new("new_empty", input, sizes, size, dtype, device)
    return prims.empty(new["shape"], dtype=new["dtype"], device=new["device"])


@new_full.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make((2, 2)), shape, 1)
    yield SampleInput(make(()), (2, 3), 7, dtype=float64)


def _new_samples(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make((2, 2)), shape)
    yield SampleInput(make(()), 2, 3)
    yield SampleInput(make(()), 4, dtype=float64)
    yield SampleInput(make(()), size=(2, 2), device=make.device)


for _op in (new_zeros, new_ones):
    _op.samples(_new_samples)


@new_empty.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2)), (2, 3))
    yield SampleInput(make((2, 2)), (0, 3))
    yield SampleInput(make(()), 4, dtype=float64)


@new_full.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2,)), (2, -1), 1.0), RuntimeError, "Trying to create tensor with negative dimension -1"


# -- numbers ----------------------------------------------------------------------------------------------------------
@torchsymbol(torch.scalar_tensor, tags=_TAGS)
def scalar_tensor(s: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return the number `s` as a tensor with 0 dimensions."""
    return clang.full((), s, device=device_or_default(device), dtype=dtype_or_default(dtype))


@scalar_tensor.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(3, device=make.device, dtype=make.dtype)
    yield SampleInput(2.5)
    yield SampleInput(True)


@torchsymbol(torch.tensor, is_method=False, tags=_TAGS)
def tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a number or nested sequences of numbers as a tensor."""
    kind = dtypes.to_dtype(dtype) or _type_of_numbers(data)
    return prims.tensor_from_sequence(data, dtype=kind, device=device_or_default(device))


def _type_of_numbers(data: Any) -> dtypes.dtype:
    found: list[type] = []

    def collect(x: Any) -> None:
        if isinstance(x, (tuple, list)):
            for item in x:
                collect(item)
        else:
            found.append(number_type(x))

    collect(data)
    if not found:
        return default_dtype()
    highest = max(found, key=dtypes.category)
    kinds = {BOOL: bool8, INTEGER: int64, FLOAT: default_dtype()}
    return kinds.get(dtypes.category(highest)) or dtypes.corresponding_complex_dtype(default_dtype())


@torchsymbol(torch.Tensor.new_tensor, tags=_TAGS)
def new_tensor(input: TensorProxy, data: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return `data` (number, tensor or nested sequences) as a tensor with the dtype and device of `input`."""
    kind, where = dtypes.to_dtype(dtype) or input.dtype, devices.to_device(device) or input.device
    return _of_data(data, kind, where)


def _of_data(data: Any, kind: dtypes.dtype, device: devices.Device) -> Any:
    if isinstance(data, TensorProxy):
        return prims.clone(prims.device_put(clang.maybe_convert_to_dtype(data, kind), device))
    if isinstance(data, (tuple, list)) and proxies_in(data):
        return clang.stack([_of_data(item, kind, device) for item in data])
    return prims.tensor_from_sequence(data, dtype=kind, device=device)


@new_tensor.samples
def _(make: MakeTensor) -> Any:
    for data in ([1, 2, 3], 4, [], [[1, 0], [0, 1]]):
        yield SampleInput(make((2,)), data)
    yield SampleInput(make((2,)), [1, 2], dtype=float64)


@tensor.samples
def _(make: MakeTensor) -> Any:
    for data in ([1, 2, 3], 4, [], [[1, 0], [0, 1], [1, 1]], (2, 3)):
        yield SampleInput(data, device=make.device, dtype=make.dtype)
        yield SampleInput(data)
    yield SampleInput([1, 2.5])
    yield SampleInput([True, False])
    yield SampleInput([1, 2j])


@tensor.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput([[1, 2], [3]]), ValueError, "must have one shape"
