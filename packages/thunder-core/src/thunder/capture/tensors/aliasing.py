# SPDX-License-Identifier: Apache-2.0
"""Functional form of in-place writes and views.

Writing to a handle sets a new value of its storage. Other handles of the same storage recompute their values from it at
their next read. A write through a view puts the view's new elements back into the base, step by step.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back
from thunder.capture.base.new_objects import collect_garbage
from thunder.capture.tensors.handle import Handle, HandleOwner, Storage, View
from thunder.capture.tensors.layout import (
    function_of,
    has_known_layout,
    has_order_of,
    has_shared_elements,
    in_order_of,
    is_view,
    memory_of_write,
    meta_of,
    origin_of,
    overlap,
)
from thunder.clang import maybe_convert_to_dtype
from thunder.clang.base import expand
from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.strides import dense_strides
from thunder.core.symbol import BoundSymbol, proxies_in
from thunder.core.symint.numbers import has_unbacked, specialized
from thunder.torch.private import DisableTorchFunction

__all__ = [
    "check_pending",
    "keeps_written_value",
    "link",
    "memory_of",
    "order_copy",
    "read",
    "shared_memory",
    "split_off_copy",
    "storages_by_memory",
    "twin",
    "write",
]


def read(handle: Handle) -> TensorProxy:
    """Return the current value of a handle."""
    if handle._local is not None:
        return _read_dtensor(handle, handle._local)
    storage = handle._storage
    if handle._version_seen != storage.version:
        if handle._parent is not None:
            split_off_copy(handle)
            if handle._storage is not storage:
                return read(handle)
        if storage.hides_gradient and torch.is_grad_enabled() and any(view.hides_writes for view in handle._views):
            fall_back(
                "the program writes a value that requires grad through .data or detach(), and reads the memory through "
                "another such view that it made before"
            )
        value = storage.value
        for view in handle._views:
            value = view.apply(value)
        handle._value = value
        handle._version_seen = storage.version
    return handle._value


def _read_dtensor(handle: Handle, local: Handle) -> TensorProxy:
    """Return the value of a DTensor. Writes to it are writes to its local tensor."""
    if handle._made_of is not None:
        now = read(local)
        if now is not handle._made_of:
            handle._made_of = now
            with handle._tracer.recording():
                handle._value = handle._storage.value = prims.dtensor_of(now, handle._value.dtensor_layout)
    return handle._value


def check_pending(handle: Handle) -> None:
    """Fall back if a collective in flight writes memory of `handle`, because only its wait determines when."""
    if any(overlap(handle, other) for other in handle._storage.pending):
        fall_back("the program uses a tensor before it waits for the collective that writes it")


def split_off_copy(handle: Handle) -> None:
    """Determine whether `reshape`, `contiguous` or a similar step copied, because a write or read now depends on it.

    A copy gets its own memory, with the old value. Views of the copy share this memory.
    """
    steps, seen = list[Handle](), list[torch.Tensor]()
    while handle._parent is not None:
        steps.append(handle)
        handle = handle._parent
    for handle in reversed(steps):
        if not handle._views[-1].certain and not is_view(handle, seen):
            seen.clear()
            handle._storage = Storage(handle._value)
            handle._storage.needs_grad = handle._needs_grad
            handle._views = ()
            handle._parent = None
            handle._version_seen = 0
            _move_views(handle)


def _move_views(base: Handle) -> None:
    """Make the views of a handle, which has got its own memory, views of this memory."""
    moved = [base]
    for parent in moved:
        for view in parent.possible_views:
            view._storage, view._views = parent._storage, (*parent._views, view._views[-1])
            view._version_seen = 0  # the version when that memory was created
            moved.append(view)
    for view in moved:
        if view._parent is base and view._views[-1].certain:
            view._parent = None


def write(handle: Handle, new: TensorProxy, name: str, *, ordered: bool = False) -> None:
    """Set a new value of a handle, and of all handles that share its memory.

    The value is copied if its elements are in another order than the handle's memory, unless it is known to be
    `ordered`.
    """
    for part in handle._tracer.parts:
        part.check_write(handle, name)
    check_pending(handle)
    old = read(handle)
    new = _as_stored(old, new, name)
    split_off_copy(handle)
    storage = handle._storage
    if _is_shared(storage, handle._tracer):
        fall_back(
            "the program writes to memory that the arguments and results of a higher-order function share (e.g. vmap)"
        )
    given = None if storage.source is None else handle._tracer.meta_tensors.get(storage.source.name)
    if given is not None and has_shared_elements(given):
        fall_back("the program writes to an input whose elements share memory (e.g. of expand)")
    before = storage.value
    if not handle._views:
        storage.value = new
    else:
        bases = [storage.value]
        for view in handle._views[:-1]:
            bases.append(view.apply(bases[-1]))
        value, views = new, list(zip(handle._views, bases))
        first = next((i for i, view in enumerate(handle._views) if _overlaps(view)), None)
        if first is not None:
            value = _put_at_positions(bases[first], handle._views[first:], new)
            views = views[:first]
        for view, base in reversed(views):
            value = view.put_back(base, value)
        storage.value = value
    storage.unordered = storage.value
    if not (ordered and not handle._views):
        storage.value = in_order_of(handle._tracer, storage.value, before, partial(memory_of_write, handle, whole=True))
    storage.written = True
    storage.version += 1
    hidden = _hidden_from_autograd(handle)
    storage.visible |= not hidden
    if hidden and storage.needs_grad:
        storage.value = storage.unordered = prims.assign_value(before, storage.value)
        if handle._views and not torch.is_grad_enabled():
            return  # the next read recomputes the value from the storage
    if not handle._views:
        new = storage.value
    elif not ordered and keeps_written_value(handle):
        new = in_order_of(handle._tracer, new, old, partial(memory_of_write, handle, whole=False))
    elif not ordered and not has_order_of(handle._tracer, new, old, partial(memory_of_write, handle, whole=False)):
        return
    handle._value = new
    handle._version_seen = storage.version


def order_copy(handle: Handle) -> None:
    """Give a handle the strides of a copy, if its last step (e.g. `reshape`) copies because of gaps in written memory.

    The new value of such memory has no gaps, so the step alone may return a view with other strides.
    """
    storage, tracer = handle._storage, handle._tracer
    if not storage.written or storage.source is None:
        return
    if proxies_in((storage.origin.shape, *[(view.args, view.kwargs) for view in handle._views])):
        return
    memory = origin_of(handle)
    if dense_strides(memory.shape, memory.stride()) is None and not is_view(handle):
        copied = meta_of(handle)
        split_off_copy(handle)
        value = in_order_of(tracer, handle._value, storage.value, lambda: copied)
        value = prims.clone(value) if value is handle._value else value  # the step would not copy the new value
        handle._value = handle._storage.value = handle._storage.origin = value


def keeps_written_value(handle: Handle) -> bool:
    """Check whether a view keeps the value that was written through it, as only the view has the value's gradient."""
    return handle._needs_grad and any(view.hides_writes for view in handle._views)


