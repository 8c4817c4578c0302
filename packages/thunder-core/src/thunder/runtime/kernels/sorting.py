# SPDX-License-Identifier: Apache-2.0
"""torch's implementations of the primitives that sort or scan along a dimension."""

from __future__ import annotations

import torch

from thunder.runtime.kernels.table import kernel


@kernel
def sort(
    a: torch.Tensor, dim: int = -1, descending: bool = False, stable: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sorted elements and their indices."""
    values, indices = torch.sort(a, dim=dim, descending=descending, stable=stable)
    return values, indices


@kernel
def cumsum(a: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the cumulative sum in the tensor's dtype, although torch would promote integers."""
    return torch.cumsum(a, dim, dtype=a.dtype)


@kernel
def cumprod(a: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the cumulative product in the tensor's dtype, although torch would promote integers."""
    return torch.cumprod(a, dim, dtype=a.dtype)
