# SPDX-License-Identifier: Apache-2.0
"""Properties and queries of torch's tensors, on proxies: e.g. `a.size(0)`, `a.dim()` and `a.is_floating_point()`.

They are computed while tracing and record no operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch

from thunder.clang.shape import numel as _count
from thunder.core import dtypes
from thunder.core.devices import to_torch_device
from thunder.core.errors import TracingError
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.proxies import TensorProxy
from thunder.torch.base import language

F = TypeVar("F", bound=Callable[..., Any])


def _method(*names: str) -> Callable[[F], F]:
    def declare(fn: F) -> F:
        for name in (fn.__name__, *names):
            language.add_method(name, fn)
        return fn

    return declare


def _property(fn: F) -> F:
    language.add_property(fn.__name__, fn)
    return fn


@_method()
def size(input: TensorProxy, dim: int | None = None) -> Any:
    """Return the shape, or the size of dimension `dim`."""
    return torch.Size(input.shape) if dim is None else input.shape[canonicalize_dim(input.ndim, dim, False)]


@_method("ndimension")
def dim(input: TensorProxy) -> int:
    """Return the number of dimensions."""
    return input.ndim


@_method("nelement")
def numel(input: TensorProxy) -> int:
    """Return the number of elements."""
    return _count(input.shape)


@_method()
def is_floating_point(input: TensorProxy) -> bool:
    """Check whether the dtype is a real floating point type."""
    return dtypes.is_float_dtype(input.dtype)


@_method()
def is_complex(input: TensorProxy) -> bool:
    """Check whether the dtype is a complex type."""
    return dtypes.is_complex_dtype(input.dtype)


@_method()
def is_signed(input: TensorProxy) -> bool:
    """Check whether the dtype supports negative values."""
    return input.dtype.is_signed


@_method()
def is_same_size(input: TensorProxy, other: TensorProxy) -> bool:
    """Check whether two tensors have the same shape."""
    return input.shape == other.shape


@_method()
def element_size(input: TensorProxy) -> int:
    """Return the number of bytes per element."""
    return input.dtype.bytes


@_method()
def get_device(input: TensorProxy) -> int:
    """Return the index of the device, or -1 for the CPU."""
    return -1 if input.device.type == "cpu" else to_torch_device(input.device).index


@_property
def itemsize(input: TensorProxy) -> int:
    """The number of bytes per element."""
    return input.dtype.bytes


@_property
def nbytes(input: TensorProxy) -> int:
    """The number of bytes of all elements."""
    return _count(input.shape) * input.dtype.bytes


@_property
def is_cpu(input: TensorProxy) -> bool:
    """Whether the tensor is on the CPU."""
    return input.device.type == "cpu"


@_property
def is_cuda(input: TensorProxy) -> bool:
    """Whether the tensor is on a CUDA device."""
    return input.device.type == "cuda"


@_property
def is_meta(input: TensorProxy) -> bool:
    """Whether the tensor has no data."""
    return input.device.type == "meta"


@_property
def layout(input: TensorProxy) -> Any:
    """The layout, which is always strided, because traces do not support sparse tensors."""
    return torch.strided


def _never(input: TensorProxy) -> bool:
    return False


for _name in ("is_sparse", "is_quantized", "is_nested", "is_mkldnn", "is_sparse_csr"):
    language.add_property(_name, _never)


def _value_method(name: str) -> None:
    def refuse(input: TensorProxy, *args: Any) -> NoReturn:
        raise TracingError(
            f"{name} needs the value of the tensor {input.name}, which is not known while tracing. Compute with "
            "tensors (torch.where, masks), or pass the number as an argument"
        )

    language.add_method(name, refuse)


for _name in ("item", "tolist", "numpy"):
    _value_method(_name)
