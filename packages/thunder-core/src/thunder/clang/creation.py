# SPDX-License-Identifier: Apache-2.0
"""Creation of tensors in the core language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.clang.base import clangop, maybe_convert_to_dtype
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy, number_type, number_value

__all__ = ["full", "full_like", "iota"]


@clangop()
def full(shape: Sequence[int], fill_value: Any, *, device: Any, dtype: Any) -> Any:
    """Return a tensor of `shape` in which every element is `fill_value`."""
    kind: dtypes.dtype = dtypes.to_dtype(dtype)  # type: ignore[assignment]
    value = number_value(fill_value)
    if dtypes.category(number_type(fill_value)) > kind.category:
        # Any number converts to bool here. For other numbers of a higher category, e.g. a complex number in a real
        # tensor, the primitive raises an error.
        value = bool(value) if kind.category == dtypes.BOOL else value
    return prims.full(tuple(shape), maybe_convert_to_dtype(value, kind), device=devices.to_device(device), dtype=kind)


@clangop()
def full_like(a: TensorProxy, fill_value: Any, *, device: Any = None, dtype: Any = None) -> Any:
    """Return a tensor of the shape of `a` filled with `fill_value`; device and dtype default to those of `a`."""
    return full(a.shape, fill_value, device=device or a.device, dtype=dtype or a.dtype)


@clangop()
def iota(length: int, *, start: int = 0, step: int = 1, device: Any, dtype: Any = dtypes.int64) -> Any:
    """Return the integers start, start + step … as a tensor of `length` elements."""
    return prims.iota(length, start=start, step=step, device=devices.to_device(device), dtype=dtypes.to_dtype(dtype))
