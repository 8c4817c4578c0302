# SPDX-License-Identifier: Apache-2.0
"""Metadata of tensors: facts that a handle stores, symbolic sizes, and strides that are computed on demand."""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder.capture.dispatch.registry import handles
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.layout import meta_of
from thunder.capture.tensors.tracer import Tracer

__all__ = ["METADATA_METHODS", "METADATA_PROPERTIES", "OF_SIZES", "SIZE_METHODS", "SIZE_PROPERTIES"]


# torch reads these from the handle, whose metadata is exact.
METADATA_METHODS = {
    "size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "is_complex", "is_signed", "element_size",
    "get_device", "is_inference", "__len__", "has_names", "is_shared", "is_conj", "is_neg", "__hash__", "is_same_size",
    "is_set_to", "__repr__", "__format__", "__dir__", "is_nonzero_", "_is_view", "__setstate__",
}  # fmt: skip

METADATA_PROPERTIES = {
    "shape", "ndim", "dtype", "device", "layout", "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_sparse_csr",
    "is_quantized", "is_mkldnn", "is_xpu", "is_mps", "is_ipu", "is_maia", "is_nested", "is_mtia", "is_vulkan", "is_xla",
    "names", "itemsize", "nbytes", "requires_grad", "is_leaf", "retains_grad", "output_nr", "name", "_base", "_version",
    "grad_fn", "__dict__", "__class__", "_cdata", "_backward_hooks", "_post_accumulate_grad_hooks", "is_hpu",
}  # fmt: skip


def _size(shape: Any, dim: int | None = None) -> Any:
    if dim is None:
        return torch.Size(shape)
    if not -len(shape) <= dim < len(shape):
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-len(shape)}, {len(shape) - 1}], but got {dim})"
        )
    return shape[dim]


# For tensors with symbolic sizes: metadata as functions of the shape.
SIZE_PROPERTIES: dict[str, Any] = {"shape": torch.Size, "ndim": len}
SIZE_METHODS: dict[str, Any] = {
    "size": _size, "numel": math.prod, "nelement": math.prod, "dim": len, "ndimension": len,
    "__len__": lambda shape: int(shape[0]) if shape else _no_length(),
}  # fmt: skip

# Further metadata that depends on symbolic sizes: C++ reads the sizes from the handle (`Handle.__torch_dispatch__`).
OF_SIZES = frozenset({"nbytes", "is_same_size", "is_set_to"})


def _no_length() -> Any:
    raise TypeError("len() of a 0-d tensor")


# -- strides ----------------------------------------------------------------------------------------------------------
def _layout(tracer: Tracer, x: Any) -> torch.Tensor:
    handle = tracer.handle_of(x)
    with tracer.recording():
        aliasing.read(handle)  # finds the storage of the handle
        return meta_of(handle)


@handles(torch.Tensor.stride)
def _stride(tracer: Tracer, x: Any, *args: Any, **kwargs: Any) -> Any:
    return _layout(tracer, x).stride(*args, **kwargs)


@handles(torch.Tensor.is_contiguous)
def _is_contiguous(tracer: Tracer, x: Any, *args: Any, **kwargs: Any) -> Any:
    return _layout(tracer, x).is_contiguous(*args, **kwargs)


@handles(torch.Tensor.storage_offset)
def _storage_offset(tracer: Tracer, x: Any) -> Any:
    return _layout(tracer, x).storage_offset()


# -- comparisons ------------------------------------------------------------------------------------------------------
@handles(torch.is_same_size, torch.Tensor.is_same_size)
def _is_same_size(tracer: Tracer, input: Any, other: Any) -> bool:
    return bool(input.shape == other.shape)


@handles(torch.Tensor.is_pinned)
def _is_pinned(tracer: Tracer, x: Any, device: Any = None) -> bool:
    return False  # the program's own tensors are not pinned, and no guard checks whether an input is
