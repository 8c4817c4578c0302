# SPDX-License-Identifier: Apache-2.0
"""Torch functions that are not simply an operation: they read or set state, write in place, or ask for a value.

`SPECIAL` maps a function of torch to `handler(tracer, *args, **kwargs)`; others are traced or opaque (`dispatch.py`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back
from thunder.capture.dispatch import attention
from thunder.capture.dispatch.builtin_overrides import convert_natively
from thunder.capture.dispatch.data_dependent import HANDLERS, asks_for_value, positions, with_numbers, with_sizes
from thunder.capture.dispatch.opaque import call_opaque
from thunder.capture.dispatch.opaque_operations import DRAWS, RESULTS
from thunder.capture.dispatch.reshaping import (
    FORMS,
    as_strided,
    atleast_each,
    broadcast_each,
    detach_in_place,
    reshape_in_place,
    set_data,
)
from thunder.capture.dispatch.writing import assign
from thunder.capture.higher_order.branching import cond_traced
from thunder.capture.higher_order.gradient_hooks import register_tensor_hook
from thunder.capture.higher_order.inner_gradients import gradients
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.layout import check_view, meta_of
from thunder.capture.tensors.tracer import Tracer, asked_by_torch, line_of_user, needs_grad
from thunder.core.errors import TracingError
from thunder.core.proxies import TensorProxy
from thunder.core.symint.numbers import is_unbacked

__all__ = ["SPECIAL", "SPECIAL_PROPERTIES", "set_property"]

SPECIAL: dict[Any, Callable[..., Any]] = {}


def _special(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        for fn in functions:
            SPECIAL[fn] = handler
        return handler

    return register


def _in_torch(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a handler that is written with torch functions, which are traced whatever tensors they are given."""

    @functools.wraps(handler)
    def traced(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
        from thunder.capture.dispatch.dispatch import TracingMode

        with TracingMode():  # torch takes the mode off for the call that it hands over
            return handler(tracer, *args, **kwargs)

    return traced


def _methods(*names: str) -> list[Any]:
    return [getattr(torch.Tensor, name) for name in names if hasattr(torch.Tensor, name)]


# -- values that are not known while tracing --------------------------------------------------------------------------
_ASKING = {
    "numpy": ".numpy()",
    "__array__": "NumPy", "data_ptr": "its memory", "__dlpack__": "its memory",
}  # fmt: skip


def _asking(what: str) -> Callable[..., Any]:
    def handler(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
        raise asks_for_value(what)

    return handler


for _name, _what in _ASKING.items():
    for _fn in _methods(_name):
        SPECIAL[_fn] = _asking(_what)
for _name, _what in (("__bool__", "a branch on it"), ("is_nonzero", "a branch on it"), ("__int__", "int()"),
                     ("__float__", "float()"), ("__complex__", "complex()"),
                     ("__index__", "its use as an index or a count")):  # fmt: skip
    SPECIAL[getattr(torch.Tensor, _name)] = functools.partial(convert_natively, _what)
SPECIAL[torch.is_nonzero] = SPECIAL[torch.Tensor.is_nonzero]
SPECIAL.update(HANDLERS)
SPECIAL.update(attention.HANDLERS)


@_special(torch.Tensor.__contains__)
def _contains(tracer: Tracer, x: Any, element: Any) -> Any:
    found = tracer.call_symbol(ltorch.any, (tracer.call_symbol(ltorch.eq, (x, element), {}),), {})
    return convert_natively("in", tracer, found)


# -- gradients' state -------------------------------------------------------------------------------------------------
@_special(torch.Tensor.requires_grad_)
def _requires_grad_(tracer: Tracer, x: Any, requires_grad: bool = True) -> Any:
    tracer.leaves.switch(tracer, tracer.handle_of(x), requires_grad)
    return x


@_special(torch.Tensor.register_hook)
def _register_hook(tracer: Tracer, x: Any, hook: Callable[[Any], Any]) -> Any:
    return register_tensor_hook(tracer, x, hook)


@_special(torch.autograd.grad)
def _autograd_grad(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    return gradients(tracer, *args, **kwargs)


@_special(torch.Tensor.backward, torch.autograd.backward)
def _backward(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    fall_back("the program calls backward(), which adds to the .grad of tensors")


@_special(torch.Tensor.retain_grad)
def _retain_grad(tracer: Tracer, x: Any) -> None:
    if not needs_grad(x):
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    if not _is_leaf(tracer, x):
        fall_back("the program calls retain_grad(), so that the .grad of a tensor that it computes is filled in")


# -- functions as arguments -------------------------------------------------------------------------------------------
@_special(torch.ops.higher_order.cond)  # which `torch.cond` ends in, under whatever name it was called
@_in_torch
def _cond(tracer: Tracer, *args: Any) -> Any:
    return cond_traced(tracer, *args)


# -- layout, found when asked -----------------------------------------------------------------------------------------
def _layout(tracer: Tracer, x: Any) -> torch.Tensor:
    handle = tracer.handle_of(x)
    with tracer.recording():
        aliasing.read(handle)  # finds out whose memory it is
        return meta_of(handle)


@_special(torch.Tensor.stride)
def _stride(tracer: Tracer, x: Any, *args: Any, **kwargs: Any) -> Any:
    return _layout(tracer, x).stride(*args, **kwargs)


@_special(torch.Tensor.is_contiguous)
def _is_contiguous(tracer: Tracer, x: Any, *args: Any, **kwargs: Any) -> Any:
    return _layout(tracer, x).is_contiguous(*args, **kwargs)


@_special(torch.Tensor.storage_offset)
def _storage_offset(tracer: Tracer, x: Any) -> Any:
    return _layout(tracer, x).storage_offset()


_view_of_sizes = with_sizes(torch.Tensor.view)


@_special(torch.Tensor.view, torch.Tensor.view_as)
def _view(tracer: Tracer, x: Any, *shape: Any, **kwargs: Any) -> Any:
    shape = shape or tuple(kwargs.values())  # the one argument that it has
    if len(shape) > 1 or isinstance(shape[0], (tuple, list)):
        found = _view_of_sizes(tracer, x, *shape)
        if found is not NotImplemented:
            return found
    what = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    if isinstance(what, torch.Tensor):
        what = what.shape  # view_as
    if isinstance(what, torch.dtype) or (isinstance(what, (tuple, list)) and all(type(n) is int for n in what)):
        with tracer.recording():
            check_view(tracer.handle_of(x), torch.Tensor.view, what)
    return NotImplemented


@_special(torch.view_as_complex)
def _view_as_complex(tracer: Tracer, x: Any) -> Any:
    with tracer.recording():
        check_view(tracer.handle_of(x), torch.view_as_complex)
    return NotImplemented


SPECIAL[torch.as_strided] = SPECIAL[torch.Tensor.as_strided] = as_strided
SPECIAL[torch.broadcast_tensors] = broadcast_each
for _sym in (ltorch.atleast_1d, ltorch.atleast_2d, ltorch.atleast_3d):
    SPECIAL[getattr(torch, _sym.name)] = atleast_each(_sym)


# -- writing ----------------------------------------------------------------------------------------------------------
@_special(torch.Tensor.copy_)
@_in_torch
def _copy_(tracer: Tracer, target: Any, source: Any, non_blocking: bool = False) -> Any:
    if not isinstance(source, torch.Tensor):
        return _fill_(tracer, target, source)
    source = tracer.handle_of(source)
    value = source.to(device=target.device, dtype=target.dtype)
    if value is source and value.shape == target.shape:  # else what is written is spread, into memory of its own
        value = tracer.call_symbol(ltorch.clone, (source,), {})
    return assign(tracer, target, value, "copy_")


@_special(torch.Tensor.__setitem__)
def _setitem(tracer: Tracer, target: Any, key: Any, value: Any) -> None:
    handle = tracer.handle_of(target)
    key = with_numbers(tracer, key)
    if isinstance(value, torch.Tensor) and value.dim() > 0:
        found = positions(tracer, key)
        if found is not None and not _is_single(value):
            key = found
    if _is_whole(key) and not (isinstance(value, torch.Tensor) and value.dim() > handle.dim()):
        _copy_(tracer, handle, value)  # a number fills it
        return
    assign(tracer, handle, tracer.call_symbol(ltorch.setitem, (handle, key, value), {}), "__setitem__")


def _is_single(x: Any) -> bool:
    """Whether it is known to have one element."""
    return all(type(n) is int and n == 1 for n in x.shape)


def _is_whole(key: Any) -> bool:
    """Whether an index takes all of a tensor."""
    return key is Ellipsis or (isinstance(key, slice) and key == slice(None))


@_special(torch.Tensor.zero_, torch.zero_)
@_in_torch
def _zero_(tracer: Tracer, target: Any) -> Any:
    return assign(tracer, target, torch.zeros_like(target), "zero_")


@_special(torch.Tensor.fill_, torch.fill_)
@_in_torch
def _fill_(tracer: Tracer, target: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dim() > 0:
            raise RuntimeError(
                f"fill_ only supports 0-dimension value tensor but got tensor with {value.dim()} dimensions."
            )
        return _copy_(tracer, target, value)
    return assign(tracer, target, torch.full_like(target, value), "fill_")


@_special(torch.nn.functional.l1_loss)
def _l1_loss(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    """torch does not hand on its weights to those who override its functions: they stand where it was called."""
    code, frame = torch.nn.functional.l1_loss.__code__, sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    return tracer.call_symbol(ltorch.l1_loss, args, {"weight": frame and frame.f_locals.get("weight"), **kwargs})


def _memory_in_place(name: str) -> Callable[..., Any]:
    def handler(tracer: Tracer, target: Any, *args: Any, **kwargs: Any) -> Any:
        fall_back(f"{name} changes a tensor's own memory")

    return handler


for _name in ("set_", "share_memory_", "rename_"):
    if hasattr(torch.Tensor, _name):
        SPECIAL[getattr(torch.Tensor, _name)] = _memory_in_place(_name)
for _name in FORMS:
    SPECIAL[getattr(torch.Tensor, _name)] = reshape_in_place(_name)
SPECIAL[torch.as_strided_] = SPECIAL[torch.Tensor.as_strided_]
SPECIAL[torch.detach_] = SPECIAL[torch.Tensor.detach_] = detach_in_place


@_special(torch.Tensor.resize_)
def _resize_(tracer: Tracer, target: Any, *size: Any, memory_format: Any = None) -> Any:
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    return target if tuple(target.shape) == shape else _memory_in_place("resize_")(tracer, target)


@_special(torch.Tensor.resize_as_, torch.resize_as_)
def _resize_as_(tracer: Tracer, target: Any, other: Any, memory_format: Any = None) -> Any:
    return target if target.shape == other.shape else _memory_in_place("resize_as_")(tracer, target)


@_special(torch.is_same_size, torch.Tensor.is_same_size)
def _is_same_size(tracer: Tracer, input: Any, other: Any) -> bool:
    return bool(input.shape == other.shape)


@_special(torch.Tensor.is_pinned)
def _is_pinned(tracer: Tracer, x: Any, device: Any = None) -> bool:
    return False  # what the program makes is not, and of an input nothing is known that a guard would watch


@_special(torch.Tensor.to_dense)
def _to_dense(tracer: Tracer, x: Any, dtype: Any = None, *, masked_grad: Any = None) -> Any:
    return x if dtype is None else x.to(dtype)  # what is traced is dense


@_special(torch.Tensor.__deepcopy__)
def _deepcopy(tracer: Tracer, x: Any, memo: Any) -> Any:
    return x.clone()


@_special(torch.Tensor.cuda)
def _cuda(
    tracer: Tracer, x: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
) -> Any:
    where = device if device is not None else x.device if x.device.type == "cuda" else torch.cuda.current_device()
    where = f"cuda:{where}" if isinstance(where, int) else where
    return x.to(where, non_blocking=non_blocking, memory_format=memory_format)


@_special(torch.Tensor.__iter__)
def _iter(tracer: Tracer, x: Any) -> Any:
    if x.dim() == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(torch.Tensor.unbind(x, 0))


@_special(torch.Tensor.__reversed__)
def _reversed(tracer: Tracer, x: Any) -> Any:
    return x if x.dim() == 0 else tracer.handle_of(x).flip(0)


# -- tensors from Python data -----------------------------------------------------------------------------------------
@_special(torch.as_tensor)
def _as_tensor(tracer: Tracer, data: Any, dtype: Any = None, device: Any = None) -> Any:
    if isinstance(data, torch.Tensor):
        return data.to(device=device or data.device, dtype=dtype or data.dtype)
    return _tensor(tracer, data, dtype=dtype, device=device)


@_special(torch.asarray)
def _asarray(
    tracer: Tracer, obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None,
    requires_grad: bool | None = None,
) -> Any:  # fmt: skip
    if not isinstance(obj, torch.Tensor):
        return _tensor(tracer, obj, dtype=dtype, device=device)
    obj = tracer.handle_of(obj)
    out = obj.to(device=device or obj.device, dtype=dtype or obj.dtype, copy=bool(copy))
    if copy is False and out is not obj:
        raise ValueError("can't alias tensor with another dtype or device: torch.asarray(copy=False) asks for it")
    return out.detach() if requires_grad is False and out.requires_grad else out


@_special(torch.tensor)
def _tensor(
    tracer: Tracer, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **options: Any
) -> Any:
    if isinstance(data, torch.Tensor):
        data = tracer.handle_of(data)
        out = data.to(device=device or data.device, dtype=dtype or data.dtype)
        out = out.detach().clone() if out is data else out.detach()
    elif _has_tensor(data) or _has_unknown(data):
        out = _stacked(data)
        out = out.to(device=device or out.device, dtype=dtype or out.dtype).detach()
    else:
        if not _is_python_data(data):
            tracer.uncacheable = f"a tensor was made from a {type(data).__name__}, which thunder cannot guard"
        out = call_opaque(
            tracer, torch.tensor, (data,), {"dtype": dtype, "device": device or torch.get_default_device()}
        )
    return out


@_special(torch.Tensor.new)
@_in_torch
def _new(tracer: Tracer, x: Any, *args: Any, **kwargs: Any) -> Any:
    """A `torch.Size` and numbers say how large it is, a tuple or list what is in it."""
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
        dtype = functools.reduce(torch.promote_types, [_dtype_of(p) for p in parts])
        parts = [p.to(dtype) if isinstance(p, torch.Tensor) else _full(found[0].shape, p, dtype=dtype) for p in parts]
        return torch.stack(parts)
    return _full((), x, dtype=_dtype_of(x)) if is_unbacked(x) else x


def _full(shape: Any, x: Any, dtype: torch.dtype) -> torch.Tensor:
    from thunder.capture.dispatch.dispatch import TracingMode

    with TracingMode():
        return torch.full(shape, x, dtype=dtype)


def _dtype_of(x: Any) -> torch.dtype:
    """The dtype of the tensor that torch makes of a number; of a tensor its own."""
    if isinstance(x, torch.Tensor):
        return x.dtype
    kind = x.__class__
    return torch.bool if kind is bool else torch.int64 if kind is int else torch.get_default_dtype()


def _is_python_data(x: Any) -> bool:
    if isinstance(x, (tuple, list)):
        return all(_is_python_data(i) for i in x)
    return isinstance(x, (bool, int, float, complex))


# -- normalization with running statistics ----------------------------------------------------------------------------
def _running_statistics(
    tracer: Tracer, sym: Any, input: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    out, new_mean, new_var = tracer.call_symbol(sym, (input, weight, bias, mean, var, momentum, eps), {})
    with torch.no_grad():
        for target, value in ((mean, new_mean), (var, new_var)):
            if target is not None and value is not None:
                assign(tracer, target, value.detach(), "batch_norm")
    return out


@_special(torch.batch_norm)
def _batch_norm(
    tracer: Tracer, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    if training:
        return _running_statistics(
            tracer, ltorch.batch_norm_train, input, weight, bias, running_mean, running_var, momentum, eps
        )
    return tracer.call_symbol(
        ltorch.batch_norm, (input, running_mean, running_var, weight, bias, False, momentum, eps), {}
    )


@_special(torch.nn.functional.batch_norm)
def _f_batch_norm(
    tracer: Tracer, input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    return _batch_norm(tracer, input, weight, bias, running_mean, running_var, training, momentum, eps)


# -- initialization ---------------------------------------------------------------------------------------------------
def truncated_normal(tracer: Tracer, original: Any, target: Any, args: Any, kwargs: Any) -> Any:
    """`torch.nn.init.trunc_normal_`, by torch's function `original`."""
    with torch.no_grad():
        return assign(
            tracer, target, call_opaque(tracer, _truncated(original), (target, *args), kwargs), "trunc_normal_"
        )


@functools.cache
def _truncated(original: Any) -> Any:
    def trunc_normal(like: Any, *args: Any, **kwargs: Any) -> Any:
        return original(torch.empty_like(like), *args, **kwargs)

    RESULTS[trunc_normal] = lambda like, *args, **kwargs: TensorProxy(like=like, requires_grad=False)
    DRAWS[trunc_normal] = lambda *args, **kwargs: True
    return trunc_normal


# -- normalization of each instance -----------------------------------------------------------------------------------
@_special(torch.instance_norm)
def _instance_norm(
    tracer: Tracer, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, use_input_stats: bool,
    momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    return _f_instance_norm(tracer, input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


@_special(torch.nn.functional.instance_norm)
def _f_instance_norm(
    tracer: Tracer, input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if use_input_stats and running_mean is not None:
        return _running_statistics(
            tracer, ltorch.instance_norm_train, input, weight, bias, running_mean, running_var, momentum, eps
        )
    call = (input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    return tracer.call_symbol(ltorch.instance_norm, call, {})


# -- embeddings that shorten the rows they look up --------------------------------------------------------------------
@_special(torch.nn.functional.embedding)
@_in_torch
def _embedding(
    tracer: Tracer, input: Any, weight: Any, padding_idx: Any = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Any:  # fmt: skip
    if max_norm is not None:
        _shorten(tracer, weight, input, max_norm, norm_type)
    if sparse and torch.is_grad_enabled() and needs_grad(weight):
        fall_back("the program calls embedding with sparse=True, whose gradient is sparse")
    return tracer.call_symbol(ltorch.embedding, (input, weight, padding_idx, None, 2.0, scale_grad_by_freq), {})


def _shorten(tracer: Tracer, weight: Any, indices: Any, max_norm: float, norm_type: float) -> None:
    with torch.no_grad():
        used = torch.zeros(weight.shape[0], dtype=torch.bool, device=weight.device)
        used = used.index_fill(0, indices.reshape(-1), True)
        norms = torch.linalg.vector_norm(weight, norm_type, dim=1)
        scale = torch.where(used & (norms > max_norm), max_norm / (norms + 1e-7), 1.0)
        assign(tracer, weight, weight * scale[:, None], "embedding")


@_special(torch.embedding_renorm_)
@_in_torch
def _embedding_renorm_(tracer: Tracer, weight: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    _shorten(tracer, weight, indices, max_norm, norm_type)
    return weight


# -- properties -------------------------------------------------------------------------------------------------------
def _get_data(tracer: Tracer, x: Any) -> Any:
    return tracer.handle_of(x).detach()


def _get_grad_fn(tracer: Tracer, x: Any) -> Any:
    handle = tracer.handle_of(x)
    if _is_leaf(tracer, handle):
        return None
    _leave_hooks_to_python()
    if asked_by_torch():
        return None
    fall_back("the program asks for the grad_fn of a tensor that it computes, a node of torch's graph")


def _is_leaf(tracer: Tracer, x: Any) -> bool:
    handle = tracer.handle_of(x)
    if not handle._needs_grad or handle in tracer.leaves:
        return True
    return any(lifted.handle is handle and tracer.is_leaf(lifted.tensor) for lifted in tracer.inputs)


def _leave_hooks_to_python() -> None:
    """Where it is a module with a legacy hook (`register_backward_hook`) that asks: such a hook is given a node."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALLS_HOOKS:
            name = type(frame.f_locals.get("self")).__name__
            fall_back(f"the program calls a {name} with a legacy backward hook, which sees torch's own graph")
        frame = frame.f_back


def _code_that_calls_hooks() -> Any:
    return next(
        (c for c in torch.nn.Module._call_impl.__code__.co_consts if getattr(c, "co_name", "") == "inner"),
        torch.nn.Module._call_impl.__code__,
    )


_CALLS_HOOKS = _code_that_calls_hooks()


def _get_grad(tracer: Tracer, x: Any) -> Any:
    if _is_converted_to_itself(tracer, x):
        return None
    if any(lifted.handle is tracer.handle_of(x) for lifted in tracer.inputs):
        fall_back("the program reads the .grad of a tensor, which no guard can watch")


def _is_converted_to_itself(tracer: Tracer, x: Any) -> bool:
    """Whether `module.to(…)` asks, for a parameter that is so already: then it changes nothing."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not torch.nn.Module._apply.__code__:
        frame = frame.f_back if line_of_user(frame.f_code.co_filename, 0) is None else None
    return frame is not None and frame.f_locals.get("param_applied") is tracer.handle_of(x)


SPECIAL_PROPERTIES: dict[str, Callable[[Tracer, Any], Any]] = {
    "data": _get_data, "grad": _get_grad, "grad_fn": _get_grad_fn, "is_leaf": _is_leaf,
}  # fmt: skip


def set_property(tracer: Tracer, name: str, target: Any, value: Any) -> None:
    """What `target.name = value` does."""
    if name == "data":
        set_data(tracer, tracer.handle_of(target), tracer.handle_of(value))
        return
    if name == "requires_grad":
        _requires_grad_(tracer, target, value)
        return
    if name == "grad":
        fall_back("the program sets the .grad of a tensor")
    raise TracingError(f"setting the attribute {name} of a tensor inside a traced function is not supported")
