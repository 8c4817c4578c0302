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


@kernel
def linear_recurrence(a: torch.Tensor, b: torch.Tensor, dim: int, reverse: bool = False) -> torch.Tensor:
    """Return the values of `h[t] = a[t] * h[t - 1] + b[t]`, in about 2 log2(n) steps for n elements.

    Half precision is computed in single precision. The result is contiguous, like that of `torch.cumsum`.
    """
    out = torch.empty_like(b, memory_format=torch.contiguous_format)
    if b.dtype in (torch.float16, torch.bfloat16):
        a, b = a.float(), b.float()
    a, b, moved = (x.movedim(dim, 0) for x in (a, b, out))
    if reverse:
        moved.copy_(_recurrence(a.flip(0), b.flip(0)).flip(0))
    else:
        moved.copy_(_recurrence(a, b))
    return out


def _recurrence(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Combine neighbors in pairs, and so the results, until one is left. Then compute the elements between."""
    count = b.shape[0]
    if count < 2:
        return b
    out = torch.empty_like(b)
    first, second = slice(0, count - 1, 2), slice(1, count, 2)
    out[second] = odd = _recurrence(a[second] * a[first], a[second] * b[first] + b[second])
    out[:1] = b[:1]
    out[2::2] = a[2::2] * odd[: (count - 1) // 2] + b[2::2]
    return out
