# SPDX-License-Identifier: Apache-2.0
"""Checks on values that all layers of capture use."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["is_mask", "is_mask_class", "is_tensor", "model_of", "module_of"]


def module_of(cls: type) -> str:
    """Return the name of a class's module, or "" if `__module__` is a descriptor (as for Cython functions)."""
    name: Any = cls.__module__
    return name if isinstance(name, str) else ""


def model_of(x: Any) -> Any:
    """Return the model that a jitted module runs. They have the same `__dict__`. Return other values themselves."""
    slot = type(x).__dict__.get("_thunder_model")
    return x if slot is None else slot.__get__(x)


def is_mask_class(cls: type) -> bool:
    """Check whether `cls` is torch's class of causal masks."""
    return cls.__name__ == "CausalBias" and cls.__module__ == "torch.nn.attention.bias"


def is_mask(x: Any) -> bool:
    """Check for a causal mask: a tensor subclass that stores only its shape and corner, and no data."""
    return is_mask_class(type(x))


def is_tensor(x: Any) -> bool:
    """Check for a tensor with data; causal masks have none."""
    return isinstance(x, torch.Tensor) and not is_mask(x)
