# SPDX-License-Identifier: Apache-2.0
"""Metadata of tensors: facts that a handle stores, symbolic sizes, and strides that are computed on demand."""

from __future__ import annotations

import math
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back
from thunder.capture.base.sources import Attr, Query
from thunder.capture.dispatch.registry import handles, handles_property, methods
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import FORMATTED
from thunder.capture.tensors.layout import meta_of
from thunder.capture.tensors.tracer import Lifted, Tracer

__all__ = ["METADATA_METHODS", "METADATA_PROPERTIES", "OF_SIZES", "SIZE_METHODS", "SIZE_PROPERTIES", "layout_of"]


# torch reads these from the handle, whose metadata is exact.
METADATA_METHODS = {
    "size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "is_complex", "is_signed", "element_size",
    "get_device", "is_inference", "__len__", "has_names", "is_shared", "is_conj", "is_neg", "__hash__", "is_same_size",
    "is_set_to", "__dir__", "is_nonzero_", "_is_view", "__setstate__",
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


@handles(torch.Tensor.__repr__, torch.Tensor.__format__)
def _text(tracer: Tracer, x: Any, *args: Any, **kwargs: Any) -> Any:
    fall_back(FORMATTED)


# -- strides ----------------------------------------------------------------------------------------------------------
def layout_of(tracer: Tracer, x: Any) -> torch.Tensor:
    """Return a tensor on the meta device with the strides that a tensor has in eager mode."""
    handle = tracer.handle_of(x)
    with tracer.recording():
        aliasing.read(handle)  # finds the storage of the handle
        return meta_of(handle)


@handles(torch.Tensor.stride)
def _stride(tracer: Tracer, x: Any, *args: Any, **kwargs: Any) -> Any:
    return layout_of(tracer, x).stride(*args, **kwargs)


@handles(torch.Tensor.is_contiguous)
def _is_contiguous(tracer: Tracer, x: Any, *args: Any, **kwargs: Any) -> Any:
    return layout_of(tracer, x).is_contiguous(*args, **kwargs)


@handles(torch.Tensor.storage_offset)
def _storage_offset(tracer: Tracer, x: Any) -> Any:
    offset = layout_of(tracer, x).storage_offset()
    owner = _owner(tracer, x)
    return offset if owner is None else offset + tracer.guarded_of(owner.tensor, Query, "storage_offset")


# -- memory -----------------------------------------------------------------------------------------------------------
def _input(tracer: Tracer, x: Any) -> Lifted | None:
    """Return the input that user code queries, or None for a tensor that the program computed."""
    return tracer.input_with(tracer.handle_of(x))


def _owner(tracer: Tracer, x: Any) -> Lifted | None:
    """Return the input whose memory a tensor shares, or None for memory that the program allocated."""
    return tracer.owner_of(tracer.handle_of(x))


@handles_property("_version")
def _version(tracer: Tracer, x: Any) -> int:
    owner, writes = _owner(tracer, x), int(tracer.handle_of(x)._storage.version)
    return writes if owner is None else int(tracer.guarded_of(owner.tensor, Attr, "_version")) + writes


def _queried(name: str) -> Any:
    def handler(tracer: Tracer, x: Any, *args: Any, **kwargs: Any) -> Any:
        found = _input(tracer, x)
        return False if found is None else tracer.guarded_of(found.tensor, Query, name)

    return handler


for _name in ("is_pinned", "is_shared"):  # the program's own tensors are neither
    handles(getattr(torch.Tensor, _name))(_queried(_name))


@handles(torch.Tensor._is_view)
def _is_view(tracer: Tracer, x: Any) -> bool:
    found, handle = _input(tracer, x), tracer.handle_of(x)
    if found is not None:
        return bool(tracer.guarded_of(found.tensor, Query, "_is_view"))
    if handle._views or handle._is_new:
        fall_back("the program reads whether a tensor that it computes is a view")
    return False


@handles_property("_base")
def _get_base(tracer: Tracer, x: Any) -> None:
    if _is_view(tracer, x):
        fall_back("the program reads the base of a view")


@handles(torch.Tensor.is_set_to)
def _is_set_to(tracer: Tracer, x: Any, other: Any) -> bool:
    if tracer.handle_of(x) is not tracer.handle_of(other):
        fall_back("the program compares the memory of two tensors")
    return True


def _memory(name: str) -> Any:
    def handler(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
        fall_back(f"the program calls {name}() of a tensor, whose memory no trace has")

    return handler


for _name in ("data_ptr", "untyped_storage", "storage", "_typed_storage"):
    handles(*methods(_name))(_memory(_name))


# -- conjugation and negation that torch has put off ------------------------------------------------------------------
def _deferred(tracer: Tracer, x: Any) -> torch.Tensor:
    """Return a tensor on the meta device with the flags of `x`, and guard the flags of the inputs."""
    for lifted in tracer.inputs:
        tracer.guarded_of(lifted.tensor, Query, "is_neg")
        if lifted.tensor.is_complex():
            tracer.guarded_of(lifted.tensor, Query, "is_conj")
    return layout_of(tracer, x)


@handles(torch.is_conj, torch.Tensor.is_conj)
def _is_conj(tracer: Tracer, input: Any) -> bool:
    return input.is_complex() and _deferred(tracer, input).is_conj()


@handles(torch.is_neg, torch.Tensor.is_neg)
def _is_neg(tracer: Tracer, input: Any) -> bool:
    return _deferred(tracer, input).is_neg()


@handles(torch.resolve_conj, torch.Tensor.resolve_conj)
def _resolve_conj(tracer: Tracer, input: Any) -> Any:
    return tracer.call_symbol(ltorch.clone, (input,), {}) if _is_conj(tracer, input) else input


@handles(torch.resolve_neg, torch.Tensor.resolve_neg)
def _resolve_neg(tracer: Tracer, input: Any) -> Any:
    return tracer.call_symbol(ltorch.clone, (input,), {}) if _is_neg(tracer, input) else input


# -- comparisons ------------------------------------------------------------------------------------------------------
@handles(torch.is_same_size, torch.Tensor.is_same_size)
def _is_same_size(tracer: Tracer, input: Any, other: Any) -> bool:
    return bool(input.shape == other.shape)