def _is_shared(storage: Storage, tracer: HandleOwner) -> bool:
    """Check whether a tensor that is still reachable shares the memory in a way that the trace does not know."""
    if all(other() is None for other in storage.shared_with):
        return False
    with tracer.recording():  # finalizers of other objects are no part of the program
        collect_garbage()
    return any(other() is not None for other in storage.shared_with)


def _overlaps(view: View) -> bool:
    """Check whether elements of a view may overlap in memory. Then a write cannot put the view back as a whole."""
    if view.sym.name == "unfold":
        _, size, step = view.args
        return bool(step < size)
    if view.sym.name != "as_strided":
        return False
    size, stride = view.args[:2]
    reach = 0
    for n, s in sorted([(n, s) for n, s in zip(size, stride) if n > 1], key=lambda pair: int(pair[1])):
        if s <= reach:
            return True
        reach += (n - 1) * s
    return False


def _put_at_positions(base: TensorProxy, views: Sequence[View], new: TensorProxy) -> TensorProxy:
    """Compute `base` with the elements of its last view replaced by `new`."""
    shape = specialized(base.shape)
    found = torch.arange(math.prod(shape), device="cpu").reshape(shape)
    with torch.no_grad(), DisableTorchFunction():
        for view in views:
            if any(isinstance(p, TensorProxy) for p in proxies_in((view.args, view.kwargs))):
                fall_back("the program writes through overlapping windows whose positions are data-dependent")
            found = function_of(view)(found, *specialized(view.args), **specialized(view.kwargs))
            found = found if view.part is None else found[view.part]
    if found.unique().numel() < found.numel():
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    where = ltorch.reshape(ltorch.arange(math.prod(shape), device=base.device), shape)
    for view in views:
        where = view.apply(where)
    flat = [ltorch.reshape(x, (math.prod(x.shape),)) for x in (base, where, new)]
    return ltorch.reshape(prims.index_put(flat[0], (flat[1],), flat[2]), shape)  # type: ignore[no-any-return]


def _hidden_from_autograd(handle: Handle) -> bool:
    """Check whether autograd ignores a write to `handle` now, so that gradients of the shared memory do not change."""
    off = not torch.is_grad_enabled() and handle._tracer.detaching
    return off or any(view.hides_writes for view in handle._views)


