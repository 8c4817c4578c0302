# SPDX-License-Identifier: Apache-2.0
"""Handlers of views, and of in-place operations that change a tensor's shape (`squeeze_`) or memory (`.data = `).

An in-place operation such as `x.squeeze_()` first makes the view `x.squeeze()`. The handle of `x` stays the same Python
object, and takes over the metadata and the storage of the view.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

import thunder.torch as ltorch
from thunder import clang
from thunder.capture.base.fallback import RunsEagerly, fall_back
from thunder.capture.base.memory_sources import HasOffset
from thunder.capture.dispatch.data_dependent import with_sizes
from thunder.capture.dispatch.opaque import call_opaque
from thunder.capture.dispatch.registry import handles, handles_property, methods
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle, needs_grad
from thunder.capture.tensors.layout import check_view, meta_of
from thunder.capture.tensors.tracer import Tracer
from thunder.core.symint.numbers import SymbolicNumber
from thunder.torch.private import DisableTorchFunction, swap_contents

__all__ = ["VIEWS_IN_PLACE"]

#: In-place methods whose functional form (the name without the underscore) returns a view.
VIEWS_IN_PLACE = ("transpose_", "t_", "squeeze_", "unsqueeze_", "as_strided_", "swapaxes_", "swapdims_")


# -- in place ---------------------------------------------------------------------------------------------------------
def _reshape_in_place(name: str) -> Callable[..., Any]:
    view = getattr(torch.Tensor, name[:-1])

    def handler(tracer: Tracer, target: Any, *args: Any, **kwargs: Any) -> Any:
        handle = tracer.handle_of(target)
        if tracer.input_with(handle) is not None:
            fall_back(f"{name} changes the shape of a tensor that exists outside of the program")
        last = handle._views[-1].sym if handle._parent is not None else None
        if last is not None and last.facts.returns_input:
            fall_back(f"{name} changes the shape of a result of {last.name}, which may be the tensor that it got")
        before = aliasing.twin(handle)
        after = tracer.dispatch(view, (before, *args), kwargs)
        if after is not before:
            _become(handle, before, after)
        return target

    return handler


for _name in VIEWS_IN_PLACE:
    handles(getattr(torch.Tensor, _name))(_reshape_in_place(_name))
handles(torch.as_strided_)(_reshape_in_place("as_strided_"))


def _become(handle: Handle, before: Handle, after: Handle) -> None:
    """Give `handle` the contents of `after`. Views of `handle` become views of `before`, which has its old contents."""
    for other in handle.possible_views:
        other.set_parent(before)
    swap_contents(handle, after)
    for name in ("_value", "_storage", "_views", "_version_seen", "_needs_grad"):
        setattr(handle, name, getattr(after, name))
    handle.set_parent(after._parent)


@handles(torch.detach_, torch.Tensor.detach_)
def _detach_in_place(tracer: Tracer, target: Any) -> Any:
    handle = tracer.handle_of(target)
    since = itertools.takewhile(lambda view: view.sym is not ltorch.detach, reversed(handle._views))
    if any(view.certain for view in since):
        raise RuntimeError("Can't detach views in-place. Use detach() instead.")
    if handle._needs_grad:
        _set_place(tracer, handle, handle, "the program calls detach_ on a tensor that it did not create")
    return target


@handles_property("data")
def _get_data(tracer: Tracer, x: Any) -> Any:
    return tracer.handle_of(x).detach()


@handles_property("data", assigned=True)
def _set_data(tracer: Tracer, x: Any, other: Any) -> None:
    """Handle `x.data = other`: `x` becomes a detached view of the memory of `other`."""
    handle, value = tracer.handle_of(x), tracer.handle_of(other)
    for each in (handle, value):
        with tracer.recording():
            aliasing.read(each)
    if value is handle or _is_detached(value, handle):
        return
    if handle._needs_grad and tracer.input_with(handle) is None:
        fall_back("the program assigns to .data of a tensor that requires grad")
    _set_place(tracer, handle, value, "the program assigns to .data of a tensor that it did not create")


def _is_detached(value: Handle, handle: Handle) -> bool:
    """Check whether `value` is `handle.data`, or has its value and memory in another way."""
    if value._storage is not handle._storage:
        return False
    added = value._views[len(handle._views) :]
    of_same = all(a is b for a, b in zip(value._views, handle._views)) and len(value._views) >= len(handle._views)
    return value._value is handle._value or (of_same and all(view.sym is ltorch.detach for view in added))


def _set_place(tracer: Tracer, handle: Handle, value: Handle, refusal: str) -> None:
    """Make `handle` a detached view of `value`'s memory."""
    if tracer.input_with(handle) is not None:
        raise RunsEagerly(refusal)  # maybe only this call does it, to initialize a parameter
    before = aliasing.twin(handle)
    _become(handle, before, tracer.call_symbol(ltorch.detach, (before if value is handle else value,), {}))


