# SPDX-License-Identifier: Apache-2.0
"""Marks of tensors: what the user knows about the sizes of a tensor before any guard has failed.

The marks of `torch._dynamo` (`mark_dynamic`, `maybe_mark_dynamic`, `mark_unbacked`, `mark_static`) are attributes of
the tensor, and have the same meaning here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

__all__ = ["Range", "mark_dynamic", "marked_dynamic", "marked_static", "specialized_mark"]

_OURS = "_thunder_dynamic_sizes"
_OF_TORCH = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices")


class Range(NamedTuple):
    """The bounds of a dynamic size. None means that there is no bound."""

    min: int | None = None
    max: int | None = None

    def __contains__(self, size: object) -> bool:
        low, high = self
        return isinstance(size, int) and (low is None or size >= low) and (high is None or size <= high)


def mark_dynamic(
    tensor: torch.Tensor, dim: int | Sequence[int], *, min: int | None = None, max: int | None = None
) -> torch.Tensor:
    """Declare that a size of an input changes between calls, so that the first program is compiled for all sizes.

    The program accepts sizes from `min` to `max`. Another size compiles another program. Sizes 0 and 1 are always
    constants, because they broadcast. Mark the tensor of the first call; the tensors of later calls need no mark.
    thunder also accepts the marks of `torch._dynamo.mark_dynamic` and `mark_static`. Return the tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"thunder.mark_dynamic takes a tensor, not {type(tensor).__name__}: {tensor!r:.80}")
    found: dict[int, Range] = tensor.__dict__.setdefault(_OURS, {})
    bounds = Range(min, max)
    for d in (dim,) if isinstance(dim, int) else dim:
        if not -tensor.ndim <= d < tensor.ndim:
            raise IndexError(f"thunder.mark_dynamic: a tensor with {tensor.ndim} dimensions has no dimension {d}")
        if tensor.shape[d] not in bounds:
            raise ValueError(
                f"thunder.mark_dynamic: the size of dimension {d} is {tensor.shape[d]}, which is not between min={min} "
                f"and max={max}"
            )
        found[d % tensor.ndim] = bounds
    return tensor


def marked_dynamic(tensor: torch.Tensor) -> dict[int, Range]:
    """Return the dimensions of a tensor that are marked as dynamic, with the bounds of their sizes."""
    marks: dict[str, Any] = tensor.__dict__
    found: dict[int, Range] = {}
    for name in _OF_TORCH:
        found.update({d: Range() for d in marks.get(name, ())})
    for mark in marks.get("_dynamo_dynamic_range", ()):
        found[mark.dim] = Range(mark.min, mark.max)
    found.update(marks.get(_OURS, {}))
    return {d % tensor.ndim: bounds for d, bounds in found.items() if -tensor.ndim <= d < tensor.ndim}


def marked_static(tensor: torch.Tensor) -> frozenset[int]:
    """Return the dimensions of a tensor that are marked as static. A mark as dynamic has priority."""
    found = tensor.__dict__.get("_dynamo_static_indices", ())
    return frozenset(d % tensor.ndim for d in found if -tensor.ndim <= d < tensor.ndim).difference(
        marked_dynamic(tensor)
    )


def specialized_mark(sizes: Sequence[tuple[str, Any]]) -> str | None:
    """Return a description of a marked size that the constraints of the program make a constant, or None.

    `sizes` are descriptions and symbols of marked sizes.
    """
    for description, size in sizes:
        value = size.symbols.constant_of(size)
        if value is not None:
            return f"the program only works with {description} = {value}"
    return None
