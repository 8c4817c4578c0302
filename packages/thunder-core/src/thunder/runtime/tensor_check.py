# SPDX-License-Identifier: Apache-2.0
"""What a prologue compares of tensors: the metadata of all of them at once, and whether they share memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.runtime.messages import format_value
from thunder.runtime.torch_private import tensor_guards

__all__ = ["TensorCheck", "overlap"]


class TensorCheck:
    """Compare the metadata of several tensors with what it was, in one C++ call where torch has it."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        names: Sequence[Any] = (),
        dims: Sequence[frozenset[int]] = (),
    ):
        """Take tensors as they are: `names` are what a message calls them, `dims` their dimensions of symbolic size."""
        self.dims = dims or [frozenset()] * len(tensors)
        self.layouts = [(i, _layout(t, d)) for i, (t, d) in enumerate(zip(tensors, self.dims)) if d]
        self.names = names or [f"tensor {i}" for i in range(len(tensors))]  # what a message calls them
        self.expected = [_metadata(t, d) for t, d in zip(tensors, self.dims)]
        self.same = _sameness([*map(id, tensors)])
        first = self.same or range(len(tensors))
        self._twice = [(i, j) for i, j in enumerate(first) if i != j]
        self._once = [i for i, j in enumerate(first) if i == j]
        self._fast, self._tells_apart = tensor_guards(
            [tensors[i] for i in self._once], [self.dims[i] for i in self._once]
        )
        #: Whether tensors are as they were. Where torch's guards say all there is to say, these themselves.
        self.accepts: Callable[..., bool] = self._accepts
        if self._fast is not None and self._tells_apart and not self._twice and not self.layouts:
            self.accepts = self._fast

    def _accepts(self, *tensors: Any) -> bool:
        if any(tensors[i] is not tensors[j] for i, j in self._twice):
            return False
        once = [tensors[i] for i in self._once]
        if not self._tells_apart and len({*map(id, once)}) != len(once):
            return False
        if self._fast is not None:
            return self._fast(*once) and (not self.layouts or self._laid_out(tensors))
        return all(
            isinstance(t, torch.Tensor) and _metadata(t, d) == e for t, d, e in zip(tensors, self.dims, self.expected)
        )

    def __call__(self, tensors: Sequence[Any]) -> bool:
        return self.accepts(*tensors)

    def _laid_out(self, tensors: Sequence[Any]) -> bool:
        """Check whether tensors of symbolic sizes lie in memory as they did."""
        for i, layout in self.layouts:
            if layout is True:
                if not tensors[i].is_contiguous():
                    return False
            elif _layout(tensors[i], self.dims[i]) != layout:
                return False
        return True

    def changed_sizes(self, tensors: Sequence[Any]) -> list[tuple[Any, int]]:
        """Return the names and dimensions of tensors whose sizes have changed, where nothing else has."""
        changed: list[tuple[Any, int]] = []
        for name, t, d, expected in zip(self.names, tensors, self.dims, self.expected):
            if not isinstance(t, torch.Tensor):
                return []
            found = _metadata(t, d)
            if found[1] == expected[1]:
                if found != expected:
                    return []
                continue
            if len(found[1]) != len(expected[1]) or found[0] is not expected[0] or found[3:] != expected[3:]:
                return []
            changed += [(name, i) for i, (n, was) in enumerate(zip(found[1], expected[1])) if n != was]
        return changed

    def explain(self, tensors: Sequence[Any]) -> str:
        """Return which tensor is not as it was."""
        for name, t, d, expected in zip(self.names, tensors, self.dims, self.expected):
            found = _metadata(t, d) if isinstance(t, torch.Tensor) else (type(t),)
            for what, now, was in zip(_METADATA, found, expected):
                if now != was:
                    return f"the {what} of {name} was {format_value(was)} and is {format_value(now)}"
        same, now = self._pairs(self.same), self._pairs(_sameness([*map(id, tensors)]))
        return f"identical tensors were {same} and are {now}"

    def _pairs(self, same: tuple[int, ...] | None) -> str:
        pairs = [f"{self.names[i]} and {self.names[j]}" for j, i in enumerate(same or ()) if i != j]
        return "; ".join(pairs) or "none"


_METADATA = ("class", "shape", "stride", "dtype", "device", "requires_grad")


def _metadata(t: torch.Tensor, dims: frozenset[int] = frozenset()) -> tuple[Any, ...]:
    """Return what is compared: of symbolic sizes only that they are there, and with them how the tensor is laid out."""
    shape, layout = tuple(t.shape), t.stride()
    if dims:
        shape = tuple(["any" if i in dims else n for i, n in enumerate(shape)])  # type: ignore[misc]
        layout = _layout(t, dims)
    return (type(t), shape, layout, t.dtype, t.device, t.requires_grad)


def _layout(t: torch.Tensor, dims: frozenset[int]) -> Any:
    """Return the layout of a tensor of symbolic sizes: the order of its dimensions if it is dense, else its strides."""
    if t.is_contiguous():
        return True
    strides = t.stride()
    order = tuple(sorted(range(t.ndim), key=lambda i: -strides[i]))
    return ("dense", order) if t.permute(order).is_contiguous() else ("strides", strides)


def _sameness(ids: list[int]) -> tuple[int, ...] | None:
    """Return the index of the first identical object for each; None if all are distinct."""
    if len(set(ids)) == len(ids):
        return None
    first: dict[int, int] = {}
    return tuple(first.setdefault(x, i) for i, x in enumerate(ids))


# -- memory that tensors share -----------------------------------------------------------------------------------------
def overlap(tensors: Sequence[torch.Tensor], written: Sequence[int]) -> tuple[int, int] | None:
    """Return the positions of a tensor that is written to and of another that it overlaps, if there are any."""
    storages = [t.untyped_storage()._cdata for t in tensors]
    if len(set(storages)) == len(storages):
        return None
    for i in written:
        for j, storage in enumerate(storages):
            if j != i and storage == storages[i] and _meet(tensors[i], tensors[j]):
                return i, j
    return None


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Check whether two tensors of one storage overlap; where that is hard to tell, assume that they do."""
    if not a.numel() or not b.numel():
        return False
    (first, last), (start, end) = _places(a), _places(b)
    if last < start or end < first:
        return False
    if a.stride() != b.stride() or a.dtype is not b.dtype:
        return True
    # Rows or columns of one matrix lie between each other: is the distance one of steps that both can take?
    steps = sorted(zip(a.stride(), a.shape, b.shape), reverse=True)
    return _reachable(b.storage_offset() - a.storage_offset(), steps)


def _places(t: torch.Tensor) -> tuple[int, int]:
    first = t.storage_offset() * t.element_size()
    return first, first + (sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1) * t.element_size() - 1


def _reachable(distance: int, steps: Sequence[tuple[int, int, int]]) -> bool:
    if not steps:
        return distance == 0
    (stride, here, there), *rest = steps
    if stride == 0:
        return _reachable(distance, rest)
    nearest = distance // stride
    return any(-there < k < here and _reachable(distance - k * stride, rest) for k in (nearest, nearest + 1))