def _memory_in_place(name: str) -> Callable[..., Any]:
    def handler(tracer: Tracer, target: Any, *args: Any, **kwargs: Any) -> Any:
        fall_back(f"{name} changes the memory of a tensor")

    return handler


for _name in ("set_", "share_memory_", "rename_"):
    handles(*methods(_name))(_memory_in_place(_name))


@handles(torch.Tensor.resize_)
def _resize_(tracer: Tracer, target: Any, *size: Any, memory_format: Any = None) -> Any:
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    return target if tuple(target.shape) == shape else _memory_in_place("resize_")(tracer, target)


@handles(torch.Tensor.resize_as_, torch.resize_as_)
def _resize_as_(tracer: Tracer, target: Any, other: Any, memory_format: Any = None) -> Any:
    return target if target.shape == other.shape else _memory_in_place("resize_as_")(tracer, target)


# -- views that are invalid for some strides --------------------------------------------------------------------------
_view_of_sizes = with_sizes(torch.Tensor.view)


@handles(torch.Tensor.view, torch.Tensor.view_as)
def _view(tracer: Tracer, x: Any, *shape: Any, **kwargs: Any) -> Any:
    shape = shape or tuple(kwargs.values())  # there is one argument
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


@handles(torch.view_as_complex)
def _view_as_complex(tracer: Tracer, x: Any) -> Any:
    with tracer.recording():
        check_view(tracer.handle_of(x), torch.view_as_complex)
    return NotImplemented


# -- views of several tensors -----------------------------------------------------------------------------------------
@handles(torch.broadcast_tensors)
def _broadcast_each(tracer: Tracer, *tensors: Any) -> Any:
    """Expand each tensor separately, so that a write to a result also changes the tensor."""
    if not all(isinstance(x, torch.Tensor) for x in tensors):
        return NotImplemented
    shape = clang.base.compute_broadcast_shape(*[tracer.handle_of(x)._value.shape for x in tensors])
    handles = [tracer.handle_of(x) for x in tensors]
    return tuple([x if x._value.shape == shape else tracer.call_symbol(ltorch.expand, (x, shape), {}) for x in handles])


@handles(torch.meshgrid)
def _meshgrid(tracer: Tracer, *tensors: Any, indexing: str | None = None) -> Any:
    """Expand each axis separately, so that a write to an axis also changes its grid."""
    axes = list(tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors)
    valid = all(isinstance(x, torch.Tensor) and x.dim() < 2 for x in axes) and indexing in ("ij", "xy")
    if not axes or not valid or len({(x.dtype, x.device) for x in axes}) > 1:
        return NotImplemented  # torch's warning or error
    order = [*range(len(axes))]
    if indexing == "xy":
        order[:2] = order[:2][::-1]
    shape = tuple([axes[i].numel() for i in order])
    return tuple([x.view(*[1] * i, -1, *[1] * (len(axes) - i - 1)).expand(shape) for x, i in zip(axes, order)])


def _atleast_each(sym: Any) -> Callable[..., Any]:
    def handler(tracer: Tracer, *tensors: Any) -> Any:
        several = tensors[0] if len(tensors) == 1 else tensors
        if not isinstance(several, (tuple, list)):
            return NotImplemented
        return tuple([tracer.call_symbol(sym, (x,), {}) for x in several])

    return handler


for _sym in (ltorch.atleast_1d, ltorch.atleast_2d, ltorch.atleast_3d):
    handles(getattr(torch, _sym.name))(_atleast_each(_sym))


# -- as_strided -------------------------------------------------------------------------------------------------------
_strided_by_sizes = with_sizes(torch.as_strided)


