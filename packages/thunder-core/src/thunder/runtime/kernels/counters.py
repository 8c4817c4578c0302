# SPDX-License-Identifier: Apache-2.0
"""Kernels for many tensors of one element on the CPU, each of which would cost a call of torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thunder.runtime.kernels.table import kernel

__all__ = ["add_to_counters", "add_to_counters_", "copy_counters_"]


@kernel
def add_to_counters(counters: Sequence[torch.Tensor], number: float) -> Sequence[torch.Tensor]:
    """Return the sums of each counter and a number. They share one memory."""
    return torch.stack(list(counters)).add_(number).unbind()


@kernel
def add_to_counters_(counters: Sequence[torch.Tensor], number: float) -> Sequence[torch.Tensor]:
    """Add a number to each counter."""
    torch._foreach_copy_(list(counters), torch.stack(list(counters)).add_(number).unbind())
    return counters


@kernel
def copy_counters_(values: Sequence[torch.Tensor], counters: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Write values to counters."""
    torch._foreach_copy_(list(counters), list(values))
    return counters