def _as_stored(old: TensorProxy, new: Any, name: str) -> TensorProxy:
    if new.dtype is not old.dtype:
        if new.dtype.category > old.dtype.category:
            raise RuntimeError(
                f"result type {new.dtype} can't be cast to the desired output type {old.dtype} (in {name}, an in-place "
                "operation: convert the tensor first)"
            )
        new = maybe_convert_to_dtype(new, old.dtype)
    if new.shape != old.shape:
        if len(new.shape) > old.ndim or any(n not in (1, o) for n, o in zip(reversed(new.shape), reversed(old.shape))):
            raise RuntimeError(
                f"output with shape {list(old.shape)} doesn't match the broadcast shape {list(new.shape)} (in {name})"
            )
        new = prims.clone(expand(new, old.shape))  # a copy, so that no two elements share memory
    return new  # type: ignore[no-any-return]


def shared_memory(results: Sequence[Any]) -> dict[int, Handle]:
    """Return handles of the memory of which results are differentiable views, by the ids of the storages.

    If the program returned such views itself, torch would forbid writes to them: they would be views of an input, or
    views among several outputs, of a node. The epilogue repeats these views instead.
    """
    if not torch.is_grad_enabled():
        return {}
    groups: dict[int, dict[int, Handle]] = {}
    for x in results:
        if isinstance(x, Handle) and x._needs_grad and x._parent is not None and has_known_layout(x):
            split_off_copy(x)
        if isinstance(x, Handle) and x._needs_grad:
            groups.setdefault(id(x._storage), {})[id(x)] = x
    found: dict[int, Handle] = {}
    for key, handles in groups.items():
        first = next(iter(handles.values()))
        storage, tracer = first._storage, first._tracer
        owner = tracer.owner_of(first)
        inputs = [] if owner is None else [owner.handle]
        if len({**handles, **{id(x): x for x in inputs}}) > 1 and all(map(_is_repeatable, handles.values())):
            whole = next((x for x in (*inputs, *handles.values()) if not x._views), None)
            if whole is None:
                whole = Handle.make(tracer, storage.value, requires_grad=True, storage=storage)
            found[key] = whole
    return found


def memory_of(value: TensorProxy, producer: Callable[[TensorProxy], BoundSymbol | None]) -> str:
    """Return the name of the value of which `value` is a view, or its own name."""
    while True:
        op = producer(value)
        if op is None or op.sym.facts.view == "never" or not (op.args and isinstance(op.args[0], TensorProxy)):
            return value.name
        value = op.args[0]


def storages_by_memory(
    handles: Iterable[Handle], producer: Callable[[TensorProxy], BoundSymbol | None]
) -> dict[str, list[Storage]]:
    """Return storages by the values whose memory they have: the first value and, after a write, the current one."""
    found: dict[str, list[Storage]] = {}
    for storage in {id(h._storage): h._storage for h in handles}.values():
        for memory in {memory_of(x, producer) for x in (storage.value, storage.origin)}:
            found.setdefault(memory, []).append(storage)
    return found


def link(one: Storage, other: Storage) -> None:
    """Record that two storages share memory in a way that the trace does not know: a write to either falls back."""
    one.shared_with.append(weakref.ref(other))
    other.shared_with.append(weakref.ref(one))


def _is_repeatable(handle: Handle) -> bool:
    """Check whether an epilogue can repeat the views from a storage to a handle."""
    if handle._parent is not None and not has_known_layout(handle):  # it may be a copy
        return False
    is_plain = not handle._tracer.subclasses and handle._value.dtensor_layout is None
    if not is_plain or handle.given_attributes or handle._freed:
        return False  # the epilogue would have to repeat this, too
    if any(view.hides_writes or view.sym.is_prim for view in handle._views):  # torch has no function of a primitive
        return False
    given = [(view.args, view.kwargs) for view in handle._views]
    return not has_unbacked(given) and not proxies_in(given)


def twin(handle: Handle) -> Handle:
    """Return another handle with the same value and memory, like torch's view with the same shape."""
    out = Handle.make(
        handle._tracer,
        handle._value,
        requires_grad=handle._needs_grad,
        storage=handle._storage,
        views=handle._views,
    )
    out.set_parent(handle._parent)
    out._version_seen, out._is_new = handle._version_seen, True
    return out


def view_of(handle: Handle, value: TensorProxy, view: View, requires_grad: bool) -> Handle:
    """Return the handle of a view of `handle`."""
    out = Handle.make(
        handle._tracer, value, requires_grad=requires_grad, storage=handle._storage, views=(*handle._views, view)
    )
    if handle._parent is not None or not view.certain:
        out.set_parent(handle)
    if not view.certain:
        out._is_new = handle._is_new
    return out
