# SPDX-License-Identifier: Apache-2.0
"""In-place operations that change what a tensor looks like (`squeeze_`, `t_`, `as_strided_`) or which it is (`detach_`,
`.data = `), and `as_strided`.

The handle becomes the view that the form without the underscore gives: it stays the same Python object and gets the
view's metadata and place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

import thunder.torch as ltorch
from thunder import clang
from thunder.capture.base.fallback import fall_back
from thunder.capture.dispatch.data_dependent import with_sizes
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.layout import meta_of
from thunder.capture.tensors.tracer import Tracer
from thunder.core.symint.numbers import SymbolicNumber
from thunder.torch.private import DisableTorchFunction, swap_contents

__all__ = [
    "FORMS",
    "as_strided",
    "atleast_each",
    "broadcast_each",
    "detach_in_place",
    "reshape_in_place",
    "set_data",
]

#: Methods that give a view of the same memory, and change the tensor itself with an underscore.
FORMS = ("transpose_", "t_", "squeeze_", "unsqueeze_", "as_strided_", "swapaxes_", "swapdims_")


def reshape_in_place(name: str) -> Callable[..., Any]:
    """What `tensor.name(…)` does while a program is traced."""
    view = getattr(torch.Tensor, name[:-1])

    def handler(tracer: Tracer, target: Any, *args: Any, **kwargs: Any) -> Any:
        from thunder.capture.dispatch.dispatch import call_torch_function

        handle = tracer.handle_of(target)
        if any(lifted.handle is handle for lifted in tracer.inputs):
            fall_back(f"{name} changes the shape of a tensor that comes from outside of the program")
        before = aliasing.twin(handle)
        after = call_torch_function(view, (before, *args), kwargs)
        if after is not before:
            _become(handle, before, after)
        return target

    return handler


def _become(handle: Handle, before: Handle, after: Handle) -> None:
    """Makes `handle` what `after` is; what was seen through it is seen through `before` from now on."""
    for other in list(handle._tracer.handles):
        if other._parent is handle:
            other._parent = before
    swap_contents(handle, after)
    for name in ("_value", "_storage", "_views", "_parent", "_version_seen", "_needs_grad"):
        setattr(handle, name, getattr(after, name))


def detach_in_place(tracer: Tracer, target: Any) -> Any:
    """What `tensor.detach_()` does while a program is traced."""
    handle = tracer.handle_of(target)
    since = itertools.takewhile(lambda view: view.sym is not ltorch.detach, reversed(handle._views))
    if any(view.certain for view in since):
        raise RuntimeError("Can't detach views in-place. Use detach() instead.")
    if handle._needs_grad:
        _set_place(tracer, handle, handle, "detach_ of a tensor that the program does not make")
    return target


def set_data(tracer: Tracer, handle: Handle, value: Handle) -> None:
    """What `tensor.data = value` does while a program is traced: the tensor has the memory of `value` from then on."""
    for each in (handle, value):
        with tracer.recording():
            aliasing.read(each)
    if value is handle or (value._storage is handle._storage and value._value is handle._value):
        return
    if handle._needs_grad:
        fall_back("the program gives a tensor that requires grad other memory (.data = )")
    _set_place(tracer, handle, value, "the program gives a tensor from outside of it other memory (.data = )")


def _set_place(tracer: Tracer, handle: Handle, value: Handle, refusal: str) -> None:
    """Makes `handle` a detached view of `value`'s memory."""
    if any(lifted.handle is handle for lifted in tracer.inputs):
        fall_back(refusal)
    before = aliasing.twin(handle)
    _become(handle, before, tracer.call_symbol(ltorch.detach, (before if value is handle else value,), {}))


# -- views of several tensors at once ---------------------------------------------------------------------------------
def broadcast_each(tracer: Tracer, *tensors: Any) -> Any:
    """`torch.broadcast_tensors`: each is expanded by itself, so that writes reach it."""
    if not all(isinstance(x, torch.Tensor) for x in tensors):
        return NotImplemented
    shape = clang.base.compute_broadcast_shape(*[tracer.handle_of(x)._value.shape for x in tensors])
    handles = [tracer.handle_of(x) for x in tensors]
    return tuple([x if x._value.shape == shape else tracer.call_symbol(ltorch.expand, (x, shape), {}) for x in handles])


def atleast_each(sym: Any) -> Callable[..., Any]:
    """`torch.atleast_1d` and the like, given several tensors: likewise."""

    def handler(tracer: Tracer, *tensors: Any) -> Any:
        several = tensors[0] if len(tensors) == 1 else tensors
        if not isinstance(several, (tuple, list)):
            return NotImplemented
        return tuple([tracer.call_symbol(sym, (x,), {}) for x in several])

    return handler


# -- strides of one's own ---------------------------------------------------------------------------------------------
_strided_by_sizes = with_sizes(torch.as_strided)


def as_strided(tracer: Tracer, x: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """Of a tensor that does not lie in memory in order it is the same of one that does, of the same memory."""
    handle = tracer.handle_of(x)
    found = _strided_by_sizes(tracer, x, size, stride, storage_offset)
    if found is not NotImplemented:
        return found
    if any(isinstance(n, SymbolicNumber) for n in (*handle._value.shape, *size, *stride)):
        return NotImplemented
    reached = sum((n - 1) * s for n, s in zip(size, stride))
    start, found = _in_order(tracer, handle)
    offset = start if storage_offset is None else storage_offset
    if found is None or not start <= offset <= offset + reached < start + math.prod(found.shape):
        if not handle._views or handle._needs_grad or handle._parent is not None:
            return NotImplemented
        whole = Handle.make(tracer, handle._storage.value, requires_grad=False, storage=handle._storage)
        start, found = _in_order(tracer, whole)
        if found is None or start:
            return NotImplemented
    if found is handle and not start:
        return NotImplemented
    if offset > start:
        flat = tracer.call_symbol(ltorch.reshape, (found, (-1,)), {})
        found = tracer.call_symbol(ltorch.narrow, (flat, 0, offset - start, flat.shape[0] - offset + start), {})
    return tracer.call_symbol(ltorch.as_strided, (found, tuple(size), tuple(stride)), {})


def _in_order(tracer: Tracer, handle: Handle) -> tuple[int, Any]:
    """Where a tensor starts in memory, and it with its dimensions in the order of that; None where that has gaps."""
    with tracer.recording():
        aliasing.read(handle)  # finds out whose memory it is
        laid_out = meta_of(handle)
    with DisableTorchFunction():
        start = laid_out.storage_offset()
        order = sorted(range(laid_out.dim()), key=lambda i: (-laid_out.stride(i), -laid_out.shape[i]))
        if not laid_out.permute(order).is_contiguous():
            return start, None
    if order == [*range(len(order))] and not start:
        return start, handle
    whole = tracer.call_symbol(ltorch.permute, (handle, tuple(order)), {})
    return start, tracer.call_symbol(ltorch.contiguous, (whole,), {})  # which it is in eager, whatever runs it
