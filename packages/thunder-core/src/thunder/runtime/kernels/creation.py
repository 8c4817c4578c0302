# SPDX-License-Identifier: Apache-2.0
"""torch's implementations of the primitives that create tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.runtime.kernels.table import kernel

# The fill values whose bits are all zero. (-0.0 is not one of them.)
_ZEROS = frozenset(map(repr, (0, 0.0, 0j, False)))


@kernel
def full(shape: Sequence[int], fill_value: Any, *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor filled with one value."""
    if fill_value == 0 and repr(fill_value) in _ZEROS:
        return torch.zeros(tuple(shape), device=device, dtype=dtype)
    return torch.full(tuple(shape), fill_value, device=device, dtype=dtype)


@kernel
def empty(shape: Sequence[int], *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor."""
    return torch.empty(tuple(shape), device=device, dtype=dtype)


@kernel
def iota(length: int, *, start: int, step: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return a range of integers."""
    if step == 0:
        return torch.full((length,), start, device=device, dtype=dtype)
    return torch.arange(start, start + length * step, step, device=device, dtype=torch.int64).to(dtype)


@kernel
def tensor_from_sequence(values: Any, *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor from nested sequences of numbers."""
    return torch.tensor(values, device=device, dtype=dtype)
