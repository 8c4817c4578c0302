# SPDX-License-Identifier: Apache-2.0
"""The saved tensors of a node, read in the layout in which the program saved them.

Hooks (`torch.autograd.graph.saved_tensors_hooks`) may return tensors with other strides. `save_on_cpu`, for example,
returns contiguous ones. A kernel may rely on the strides that the forward kernel wrote: torch's efficient attention
would read other memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core.strides import Strides, dense_strides
from thunder.runtime.torch_private import saved_tensor_hooks

__all__ = ["load", "save"]


def save(node: Any, tensors: Sequence[Any]) -> None:
    """Save tensors on a node during its forward, and their strides if hooks are active."""
    if saved_tensor_hooks():
        node.strides = [x.stride() for x in tensors]
    node.to_save = tuple(tensors)


def load(node: Any) -> list[Any]:
    """Return the saved tensors of a node."""
    tensors = list(node.saved_tensors)
    strides = getattr(node, "strides", None)
    return tensors if strides is None else [*map(_in_layout, tensors, strides)]


def _in_layout(x: torch.Tensor, strides: Strides) -> torch.Tensor:
    """Copy what hooks return for a dense tensor, unless it has the strides. Kernels write only dense tensors."""
    if x.stride() == strides or x.ndim != len(strides) or dense_strides(x.shape, strides) is None:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)
