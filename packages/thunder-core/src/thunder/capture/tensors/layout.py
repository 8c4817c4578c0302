# SPDX-License-Identifier: Apache-2.0
"""Strides of proxies, computed on demand.

Proxies have no strides. If the program observes strides (`stride()`, `is_contiguous()`, `view`, or a write through
`reshape`), torch runs the operations that led to the value on the meta device, which computes torch's strides. If the
layout of an operation's results depends on the kernel, torch runs the operation on fake tensors of its device instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.tensors.handle import Handle, HandleOwner, Lifted, View
from thunder.core import prims
from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.strides import Strides, dense_strides, order_of
from thunder.core.symbol import BoundSymbol, OpTags, map_proxies, proxies_in
from thunder.core.symint.numbers import has_unbacked, specialized
from thunder.executors import meta_tensors
from thunder.executors.meta_tensors import asks_for_layout, contiguous, torch_function
from thunder.executors.torchex.foreach import is_elementwise_foreach
from thunder.executors.torchex.in_place import keeps_layout
from thunder.executors.torchex.part_updates import keeps_strides
from thunder.torch.private import DisableTorchFunction

__all__ = [
    "changes_strides", "check_view", "function_of", "has_known_layout", "has_order_of", "has_shared_elements",
    "in_order_of", "is_view", "memory_of_write", "memory_order", "meta_of", "meta_tensor", "origin_of", "overlap",
    "strides_of_inputs",
]  # fmt: skip


class _UnknownSizes(Exception):
    """Signals that a layout depends on tensors with symbolic sizes."""


def meta_tensor(
    tracer: HandleOwner, value: TensorProxy, *, specializing: bool = True, numbers: bool = True
) -> torch.Tensor:
    """Return a tensor on the meta device with the strides that torch gives `value`.

    The strides are valid only for the current sizes. Symbolic sizes therefore become constants, or `_UnknownSizes` is
    raised if not `specializing`. The same is true of other symbolic arguments of operations, unless `numbers` is False:
    then `_UnknownSizes` is raised.
    """
    known = tracer.meta_tensors
    # An explicit stack instead of recursion, for long programs. Arguments are computed before results.
    stack: list[tuple[TensorProxy, bool]] = [(value, False)]
    while stack:
        p, has_arguments = stack.pop()
        if not specializing and any(type(n) is not int for n in p.shape):
            raise _UnknownSizes
        specialized(p.shape)
        if p.name in known:
            continue
        if p.name in tracer.stand_ins:
            known[p.name] = _stand_in(tracer, *tracer.stand_ins[p.name])
            continue
        made_by = tracer.producer(p)
        if made_by is None or meta_tensors.is_dense(made_by.sym, made_by.kwargs):
            known[p.name] = contiguous(p)
        elif has_arguments:
            if not numbers and _has_numbers((made_by.args, made_by.kwargs)):
                raise _UnknownSizes
            meta_tensors.run(made_by, known, tracer.unknown_layouts)
            known.setdefault(p.name, contiguous(p))
        else:
            stack.append((p, True))
            stack += [(q, False) for q in made_by.flat_args if isinstance(q, TensorProxy)]
    return known[value.name]


def _has_numbers(x: Any) -> bool:
    """Check whether arguments contain symbolic numbers, which would become constants."""
    return any(not isinstance(p, TensorProxy) for p in proxies_in(x))


def _stand_in(tracer: HandleOwner, outer: TensorProxy, batch_dim: int | None) -> torch.Tensor:
    whole = meta_tensor(tracer, outer)
    with torch.no_grad(), DisableTorchFunction():
        return whole if batch_dim is None else whole.select(batch_dim, 0)


def meta_of(handle: Handle) -> torch.Tensor:
    """Return a tensor on the meta device with the strides of a handle. Later writes do not affect the strides."""
    value = origin_of(handle)
    for view in handle._views:
        value = _apply(handle, view, value)
    return value


def memory_of_write(handle: Handle, *, whole: bool) -> torch.Tensor:
    """Return a tensor with the strides of a handle, or of the `whole` memory that it views, without making symbolic
    numbers constants: raise `_UnknownSizes` instead.
    """
    if not whole and proxies_in([(view.args, view.kwargs) for view in handle._views]):
        raise _UnknownSizes
    origin = meta_tensor(handle._tracer, handle._storage.origin, specializing=False, numbers=False)
    return origin if whole else meta_of(handle)


def has_known_layout(handle: Handle) -> bool:
    """Check whether the strides of a handle depend on no symbolic number, which would become a constant."""
    if any(has_unbacked((view.args, view.kwargs)) for view in handle._views):
        return False
    try:
        memory_of_write(handle, whole=False)
    except _UnknownSizes:
        return False
    return True


def changes_strides(handle: Handle, view: View) -> bool:
    """Check whether a view of the same shape has other strides, as those of dimensions of one element (e.g. `view`)."""
    if all(type(n) is not int or n != 1 for n in handle._value.shape) or not has_known_layout(handle):
        return False
    memory = meta_of(handle)
    return _apply(handle, view, memory).stride() != memory.stride()


def has_shared_elements(x: torch.Tensor) -> bool:
    """Check whether elements of a tensor are in the same place, because a stride is zero."""
    return 0 in x.stride() and any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.stride()))


def overlap(one: Handle, other: Handle) -> bool:
    """Check whether two views of the same memory may have elements in common."""
    first, second = [_span(_memory(x)) for x in (one, other)]
    return max(first.start, second.start) < min(first.stop, second.stop)


def memory_order(handle: Handle) -> list[int] | None:
    """Return the dimensions of a tensor, from the outermost in memory to the innermost; None if memory has gaps."""
    origin, known = handle._storage.origin, handle._tracer.meta_tensors
    if handle._views or all(type(n) is int for n in origin.shape):
        memory = _memory(handle)
    elif origin.name in known:
        memory = known[origin.name]  # an input, whose strides are guarded
    else:
        return list(range(origin.ndim))  # without views, this affects only which elements meet on the way
    if memory.is_contiguous():
        return list(range(memory.dim()))
    if dense_strides(memory.shape, memory.stride()) is None:
        return None
    return sorted(range(memory.dim()), key=lambda i: -memory.stride(i))


def _memory(handle: Handle) -> torch.Tensor:
    """Return a tensor with the strides of a handle. Symbolic sizes become constants only if the strides need them."""
    try:
        return memory_of_write(handle, whole=False)
    except _UnknownSizes:
        return meta_of(handle)


def _span(x: torch.Tensor) -> range:
    """Return the positions in memory from the first to the last element of a tensor."""
    if x.numel() == 0:
        return range(0)
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride()))
    return range(x.storage_offset(), x.storage_offset() + last + 1)


def is_view(handle: Handle, seen: list[torch.Tensor] | None = None) -> bool:
    """Check whether the last step to a handle (e.g. `reshape` or `contiguous`) returned a view and not a copy.

    `seen` has the memory and the results of its first steps, and gets those of the others.
    """
    seen = [] if seen is None else seen
    if not seen:
        seen.append(origin_of(handle))
    for view in handle._views[len(seen) - 1 :]:
        seen.append(_apply(handle, view, seen[-1]))
    return bool(seen[-1].untyped_storage()._cdata == seen[-2].untyped_storage()._cdata)


def check_view(handle: Handle, view: Callable[..., Any], *args: Any) -> None:
    """Raise torch's error if `view`, a function of torch, cannot view the handle's memory without a copy.

    For symbolic sizes torch itself raises the error at the call.
    """
    origin = handle._storage.origin
    steps = [(step.args, step.kwargs) for step in handle._views]
    if _has_numbers((origin.shape, steps)):
        return
    if any(meta_tensors.is_dense(step.sym, step.kwargs) for step in handle._views):
        with contextlib.suppress(RuntimeError):  # if this succeeds, the layout of the origin does not matter
            _see(handle, contiguous(origin), view, args)
            return
    try:
        value = meta_tensor(handle._tracer, origin, specializing=False)
    except _UnknownSizes:
        value = contiguous(origin)
    _see(handle, value, view, args)


def _see(handle: Handle, value: torch.Tensor, view: Callable[..., Any], args: tuple[Any, ...]) -> None:
    for step in handle._views:
        value = _apply(handle, step, value)
    if not value.is_contiguous():
        with torch.no_grad(), DisableTorchFunction():
            view(value, *args)


def origin_of(handle: Handle) -> torch.Tensor:
    """Return a tensor on the meta device with the strides of the memory that a handle views."""
    return meta_tensor(handle._tracer, handle._storage.origin)


def _apply(handle: Handle, view: View, value: torch.Tensor) -> torch.Tensor:
    def on_meta(x: Any) -> Any:
        return meta_tensors.on_meta(map_proxies(specialized(x), lambda p: meta_tensor(handle._tracer, p)))  # type: ignore[arg-type]

    with torch.no_grad(), DisableTorchFunction():
        out = function_of(view)(value, *on_meta(view.args), **on_meta(view.kwargs))
    return out if view.part is None else out[view.part]  # type: ignore[no-any-return]


def function_of(view: View) -> Any:
    """Return the torch function of a view step. For a property such as `x.T`, return the property's getter."""
    found = view.sym.reference or view.sym.fn or getattr(torch.Tensor, view.sym.name)
    return found if callable(found) else found.__get__


