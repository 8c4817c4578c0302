# SPDX-License-Identifier: Apache-2.0
"""Questions about values that every layer of capture asks."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["is_mask", "is_mask_class", "is_tensor", "module_of"]


def module_of(cls: type) -> str:
    """Return the name of a class's module; nothing where that is a descriptor for instances (functions of Cython)."""
    name: Any = cls.__module__
    return name if isinstance(name, str) else ""


def is_mask_class(cls: type) -> bool:
    """Check whether it is torch's class of causal masks."""
    return cls.__name__ == "CausalBias" and cls.__module__ == "torch.nn.attention.bias"


def is_mask(x: Any) -> bool:
    """Check whether it says the shape and corner of a causal mask: a tensor in name, with nothing in its memory."""
    return is_mask_class(type(x))


def is_tensor(x: Any) -> bool:
    """Check whether it is a tensor with something in it."""
    return isinstance(x, torch.Tensor) and not is_mask(x)
