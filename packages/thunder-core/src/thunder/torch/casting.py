# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language that cast, move and copy tensors: to, float, cpu, clone, detach …"""

from __future__ import annotations

import builtins
from typing import Any

import torch

from thunder import clang
from thunder.core import devices, dtypes, prims
from thunder.core.binder import Binder
from thunder.core.errors import check
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_unary
from thunder.core.symbol import NON_DIFFERENTIABLE, OpTags, Symbol
from thunder.torch.base import language, torchsymbol
from thunder.torch.shape import VIEW, strides_order

_CAST = (OpTags.ELEMENTWISE_OP,)


# -- to ---------------------------------------------------------------------------------------------------------------
class _ToBinder(Binder):
    """A binder that normalizes the spellings of `to`: dtype and device become positional, the options keywords.

    `a.to(other)`, `a.to("cuda", torch.half)`, `a.to(dtype=torch.half, device="cuda")`, `a.to(torch.half, False, True)`.
    """

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not args and "input" in kwargs:
            kwargs = dict(kwargs)
            args = (kwargs.pop("input"),)
        given = {**kwargs}
        rest = list(args[1:])
        device, dtype = given.pop("device", None), given.pop("dtype", None)
        other = given.pop("other", None)
        if rest and not isinstance(rest[0], builtins.bool):
            first = rest.pop(0)
            if isinstance(first, TensorProxy) or hasattr(first, "untyped_storage"):
                other = first
            elif _is_dtype(first):
                dtype = first
            else:
                device = first
                if rest and (rest[0] is None or _is_dtype(rest[0])):
                    dtype = rest.pop(0) or dtype
        if other is not None:
            device, dtype = other.device, other.dtype
        given.update(zip(("non_blocking", "copy"), rest))
        device = torch.device(device) if isinstance(device, str) else device  # which the meta device can replace
        wanted = tuple([x for x in (device, dtype) if x is not None])
        options = {k: v for k, v in given.items() if v not in (False, None)}
        for name in options:
            if name not in ("non_blocking", "copy", "memory_format"):
                raise TypeError(f"to() got an unexpected keyword argument {name!r}")
        return (args[0], *wanted), options


def _is_dtype(x: Any) -> Any:
    return isinstance(x, (torch.dtype, dtypes.dtype)) or (isinstance(x, type) and x in dtypes.number_types)


def _moved(a: TensorProxy, device: Any, dtype: Any) -> TensorProxy:
    where = devices.to_device(device)
    if where is not None and where is not a.device:
        a = prims.device_put(a, where)
    return a if dtype is None else clang.maybe_convert_to_dtype(a, dtypes.to_dtype(dtype))


def _laid_out(a: TensorProxy, memory_format: Any) -> TensorProxy:
    if memory_format in (None, torch.preserve_format):
        return a
    return prims.stride_order(a, strides_order(a.ndim, memory_format))


@torchsymbol(torch.Tensor.to, tags=_CAST, casts=True)
def to(
    input: TensorProxy, *wanted: Any, copy: Any = False, non_blocking: Any = False, memory_format: Any = None
) -> Any:
    """Return `input` with another device, dtype or memory format, or `input` itself if nothing changes."""
    device = next((x for x in wanted if not _is_dtype(x)), None)
    dtype = next((x for x in wanted if _is_dtype(x)), None)
    out = _laid_out(_moved(input, device, dtype), memory_format)
    return prims.clone(input) if out is input and copy else out


to.bind = _ToBinder(to.meta, "to")


@to.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), torch.float64)
    yield SampleInput(make((3, 2)), make((0,)).device)
    yield SampleInput(make((3, 2)), make((0,)).device, torch.float32)
    yield SampleInput(make((3, 2)), make((1,), dtype=dtypes.float64))
    yield SampleInput(make((3, 2)), dtype=torch.bfloat16)
    yield SampleInput(make((3, 2)), make((0,)).dtype, copy=True)
    yield SampleInput(make((2, 3, 4, 5)), memory_format=torch.channels_last)
    yield SampleInput(make((5, 3)).mT, torch.float64)


