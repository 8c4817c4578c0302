# SPDX-License-Identifier: Apache-2.0
"""Handlers of indexing: `x[key]` and `x[key] = value`. Keys may contain boolean masks, and tensors as slice bounds."""

from __future__ import annotations

from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.dispatch.data_dependent import nonzero, refuse_out
from thunder.capture.dispatch.packed_sequences import first_of
from thunder.capture.dispatch.registry import handles
from thunder.capture.dispatch.scalars import is_empty, number_in
from thunder.capture.dispatch.writing import assign, copy_
from thunder.capture.tensors.tracer import Tracer

__all__: list[str] = []


# -- keys -------------------------------------------------------------------------------------------------------------
def _is_mask(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype is torch.bool and x.dim() > 0 and not is_empty(x)


def _scalar_mask(key: Any) -> Any:
    """Return the mask if an index is a single boolean tensor without dimensions, which adds a dimension, else None."""
    item = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    return item if isinstance(item, torch.Tensor) and item.dtype is torch.bool and item.dim() == 0 else None


def _positions(tracer: Tracer, key: Any) -> Any:
    """Replace each boolean mask in the index `key` by the positions of its true elements.

    Return None if the index contains no mask.
    """
    items = key if isinstance(key, tuple) else (key,)
    if not any(map(_is_mask, items)):
        return None
    return tuple([i for item in items for i in (nonzero(tracer, item, as_tuple=True) if _is_mask(item) else (item,))])


def _with_numbers(tracer: Tracer, key: Any) -> Any:
    """Replace each tensor that bounds a slice in the index `key` by its number, e.g. `x[:t]` by `x[:t.item()]`."""
    items = key if isinstance(key, tuple) else (key,)
    bounds = [b for item in items if isinstance(item, slice) for b in (item.start, item.stop, item.step)]
    if not any(isinstance(b, torch.Tensor) for b in bounds):
        return key

    def plain(item: Any) -> Any:
        if not isinstance(item, slice):
            return item
        return slice(*[number_in(tracer, b) for b in (item.start, item.stop, item.step)])

    return tuple(map(plain, key)) if isinstance(key, tuple) else plain(key)


def _check_masks(x: Any, key: Any) -> None:
    at = 0
    for item in key if isinstance(key, tuple) else (key,):
        if item is Ellipsis:
            return
        if _is_mask(item):
            for i, n in enumerate(item.shape):
                if at + i >= x.dim() or x.shape[at + i] != n:
                    raise IndexError(
                        f"The shape of the mask {list(item.shape)} at index {i} does not match the shape of the "
                        f"indexed tensor {list(x.shape)} at index {at + i}"
                    )
        at += item.dim() if _is_mask(item) else item is not None


# -- reading ----------------------------------------------------------------------------------------------------------
@handles(torch.Tensor.__getitem__, traced=True)
def _getitem(tracer: Tracer, x: Any, key: Any) -> Any:
    mask = _scalar_mask(key)
    if mask is not None:
        return torch.Tensor.__getitem__(tracer.handle_of(x).unsqueeze(0), tracer.handle_of(mask).reshape(1))
    plain = _with_numbers(tracer, key)
    if plain is not key:
        return torch.Tensor.__getitem__(tracer.handle_of(x), plain)
    found = _positions(tracer, key)
    if found is None:
        first = first_of(tracer, x, key)
        return NotImplemented if first is None else first
    _check_masks(x, key)
    return torch.Tensor.__getitem__(x, found)


@handles(torch.ops.aten.slice, torch.ops.aten.slice.Tensor)
def _slice(tracer: Tracer, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    """Slice one dimension. torch's own functions call the operator, e.g. `associative_scan`."""
    if not -x.dim() <= dim < x.dim():
        return NotImplemented
    return torch.Tensor.__getitem__(x, (*[slice(None)] * (dim % x.dim()), slice(start, end, step)))


@handles(torch.ops.aten._unsafe_index, torch.ops.aten._unsafe_index.Tensor)
def _unsafe_index(tracer: Tracer, x: Any, indices: Any) -> Any:
    """Index without checks of the positions. torch's decompositions call the operator, e.g. of `interpolate`."""
    return torch.Tensor.__getitem__(x, tuple([slice(None) if i is None else i for i in indices]))


@handles(torch.where, traced=True)
def _where(tracer: Tracer, condition: Any, *others: Any, **named: Any) -> Any:
    return NotImplemented if others or named else torch.nonzero(condition, as_tuple=True)


@handles(torch.masked_select, torch.Tensor.masked_select, traced=True)
def _masked_select(tracer: Tracer, input: Any, mask: Any, *, out: Any = None) -> Any:
    refuse_out("masked_select", out)
    input, mask = torch.broadcast_tensors(input, mask)
    return NotImplemented if not _is_mask(mask) else _getitem(tracer, input, mask)


@handles(torch.Tensor.__iter__)
def _iter(tracer: Tracer, x: Any) -> Any:
    if x.dim() == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(torch.Tensor.unbind(x, 0))


@handles(torch.Tensor.__reversed__)
def _reversed(tracer: Tracer, x: Any) -> Any:
    return x if x.dim() == 0 else tracer.handle_of(x).flip(0)


# -- writing ----------------------------------------------------------------------------------------------------------
@handles(torch.Tensor.__setitem__, traced=True)
def _setitem(tracer: Tracer, target: Any, key: Any, value: Any) -> None:
    handle = tracer.handle_of(target)
    mask = _scalar_mask(key)
    if mask is not None and isinstance(value, torch.Tensor) and value.dim() > 0 and not _is_single(value):
        torch.Tensor.__setitem__(handle.unsqueeze(0), tracer.handle_of(mask).reshape(1), value)
        return
    key = _with_numbers(tracer, key)
    if isinstance(value, torch.Tensor) and value.dim() > 0:
        found = _positions(tracer, key)
        if found is not None and not _is_single(value):
            key = found
    if _is_whole(key) and not (isinstance(value, torch.Tensor) and value.dim() > handle.dim()):
        copy_(tracer, handle, value)  # fills the tensor if `value` is a number
        return
    if (view := _whole_view(handle, key)) is not None:
        copy_(tracer, view, value)
        return
    assign(tracer, handle, tracer.call_symbol(ltorch.setitem, (handle, key, value), {}), "__setitem__")


def _whole_view(handle: Any, key: Any) -> Any:
    """Return `handle[key]` if it is a view of all elements and requires grad, else None.

    A write to it keeps `requires_grad`, although the new value does not depend on the old one.
    """
    items = key if isinstance(key, tuple) else (key,)
    if not handle._needs_grad or not all(i is None or i is Ellipsis or type(i) in (int, slice) for i in items):
        return None
    if not all(type(n) is int for n in handle.shape) or not all(map(_has_numbers, items)):
        return None
    view = handle[key]
    return view if view.numel() == handle.numel() else None


def _has_numbers(item: Any) -> bool:
    bounds = (item.start, item.stop, item.step) if isinstance(item, slice) else ()
    return all(b is None or type(b) is int for b in bounds)


def _is_single(x: Any) -> bool:
    """Check whether the tensor `x` has one element. A symbolic size does not count as 1."""
    return all(type(n) is int and n == 1 for n in x.shape)


def _is_whole(key: Any) -> bool:
    """Check whether an index selects the whole tensor."""
    return key is Ellipsis or (isinstance(key, slice) and key == slice(None))
