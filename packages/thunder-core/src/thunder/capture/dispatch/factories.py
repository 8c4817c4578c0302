# SPDX-License-Identifier: Apache-2.0
"""Handlers of functions that create a tensor from Python data or from another tensor, e.g. `torch.tensor`."""

from __future__ import annotations

import functools
from typing import Any

import torch

from thunder.capture.base.tracing_mode import TracingMode
from thunder.capture.dispatch.numpy_calls import constant_array, is_array, tensor_of_array
from thunder.capture.dispatch.opaque import call_opaque
from thunder.capture.dispatch.registry import handles
from thunder.capture.tensors.arrays import is_array_handle
from thunder.capture.tensors.tracer import Tracer
from thunder.core.symint.numbers import is_unbacked

__all__: list[str] = []


@handles(torch.as_tensor)
def _as_tensor(tracer: Tracer, data: Any, dtype: Any = None, device: Any = None) -> Any:
    if is_array(data):
        data = tensor_of_array(tracer, data)
        device = device or torch.get_default_device()
    if isinstance(data, torch.Tensor):
        return data.to(device=device or data.device, dtype=dtype or data.dtype)
    return _tensor(tracer, data, dtype=dtype, device=device)


@handles(torch.asarray)
def _asarray(
    tracer: Tracer, obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None,
    requires_grad: bool | None = None,
) -> Any:  # fmt: skip
    if is_array(obj):
        obj = tensor_of_array(tracer, obj)
        device = device or torch.get_default_device()
    if not isinstance(obj, torch.Tensor):
        return _tensor(tracer, obj, dtype=dtype, device=device)
    obj = tracer.handle_of(obj)
    out = obj.to(device=device or obj.device, dtype=dtype or obj.dtype, copy=bool(copy))
    if copy is False and out is not obj:
        raise ValueError("torch.asarray(copy=False) cannot alias a tensor with another dtype or device")
    return out.detach() if requires_grad is False and out.requires_grad else out


@handles(torch.tensor)
def _tensor(
    tracer: Tracer, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **options: Any
) -> Any:
    if type(data) in (bool, int, float) and not requires_grad and not options:
        return NotImplemented  # the operation of `thunder.torch`
    if is_array(data):
        data = tensor_of_array(tracer, data) if is_array_handle(data) else constant_array(tracer, data)
        device = device or torch.get_default_device()
    if isinstance(data, torch.Tensor):
        data = tracer.handle_of(data)
        out = data.to(device=device or data.device, dtype=dtype or data.dtype)
        out = out.detach().clone() if out is data else out.detach()
    elif _has_tensor(data) or _has_unknown(data):
        out = _stacked(data)
        out = out.to(device=device or out.device, dtype=dtype or out.dtype).detach()
    else:
        if not _is_python_data(data):
            tracer.uncacheable = f"a tensor was created from a {type(data).__name__}, which thunder cannot guard"
        out = call_opaque(
            tracer, torch.tensor, (data,), {"dtype": dtype, "device": device or torch.get_default_device()}
        )
    return out


@handles(torch.Tensor.new, traced=True)
def _new(tracer: Tracer, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Return an empty tensor if `args` are sizes, i.e. a `torch.Size` or numbers. A tuple or list would be data."""
    sizes = args[0] if len(args) == 1 and type(args[0]) is torch.Size else args
    if kwargs or not all(isinstance(n, int) for n in sizes):
        return NotImplemented
    return x.new_empty(tuple(sizes) or 0)


def _has_unknown(x: Any) -> bool:
    return any(map(_has_unknown, x)) if isinstance(x, (tuple, list)) else is_unbacked(x)


def _has_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor) or (isinstance(x, (tuple, list)) and any(_has_tensor(i) for i in x))


def _stacked(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        parts = [_stacked(i) for i in x]
        found = [p for p in parts if isinstance(p, torch.Tensor)]
        if not found:
            return x
        with TracingMode():
            parts = [torch.tensor(p) if isinstance(p, (tuple, list)) else p for p in parts]
        dtype = functools.reduce(torch.promote_types, [_dtype_of(p) for p in parts])
        parts = [p.to(dtype) if isinstance(p, torch.Tensor) else _full(found[0].shape, p, dtype=dtype) for p in parts]
        return torch.stack(parts)
    return _full((), x, dtype=_dtype_of(x)) if is_unbacked(x) else x


def _full(shape: Any, x: Any, dtype: torch.dtype) -> torch.Tensor:
    with TracingMode():
        return torch.full(shape, x, dtype=dtype)


def _dtype_of(x: Any) -> torch.dtype:
    """Return the dtype of a tensor, or the dtype of the tensor that torch creates from a number."""
    if isinstance(x, torch.Tensor):
        return x.dtype
    kind = x.__class__
    return torch.bool if kind is bool else torch.int64 if kind is int else torch.get_default_dtype()


def _is_python_data(x: Any) -> bool:
    if isinstance(x, (tuple, list)):
        return all(_is_python_data(i) for i in x)
    return isinstance(x, (bool, int, float, complex))