@to.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), memory_format=torch.channels_last), RuntimeError, "required rank 4 tensor"


@torchsymbol(torch.Tensor.type_as, tags=_CAST, casts=True)
def type_as(input: TensorProxy, other: TensorProxy) -> TensorProxy:
    """Return `input` with the dtype and device of `other`."""
    return _moved(input, other.device, other.dtype)


@type_as.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), make((1,), dtype=dtypes.float64))
    yield SampleInput(make((3, 2)), make(()))


_LEGACY_NAMES = {
    "FloatTensor": dtypes.float32, "DoubleTensor": dtypes.float64, "HalfTensor": dtypes.float16,
    "BFloat16Tensor": dtypes.bfloat16, "ByteTensor": dtypes.uint8, "CharTensor": dtypes.int8,
    "ShortTensor": dtypes.int16, "IntTensor": dtypes.int32, "LongTensor": dtypes.int64, "BoolTensor": dtypes.bool8,
    "ComplexFloatTensor": dtypes.complex64, "ComplexDoubleTensor": dtypes.complex128,
}  # fmt: skip


@torchsymbol(torch.Tensor.type, id="torch.type", method_name="type", tags=_CAST, casts=True)
def type_(input: TensorProxy, dtype: Any = None, non_blocking: Any = False) -> Any:
    """Return `input` with another dtype, or without `dtype` the legacy name of its type ("torch.FloatTensor")."""
    if dtype is None:
        return _legacy_name(input)
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", "")
    kind = _LEGACY_NAMES.get(name.rpartition(".")[2])
    if kind is None:
        return _moved(input, None, dtype)
    module = name if isinstance(dtype, str) else f"{dtype.__module__}.{name}"
    return _moved(input, "cuda" if "cuda" in module.split(".") else "cpu", kind)


def _legacy_name(a: TensorProxy) -> Any:
    name = next((n for n, d in _LEGACY_NAMES.items() if d is a.dtype), f"{a.dtype.name.capitalize()}Tensor")
    return f"torch.{'' if a.device.type == 'cpu' else a.device.type + '.'}{name}"


@type_.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 2)), torch.float64)
    yield SampleInput(make((3, 2)), make((0,)).dtype)


# -- by name ----------------------------------------------------------------------------------------------------------
_CASTS = {
    "float": dtypes.float32, "double": dtypes.float64, "half": dtypes.float16, "bfloat16": dtypes.bfloat16,
    "int": dtypes.int32, "long": dtypes.int64, "short": dtypes.int16, "char": dtypes.int8, "byte": dtypes.uint8,
    "bool": dtypes.bool8, "cfloat": dtypes.complex64, "cdouble": dtypes.complex128, "chalf": dtypes.complex32,
}  # fmt: skip


def _declare_cast(name: str, dtype: dtypes.dtype) -> Symbol:
    def cast(input: TensorProxy, *, memory_format: Any = torch.preserve_format) -> TensorProxy:
        return _laid_out(clang.maybe_convert_to_dtype(input, dtype), memory_format)

    cast.__name__ = cast.__qualname__ = name
    cast.__doc__ = f"`input` as {dtype}."
    return torchsymbol(getattr(torch.Tensor, name), tags=_CAST, casts=True)(cast)


def _cast_samples(make: MakeTensor) -> Any:
    # Only values in the range of all dtypes, and no halves: other conversions depend on the machine.
    for shape in ((4, 3), (), (0, 2)):
        yield SampleInput(make(shape, low=0, high=9))
    yield SampleInput(make((5, 3), low=0, high=9).mT)
    yield SampleInput(make((2, 3, 4, 5), low=0, high=9), memory_format=torch.channels_last)


for _name, _dtype in _CASTS.items():
    globals()[_name] = _declare_cast(_name, _dtype)
    globals()[_name].samples(_cast_samples)


@torchsymbol(torch.Tensor.cpu)
def cpu(input: TensorProxy, *, memory_format: Any = torch.preserve_format) -> TensorProxy:
    """Return `input` on the CPU."""
    return _laid_out(_moved(input, "cpu", None), memory_format)


