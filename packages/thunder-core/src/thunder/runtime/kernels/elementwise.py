# SPDX-License-Identifier: Apache-2.0
"""Kernels of elementwise primitives whose torch functions have other signatures.

The main difference is numbers: a primitive accepts a number as either operand, but most of torch's binary functions do
not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder.runtime.kernels.table import kernel
from thunder.runtime.torch_originals import original_torch

__all__ = ["accepting_numbers"]


def _tensors(a: Any, b: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert both operands to tensors. A number becomes a 0-dimensional tensor of the other operand's dtype."""
    if not isinstance(a, torch.Tensor):
        return torch.full((), a, dtype=b.dtype, device=b.device), b
    if not isinstance(b, torch.Tensor):
        return a, torch.full((), b, dtype=a.dtype, device=a.device)
    return a, b


@kernel
def div(a: Any, b: Any) -> torch.Tensor:
    """Return the quotient. A quotient of integers is truncated towards zero."""
    kind = (a if isinstance(a, torch.Tensor) else b).dtype
    if kind.is_floating_point or kind.is_complex:
        return torch.div(a, b)
    return torch.div(a, b, rounding_mode="trunc")


@kernel
def isclose(
    input: torch.Tensor, other: torch.Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> torch.Tensor:
    """Check whether numbers are close. With `equal_nan`, torch 2.11 rejects a second operand with more elements."""
    if equal_nan and input.shape != other.shape:
        input, other = torch.broadcast_tensors(input, other)
    return torch.isclose(input, other, rtol, atol, equal_nan)


@kernel
def maximum(a: Any, b: Any) -> torch.Tensor:
    """Return the elementwise maximum."""
    return _extreme(a, b, torch.maximum, torch.clamp_min)


@kernel
def minimum(a: Any, b: Any) -> torch.Tensor:
    """Return the elementwise minimum."""
    return _extreme(a, b, torch.minimum, torch.clamp_max)


def _extreme(a: Any, b: Any, of_tensors: Callable[..., Any], of_number: Callable[..., Any]) -> torch.Tensor:
    if not isinstance(a, torch.Tensor):
        a, b = b, a
    if isinstance(b, torch.Tensor) or a.dtype is torch.bool:
        return of_tensors(*_tensors(a, b))  # type: ignore[no-any-return]
    return of_number(a, b)  # type: ignore[no-any-return]


def accepting_numbers(name: str, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the kernel `name`: a binary function of torch, whose operands may also be numbers."""

    def run(a: Any, b: Any) -> torch.Tensor:
        return function(*_tensors(a, b))

    run.__name__ = name
    run.__doc__ = f"Run `torch.{name}` of tensors and numbers."
    return run


for _name in ("fmod", "atan2", "hypot", "copysign", "nextafter", "gcd", "igamma", "igammac"):
    kernel(accepting_numbers(_name, getattr(original_torch, _name)))


@kernel
def missing_gradient(a: torch.Tensor, of: str) -> torch.Tensor:
    """Raise an error when a gradient that torch does not implement is needed."""
    raise NotImplementedError(f"the derivative for '{of}' is not implemented.")
