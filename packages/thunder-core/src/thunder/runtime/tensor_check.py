# SPDX-License-Identifier: Apache-2.0
"""The checks of a prologue on tensors: one check of the metadata of all tensors, and one for overlapping memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from thunder.runtime.messages import format_value
from thunder.runtime.torch_private import dispatch_keys, tensor_guards

__all__ = ["TensorCheck", "explain_difference", "metadata_of", "overlap", "sameness"]


class TensorCheck:
    """Compare the metadata of several tensors with that of the traced call, in one C++ call if torch has it."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        names: Sequence[Any] = (),
        dims: Sequence[frozenset[int]] = (),
    ):
        """Expect the metadata of `tensors`. `names` appear in messages, and `dims` are dimensions of symbolic size."""
        self.dims = dims or [frozenset()] * len(tensors)
        self.layouts = [(i, _layout(t, d)) for i, (t, d) in enumerate(zip(tensors, self.dims)) if d]
        self.names = names or [f"tensor {i}" for i in range(len(tensors))]
        self.expected = [metadata_of(t, d) for t, d in zip(tensors, self.dims)]
        self.same = sameness([*map(id, tensors)])
        self.dispatch_keys = [*map(dispatch_keys, tensors)]
        first = self.same or range(len(tensors))
        self._duplicates = [(i, j) for i, j in enumerate(first) if i != j]
        self._distinct = [i for i, j in enumerate(first) if i == j]
        self._fast, self._rejects_duplicates = tensor_guards(
            [tensors[i] for i in self._distinct], [self.dims[i] for i in self._distinct]
        )
        #: Checks whether the metadata matches. If torch's guards check all of it, this is torch's function.
        self.accepts: Callable[..., bool] = self._accepts
        if self._fast is not None and self._rejects_duplicates and not self._duplicates and not self.layouts:
            self.accepts = self._fast

    def _accepts(self, *tensors: Any) -> bool:
        if any(tensors[i] is not tensors[j] for i, j in self._duplicates):
            return False
        distinct = [tensors[i] for i in self._distinct]
        if not self._rejects_duplicates and len({*map(id, distinct)}) != len(distinct):
            return False
        if self._fast is not None:
            return self._fast(*distinct) and (not self.layouts or self._layouts_match(tensors))
        return all(
            isinstance(t, torch.Tensor) and metadata_of(t, d) == e for t, d, e in zip(tensors, self.dims, self.expected)
        )

    def __call__(self, tensors: Sequence[Any]) -> bool:
        return self.accepts(*tensors)

    def _layouts_match(self, tensors: Sequence[Any]) -> bool:
        """Check whether tensors with symbolic sizes have the expected memory layout."""
        for i, layout in self.layouts:
            if layout is True:
                if not tensors[i].is_contiguous():
                    return False
            elif _layout(tensors[i], self.dims[i]) != layout:
                return False
        return True

    def changed_sizes(self, tensors: Sequence[Any]) -> list[tuple[Any, int]]:
        """Return the names and dimensions of tensors whose sizes have changed, or nothing if other metadata changed."""
        changed: list[tuple[Any, int]] = []
        for name, t, d, expected in zip(self.names, tensors, self.dims, self.expected):
            if not isinstance(t, torch.Tensor):
                return []
            found = metadata_of(t, d)
            if found[1] == expected[1]:
                if found != expected:
                    return []
                continue
            if len(found[1]) != len(expected[1]) or found[0] is not expected[0] or found[3:] != expected[3:]:
                return []
            changed += [(name, i) for i, (n, was) in enumerate(zip(found[1], expected[1])) if n != was]
        return changed

    def explain(self, tensors: Sequence[Any]) -> str:
        """Describe the first difference."""
        return explain_difference(self, tensors)


_METADATA = ("class", "shape", "stride", "dtype", "device", "requires_grad")


class _Expectation(Protocol):
    """What a check expects of its tensors."""

    @property
    def names(self) -> Sequence[Any]: ...
    @property
    def dims(self) -> Sequence[frozenset[int]]: ...
    @property
    def expected(self) -> Sequence[tuple[Any, ...]]: ...
    @property
    def same(self) -> tuple[int, ...] | None: ...


