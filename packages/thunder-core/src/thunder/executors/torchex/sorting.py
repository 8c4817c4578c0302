# SPDX-License-Identifier: Apache-2.0
"""torch's implementations of the primitives that order elements."""

from __future__ import annotations

import torch

from thunder.core import prims
from thunder.executors.torchex.base import torch_impl


@torch_impl(prims.sort)
def sort(
    a: torch.Tensor, dim: int = -1, descending: bool = False, stable: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The elements in order, and where they were."""
    values, indices = torch.sort(a, dim=dim, descending=descending, stable=stable)
    return values, indices
