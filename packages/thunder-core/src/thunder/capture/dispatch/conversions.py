# SPDX-License-Identifier: Apache-2.0
"""Handlers of conversions to another device, dtype or layout that do not correspond to one operation."""

from __future__ import annotations

from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.memory_sources import SuggestedFormat
from thunder.capture.dispatch.registry import handles
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.layout import meta_of
from thunder.capture.tensors.tracer import Tracer
from thunder.core import devices, dtypes
from thunder.runtime.torch_private import suggest_memory_format

__all__: list[str] = []

# Methods that cast or move as `to` does.
_NAMED = {
    torch.Tensor.cpu: "cpu", torch.Tensor.float: torch.float32, torch.Tensor.double: torch.float64,
    torch.Tensor.half: torch.float16, torch.Tensor.bfloat16: torch.bfloat16, torch.Tensor.int: torch.int32,
    torch.Tensor.long: torch.int64, torch.Tensor.short: torch.int16, torch.Tensor.char: torch.int8,
    torch.Tensor.byte: torch.uint8, torch.Tensor.bool: torch.bool, torch.Tensor.cfloat: torch.complex64,
    torch.Tensor.cdouble: torch.complex128, torch.Tensor.chalf: torch.complex32,
}  # fmt: skip


@handles(torch.Tensor.to)
def _to(tracer: Tracer, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the tensor itself if nothing changes, also if a memory format is given."""
    if kwargs.get("memory_format") in (None, torch.preserve_format):
        return NotImplemented
    (_, *wanted), options = ltorch.to.bind((x, *args), kwargs)
    if options.get("copy") or any(not _has(x, each) for each in wanted):
        return NotImplemented
    # torch compares with the format that it would suggest for the strides, not with `is_contiguous`.
    wanted_format = kwargs["memory_format"]
    with tracer.recording():
        suggested = _suggested_format(tracer, tracer.handle_of(x), wanted_format)
    if suggested is None:
        return x.contiguous(memory_format=wanted_format)  # decides at the first write or read of strides, if ever
    return x if suggested is wanted_format else NotImplemented


def _suggested_format(tracer: Tracer, handle: Handle, wanted: torch.memory_format) -> torch.memory_format | None:
    """Return the memory format that torch suggests for the strides of a tensor, with which it compares `wanted`.

    None means that it is not known, and that it is `wanted` exactly if the tensor is contiguous in this format. The
    prologue guards the format of an input. Otherwise symbolic sizes, on which strides depend, become constants.
    """
    aliasing.read(handle)  # finds the storage of the handle
    shape = handle._value.shape
    if not handle._views and any(type(n) is not int for n in shape):
        owner = tracer.owner_of(handle)
        if owner is not None:
            tracer.guarded_of(owner.tensor, SuggestedFormat)
            return suggest_memory_format(tracer.meta_tensors[owner.proxy.name])
        computed = not handle._storage.written and all(type(n) is not int or n > 1 for n in shape)
        if computed and wanted is not torch.contiguous_format:
            return None  # a value without gaps, and symbolic sizes are greater than one
    return suggest_memory_format(meta_of(handle))


def _has(x: Any, wanted: Any) -> bool:
    """Check whether a tensor has a dtype, or is on a device."""
    if isinstance(wanted, (torch.dtype, dtypes.dtype, type)):
        return dtypes.to_dtype(wanted) is dtypes.to_dtype(x.dtype)
    return devices.to_device(wanted) is devices.to_device(x.device)


def _named(wanted: Any) -> Any:
    def call(tracer: Tracer, x: Any, *, memory_format: Any = None) -> Any:
        if memory_format in (None, torch.preserve_format):
            return NotImplemented
        return x.to(wanted, memory_format=memory_format)

    return call


for _method, _wanted in _NAMED.items():
    handles(_method)(_named(_wanted))


@handles(torch.Tensor.to_dense)
def _to_dense(tracer: Tracer, x: Any, dtype: Any = None, *, masked_grad: Any = None) -> Any:
    return x if dtype is None else x.to(dtype)  # traced tensors are always dense


@handles(torch.Tensor.__deepcopy__)
def _deepcopy(tracer: Tracer, x: Any, memo: Any) -> Any:
    return x.clone()


@handles(torch.Tensor.cuda)
def _cuda(
    tracer: Tracer, x: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
) -> Any:
    where = device if device is not None else x.device if x.device.type == "cuda" else torch.cuda.current_device()
    where = f"cuda:{where}" if isinstance(where, int) else where
    return x.to(where, non_blocking=non_blocking, memory_format=memory_format)
