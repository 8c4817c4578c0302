# SPDX-License-Identifier: Apache-2.0
"""torch's implementations of the primitives for slicing and indexing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.runtime.kernels.table import kernel


def _window(starts: Sequence[int], ends: Sequence[int], strides: Sequence[int] | None) -> tuple[slice, ...]:
    steps = strides if strides is not None else (1,) * len(starts)
    return tuple([slice(start, end, step) for start, end, step in zip(starts, ends, steps)])


@kernel
def slice_(
    a: torch.Tensor, start_indices: Sequence[int], end_indices: Sequence[int], strides: Sequence[int] | None = None
) -> torch.Tensor:
    """Return a view of the slice of `a` between the indices."""
    if strides is None:
        parts = [i for i, n in enumerate(a.shape) if start_indices[i] or end_indices[i] != n]
        if len(parts) == 1:  # the common case, faster than slicing all dimensions
            (dim,) = parts
            return a.narrow(dim, start_indices[dim], end_indices[dim] - start_indices[dim])
    return a[_window(start_indices, end_indices, strides)]


@kernel
def slice_scatter(
    a: torch.Tensor,
    src: torch.Tensor,
    start_indices: Sequence[int],
    end_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> torch.Tensor:
    """Return a copy of `a` with `src` in the slice between the indices."""
    return slice_scatter_(a.clone(), src, start_indices, end_indices, strides)


@kernel
def slice_scatter_(
    a: torch.Tensor,
    src: torch.Tensor,
    start_indices: Sequence[int],
    end_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> torch.Tensor:
    """Return `a` with `src` written to the slice between the indices."""
    a[_window(start_indices, end_indices, strides)] = src
    return a


@kernel
def index(a: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Return the elements of `a` at index tensors."""
    return torch.ops.aten.index.Tensor(a, indices)


@kernel
def index_put(
    a: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Return a copy of `a` with `values` written or accumulated at index tensors."""
    return torch.ops.aten.index_put.default(a, indices, values, accumulate)


@kernel
def index_put_(
    a: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Return `a` with `values` written or accumulated at index tensors."""
    return torch.ops.aten.index_put_.default(a, indices, values, accumulate)


@kernel
def setitem(a: torch.Tensor, key: Any, value: Any) -> torch.Tensor:
    """Return a copy of `a` after `a[key] = value`."""
    return setitem_(a.clone(), key, value)


@kernel
def setitem_(a: torch.Tensor, key: Any, value: Any) -> torch.Tensor:
    """Return `a` after `a[key] = value`."""
    a[key] = value
    return a