@handles(torch.as_strided, torch.Tensor.as_strided)
def _as_strided(tracer: Tracer, x: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """Rewrite `as_strided` of a non-contiguous tensor to `as_strided` of a contiguous tensor with the same memory."""
    handle = tracer.handle_of(x)
    found = _strided_by_sizes(tracer, x, size, stride, storage_offset)
    if found is not NotImplemented:
        return found
    lifted = tracer.owner_of(handle)
    symbolic = any(isinstance(n, SymbolicNumber) for n in (*handle._value.shape, *size, *stride))
    whole_input = symbolic and lifted is not None and not handle._views
    if whole_input and tracer.meta_tensors[lifted.proxy.name].is_contiguous():  # type: ignore[union-attr]
        return NotImplemented  # the prologue checks the layout
    if storage_offset is not None and lifted is not None and tracer.guarded_of(lifted.tensor, HasOffset):
        fall_back("the program calls as_strided on a view that comes from outside of it")
    reached = sum((n - 1) * s for n, s in zip(size, stride))
    start, found = _in_order(tracer, handle)
    offset = start if storage_offset is None else storage_offset
    if found is None or not start <= offset <= offset + reached < start + math.prod(found.shape):
        if not handle._views or handle._needs_grad or handle._parent is not None:
            return _strided_by_torch(tracer)
        whole = Handle.make(tracer, handle._storage.value, requires_grad=False, storage=handle._storage)
        whole = whole.detach() if handle._storage.needs_grad else whole
        start, found = _in_order(tracer, whole)
        if found is None or start:
            return _strided_by_torch(tracer)
    if found is handle and not start:
        return NotImplemented
    if offset > start:
        flat = tracer.call_symbol(ltorch.reshape, (found, (-1,)), {})
        found = tracer.call_symbol(ltorch.narrow, (flat, 0, offset - start, flat.shape[0] - offset + start), {})
    return tracer.call_symbol(ltorch.as_strided, (found, tuple(size), tuple(stride)), {})


def _strided_by_torch(tracer: Tracer) -> Any:
    """Fall back, as strides of the tensor's memory are not those of a contiguous one; a subtrace cannot."""
    if tracer.parts:
        return NotImplemented
    return fall_back("the program calls as_strided on memory with gaps, or out of its bounds")


def _in_order(tracer: Tracer, handle: Handle) -> tuple[int, Any]:
    """Return the storage offset of a tensor, and the tensor with dimensions permuted into the order of its memory.

    The second item is None if the tensor's memory has gaps.
    """
    with tracer.recording():
        aliasing.read(handle)  # finds the storage of the handle
        laid_out = meta_of(handle)
    with DisableTorchFunction():
        start = laid_out.storage_offset()
        order = sorted(range(laid_out.dim()), key=lambda i: (-laid_out.stride(i), -laid_out.shape[i]))
        if not laid_out.permute(order).is_contiguous():
            return start, None
    if order == [*range(len(order))] and not start:
        return start, handle
    whole = tracer.call_symbol(ltorch.permute, (handle, tuple(order)), {})
    return start, tracer.call_symbol(ltorch.contiguous, (whole,), {})  # no copy in eager mode


# -- contiguous -------------------------------------------------------------------------------------------------------
@handles(torch.Tensor.contiguous)
def _contiguous(tracer: Tracer, x: Any, memory_format: Any = torch.contiguous_format) -> Any:
    """Return an input that is contiguous, as torch does: the program may compare or change the tensor object."""
    handle = tracer.handle_of(x)
    lifted = tracer.input_with(handle)
    if lifted is not None and not handle._views and memory_format is not torch.preserve_format:
        with DisableTorchFunction():
            if tracer.meta_tensors[lifted.proxy.name].is_contiguous(memory_format=memory_format):
                return x
    return NotImplemented


@handles(torch.as_strided_scatter, torch.Tensor.as_strided_scatter)
def _as_strided_scatter(tracer: Tracer, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Leave the gradient to torch: its formula for the input is not that of the operation."""
    if not torch.is_grad_enabled() or not needs_grad(tracer.handle_of(input)):
        return NotImplemented
    return call_opaque(tracer, torch.as_strided_scatter, (input, *args), kwargs)