# -- values that are written ------------------------------------------------------------------------------------------
def in_order_of(
    tracer: HandleOwner, value: TensorProxy, old: TensorProxy, memory: Callable[[], torch.Tensor]
) -> TensorProxy:
    """Return a new value of memory in the order in which the memory has its elements, so that later results have the
    strides that they have in eager mode. The result is a copy if the order of `value` differs.

    `old` is the value that it replaces, and `memory` returns a tensor with the memory's strides. If the sizes or the
    strides are not known, the value is returned as it is.
    """
    order = _other_order(tracer, value, old, memory)
    if order is None:
        return value
    made_by = tracer.producer(value)
    detached = made_by is not None and made_by.sym in _DETACH
    if detached:
        made_by = tracer.producer(made_by.args[0])  # type: ignore[union-attr]
    if made_by is not None and made_by.sym in _CLONE and not made_by.kwargs:  # one copy is enough
        copied = prims.clone_in_order(made_by.args[0], order)
        return prims.detach(copied) if detached else copied
    return prims.clone_in_order(value, order)


def has_order_of(tracer: HandleOwner, value: TensorProxy, old: TensorProxy, memory: Callable[[], torch.Tensor]) -> bool:
    """Check whether a new value of memory has its elements in the memory's order, or whether this is not known."""
    return _other_order(tracer, value, old, memory) is None