def explain_difference(check: _Expectation, tensors: Sequence[Any]) -> str:
    """Describe the first difference between tensors and what a check expects."""
    for name, t, d, expected in zip(check.names, tensors, check.dims, check.expected):
        found = metadata_of(t, d) if isinstance(t, torch.Tensor) else (type(t),)
        for what, now, was in zip(_METADATA, found, expected):
            if now != was:
                return f"the {what} of {name} was {format_value(was)} and is {format_value(now)}"
    same, now = _pairs(check, check.same), _pairs(check, sameness([*map(id, tensors)]))
    return f"identical tensors were {same} and are {now}"


def _pairs(check: _Expectation, same: tuple[int, ...] | None) -> str:
    pairs = [f"{check.names[i]} and {check.names[j]}" for j, i in enumerate(same or ()) if i != j]
    return "; ".join(pairs) or "none"


def metadata_of(t: torch.Tensor, dims: frozenset[int] = frozenset()) -> tuple[Any, ...]:
    """Return the metadata to compare. Symbolic sizes are replaced by "any", and then strides by the layout."""
    shape, layout = tuple(t.shape), t.stride()
    if dims:
        shape = tuple(["any" if i in dims else n for i, n in enumerate(shape)])  # type: ignore[misc]
        layout = _layout(t, dims)
    return (type(t), shape, layout, t.dtype, t.device, t.requires_grad)


def _layout(t: torch.Tensor, dims: frozenset[int]) -> Any:
    """Return the layout of a tensor with symbolic sizes: the order of its dimensions if dense, else its strides."""
    if t.is_contiguous():
        return True
    strides = t.stride()
    order = tuple(sorted(range(t.ndim), key=lambda i: -strides[i]))
    return ("dense", order) if t.permute(order).is_contiguous() else ("strides", strides)


def sameness(ids: list[int]) -> tuple[int, ...] | None:
    """Return for each object the index of the first identical one, or None if all objects are distinct."""
    if len(set(ids)) == len(ids):
        return None
    first: dict[int, int] = {}
    return tuple(first.setdefault(x, i) for i, x in enumerate(ids))


# -- overlapping memory ------------------------------------------------------------------------------------------------
def overlap(tensors: Sequence[torch.Tensor], written: Sequence[int], *, arrays: bool = False) -> tuple[int, int] | None:
    """Return the indices of a written tensor and of another tensor that overlaps it, or None.

    With `arrays`, some tensors were made from NumPy arrays, so different storages may refer to the same memory.
    """
    if arrays:
        return _overlap_in_memory(tensors, written)
    storages = [t.untyped_storage()._cdata for t in tensors]
    if len(set(storages)) == len(storages):
        return None
    for i in written:
        for j, storage in enumerate(storages):
            if j != i and storage == storages[i] and _may_overlap(tensors[i], tensors[j]):
                return i, j
    return None


def _overlap_in_memory(tensors: Sequence[torch.Tensor], written: Sequence[int]) -> tuple[int, int] | None:
    ranges = [(t.data_ptr(), t.data_ptr() + _byte_range(t)[1] - _byte_range(t)[0]) for t in tensors]
    for i in written:
        for j, t in enumerate(tensors):
            if i == j or not t.numel() or not tensors[i].numel() or t.device != tensors[i].device:
                continue
            if ranges[i][0] <= ranges[j][1] and ranges[j][0] <= ranges[i][1]:
                return i, j
    return None


def _may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Check whether two tensors of one storage may overlap: exactly for equal strides, else by their byte ranges."""
    if not a.numel() or not b.numel():
        return False
    (first, last), (start, end) = _byte_range(a), _byte_range(b)
    if last < start or end < first:
        return False
    if a.stride() != b.stride() or a.dtype is not b.dtype:
        return True
    # Columns of one matrix interleave: they share an element only if their distance is a combination of strides.
    steps = sorted(zip(a.stride(), a.shape, b.shape), reverse=True)
    return _is_combination_of_strides(b.storage_offset() - a.storage_offset(), steps)


def _byte_range(t: torch.Tensor) -> tuple[int, int]:
    first = t.storage_offset() * t.element_size()
    return first, first + (sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1) * t.element_size() - 1


def _is_combination_of_strides(distance: int, steps: Sequence[tuple[int, int, int]]) -> bool:
    if not steps:
        return distance == 0
    (stride, here, there), *rest = steps
    if stride == 0:
        return _is_combination_of_strides(distance, rest)
    nearest = distance // stride
    return any(
        -there < k < here and _is_combination_of_strides(distance - k * stride, rest) for k in (nearest, nearest + 1)
    )