@cpu.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3, 4, 5)), memory_format=torch.channels_last)
    yield SampleInput(make((3, 2)))


def _cuda(input: TensorProxy, device: Any = None, non_blocking: Any = False, memory_format: Any = None) -> TensorProxy:
    """Return `input` on a CUDA device. The default is the current device."""
    if device is None:
        device = input.device if input.device.type == "cuda" else f"cuda:{torch.cuda.current_device()}"
    elif isinstance(device, builtins.int):
        device = f"cuda:{device}"
    return to(input, device, memory_format=memory_format)


# This is not an operation, because machines without CUDA could not test it. The capture layer records `x.to("cuda")`.
language.add_method("cuda", _cuda)


# -- memory and gradients ---------------------------------------------------------------------------------------------
@torchsymbol(torch.clone)
def clone(input: TensorProxy, *, memory_format: Any = torch.preserve_format) -> TensorProxy:
    """Return a copy of `input`."""
    return _laid_out(prims.clone(input), memory_format)


@clone.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)
    yield SampleInput(make((5, 3)).mT, memory_format=torch.contiguous_format)
    yield SampleInput(make((2, 3, 4, 5)), memory_format=torch.channels_last)


@torchsymbol(torch.Tensor.detach, torch.detach, tags=(OpTags.VIEW_OP, NON_DIFFERENTIABLE))
def detach(input: TensorProxy) -> TensorProxy:
    """Return `input` without a connection to its gradient."""
    return prims.detach(input)


@detach.view_scatter
def _(base: Any, new: Any) -> Any:
    return new


@detach.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)


# -- complex numbers as pairs -----------------------------------------------------------------------------------------
@torchsymbol(torch.view_as_real, is_method=False, tags=VIEW)
def view_as_real(input: TensorProxy) -> TensorProxy:
    """Return complex numbers as pairs of real numbers in a new last dimension."""
    check(
        dtypes.is_complex_dtype(input.dtype),
        lambda: f"view_as_real is only supported for complex tensors, but this one is {input.dtype}",
    )
    return clang.stack([prims.real(input), prims.imag(input)], -1)


@torchsymbol(torch.view_as_complex, is_method=False, tags=VIEW, autocast={"cpu": "float32"})
def view_as_complex(input: TensorProxy) -> TensorProxy:
    """Return pairs of real numbers in the last dimension as complex numbers."""
    check(
        input.dtype in (dtypes.float16, dtypes.float32, dtypes.float64),
        lambda: (
            f"view_as_complex is only supported for half, float and double tensors, but got a tensor of {input.dtype}"
        ),
    )
    check(input.ndim > 0, lambda: "Input tensor must have one or more dimensions")
    check(input.shape[-1] == 2, lambda: "Tensor must have a last dimension of size 2")
    parts = [prims.squeeze(clang.slice_in_dim(input, i, i + 1, dim=-1), (input.ndim - 1,)) for i in (0, 1)]
    return prims.complex(*parts)


view_as_real.view_scatter(lambda base, new: view_as_complex.meta(new))
view_as_complex.view_scatter(lambda base, new: view_as_real.meta(new))


@view_as_real.samples
def _(make: MakeTensor) -> Any:
    for shape in ((3, 2), (), (0, 2)):
        yield SampleInput(make(shape, dtype=dtypes.complex64))


@view_as_real.errors
def _(make: MakeTensor) -> Any:
    yield (
        SampleInput(make((3,), dtype=dtypes.float32)),
        RuntimeError,
        "view_as_real is only supported for complex tensors",
    )


@view_as_complex.samples
def _(make: MakeTensor) -> Any:
    for shape in ((3, 2), (2,), (0, 2)):
        yield SampleInput(make(shape, dtype=dtypes.float32))


@view_as_complex.errors
def _(make: MakeTensor) -> Any:
    a = make((3,), dtype=dtypes.float32)
    yield SampleInput(a), RuntimeError, "Tensor must have a last dimension of size 2"
    yield (
        SampleInput(make((2,), dtype=dtypes.int64)),
        RuntimeError,
        "is only supported for half, float and double tensors",
    )