def _other_order(
    tracer: HandleOwner, value: TensorProxy, old: TensorProxy, memory: Callable[[], torch.Tensor]
) -> tuple[int, ...] | None:
    """Return the order of strides of memory if `value` has another one."""
    if any(type(n) is not int for n in value.shape) or sum(n > 1 for n in value.shape) < 2 or 0 in value.shape:
        return None
    if _keeps_order(tracer, value, old):
        return None
    try:
        wanted, found = memory(), meta_tensor(tracer, value, specializing=False, numbers=False)
    except _UnknownSizes:
        return None
    if value.name in tracer.unknown_layouts:
        return None
    with DisableTorchFunction():
        # Memory with gaps has the order of a dense tensor: no operation but a view computes a tensor with gaps.
        wanted, found = torch.empty_like(wanted), torch.empty_like(found)
        if dense_strides(wanted.shape, wanted.stride()) == dense_strides(found.shape, found.stride()):
            return None
        return order_of(wanted.stride())


def _keeps_order(tracer: HandleOwner, value: TensorProxy, old: TensorProxy) -> bool:
    """Check whether a value has the order of `old`, from which it is computed, without computing strides."""
    while value.name != old.name:
        op = tracer.producer(value)
        if op is None:
            return False
        if op.sym in _DETACH or (op.sym.facts.casts and not asks_for_layout(op)):
            value = op.args[0]
            continue
        whole = next((p for p in op.flat_args if isinstance(p, TensorProxy) and p.shape == value.shape), None)
        if whole is None or whole.name != old.name or asks_for_layout(op):
            return False
        if OpTags.ELEMENTWISE_OP not in op.sym.tags:
            return is_elementwise_foreach(op) or keeps_strides(torch_function(op))
        return keeps_layout(op) or (not _has_numbers((op.args, op.kwargs)) and _keeps_other_orders(op, value, old))
    return True


def _keeps_other_orders(op: BoundSymbol, value: TensorProxy, old: TensorProxy) -> bool:
    """Check whether a result has the order of `old` where the other operands have another order."""
    tensors = {p.name: p for p in op.tensors()}
    for transposed in (True, False):
        known = {
            name: _transposed(p) if transposed == (name == old.name) else contiguous(p) for name, p in tensors.items()
        }
        unknown: set[str] = set()
        meta_tensors.run(op, known, unknown)
        if unknown or known[value.name].stride() != known[old.name].stride():
            return False
    return True


def _transposed(p: TensorProxy) -> torch.Tensor:
    return torch.empty(tuple(specialized(p.shape))[::-1], dtype=to_torch_dtype(p.dtype), device="meta").permute(
        [*range(p.ndim)][::-1]
    )


_DETACH = frozenset({prims.detach, ltorch.detach})
_CLONE = frozenset({prims.clone, ltorch.clone})


def strides_of_inputs(inputs: Iterable[Lifted], known: Mapping[str, torch.Tensor]) -> dict[str, Strides]:
    """Return the strides of inputs that are dense. They are facts of the program, because the prologue checks them.

    `known` are the inputs on the meta device. The strides of dimensions of one element count: torch tells by them
    whether an image is channels-last.
    """
    found = {}
    for lifted in inputs:
        meta = known[lifted.proxy.name]
        dense = dense_strides(meta.shape, meta.stride()) is not None
        static = all(type(n) is int for n in lifted.proxy.shape)
        if dense and static and not meta.is_conj() and not meta.is_neg():
            found[lifted.proxy.name] = tuple(meta.stride())
    return found
