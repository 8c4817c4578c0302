# SPDX-License-Identifier: Apache-2.0
"""torch's implementations of reduction primitives whose torch functions have other signatures."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thunder.runtime.kernels.table import kernel


@kernel
def sum(a: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Return the sum over `dims`. Integers keep their dtype."""
    return torch.sum(a, tuple(dims), dtype=a.dtype)


@kernel
def prod(a: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Return the product over `dims`. torch reduces only one dimension per call."""
    if len(dims) == a.ndim:
        return torch.prod(a, dtype=a.dtype)
    for d in sorted(dims, reverse=True):
        a = torch.prod(a, d, dtype=a.dtype)
    return a


@kernel
def var(a: torch.Tensor, dims: Sequence[int], *, correction: float) -> torch.Tensor:
    """Return the variance over `dims`."""
    return torch.var(a, tuple(dims), correction=correction)


@kernel
def var_mean(a: torch.Tensor, dims: Sequence[int], *, correction: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the variance and the mean over `dims`."""
    return torch.var_mean(a, tuple(dims), correction=correction)
