# SPDX-License-Identifier: Apache-2.0
"""Run torch in float64: the reference for what rounding is to blame for."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._pytree import tree_map

from thunder.torch.private import TorchDispatchMode

__all__ = ["InFloat64", "distance", "widened"]

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def widened(x: Any) -> Any:
    """Return a copy of a tensor, in float64 or complex128 if it is of a smaller dtype of this kind. Float8 stays."""
    return x.detach().to(_WIDE.get(x.dtype, x.dtype), copy=True) if isinstance(x, torch.Tensor) else x


class InFloat64(TorchDispatchMode):  # type: ignore[misc]
    """Runs operations with float64 in place of smaller dtypes, both of tensors and of dtypes that calls name."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*tree_map(_wide_argument, args), **tree_map(_wide_argument, kwargs or {}))


def _wide_argument(x: Any) -> Any:
    if isinstance(x, torch.dtype):
        return _WIDE.get(x, x)
    if isinstance(x, torch.Tensor) and x.dtype in _WIDE:
        return x.to(_WIDE[x.dtype])
    return x


def distance(found: Any, expected: Any) -> float:
    """Return the largest difference of two results, relative to the largest finite value of `expected`.

    For integers and booleans, return the share of elements that differ. Infinity means that other elements are infinite
    or NaN, or that the shapes differ.
    """
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        same = found == expected or (found != found and expected != expected)
        return 0.0 if same else math.inf
    if found.shape != expected.shape:
        return math.inf
    if not found.numel():
        return 0.0
    if not (found.is_floating_point() or found.is_complex()):
        return float((found != expected).double().mean())
    wide = torch.complex128 if found.is_complex() or expected.is_complex() else torch.float64
    a, b = found.detach().to(wide), expected.detach().to(wide)
    same, finite = (a == b) | (torch.isnan(a) & torch.isnan(b)), torch.isfinite(b)
    if not bool((same | (finite & torch.isfinite(a))).all()):
        return math.inf
    largest = float(torch.where(same, torch.zeros_like(a), a - b).abs().max())
    scale = float(torch.where(finite, b, torch.zeros_like(b)).abs().max())
    return largest / max(scale, torch.finfo(torch.float32).tiny)
