# SPDX-License-Identifier: Apache-2.0
"""Kernels of shape, casting and layout primitives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from thunder.core.strides import Strides, dense_strides, ordered_strides
from thunder.runtime.kernels.table import kernel


@kernel
def broadcast_in_dim(a: torch.Tensor, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> torch.Tensor:
    """Return an expanded view of `a`, with new dimensions of length one."""
    if a.ndim and broadcast_dimensions[0] + a.ndim != len(shape):  # torch adds leading dimensions automatically
        with_ones = [1] * len(shape)
        for n, d in zip(a.shape, broadcast_dimensions):
            with_ones[d] = n
        a = a.view(with_ones)
    return a.expand(tuple(shape))


@kernel
def pad(a: torch.Tensor, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> torch.Tensor:
    """Return `a` padded with a value before, after and between its elements."""
    widths: list[int] = []
    for low, high, between in reversed(padding_config):
        if between or low < 0 or high < 0:
            break
        widths += (low, high)
    else:
        if any(widths) and not isinstance(padding_value, complex):
            return torch.nn.functional.pad(a, widths, value=padding_value)
    if any(between for _, _, between in padding_config):
        spaced = [n + max(0, n - 1) * between for n, (_, _, between) in zip(a.shape, padding_config)]
        out = torch.full(spaced, padding_value, dtype=a.dtype, device=a.device)
        out[tuple([slice(None, None, between + 1) for _, _, between in padding_config])] = a
        a = out
    if all(low == 0 and high == 0 for low, high, _ in padding_config):
        return a.clone() if not any(between for _, _, between in padding_config) else a
    if isinstance(padding_value, complex) and not padding_value.imag:
        padding_value = padding_value.real
    cropped = any(n + min(low, 0) + min(high, 0) < 0 for n, (low, high, _) in zip(a.shape, padding_config))
    if cropped or isinstance(padding_value, complex):
        return _padded(a, padding_value, padding_config)
    widths = [width for low, high, _ in reversed(padding_config) for width in (low, high)]
    return torch.nn.functional.pad(a, widths, value=padding_value)


def _padded(a: torch.Tensor, value: Any, config: Sequence[tuple[int, int, int]]) -> torch.Tensor:
    # torch's pad does not support complex values, or negative padding beyond the size.
    shape = [low + n + high for n, (low, high, _) in zip(a.shape, config)]
    out = torch.full(shape, value, dtype=a.dtype, device=a.device)
    kept = [(max(0, -low), min(n, size - low)) for n, size, (low, _, _) in zip(a.shape, shape, config)]
    if all(start < end for start, end in kept):
        inner = tuple([slice(start + low, end + low) for (start, end), (low, _, _) in zip(kept, config)])
        out[inner] = a[tuple([slice(start, end) for start, end in kept])]
    return out


@kernel
def as_strided(
    a: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Return a view of the memory of `a`."""
    if not a.is_contiguous() or (a.storage_offset() != 0 and storage_offset is not None):
        raise RuntimeError(
            f"as_strided: the tensor has strides {a.stride()} and starts at element {a.storage_offset()} of its "
            "memory. In a traced program as_strided reads a contiguous tensor that starts at element 0: call "
            ".contiguous() before it"
        )
    return a.as_strided(size, stride, storage_offset)


@kernel
def stride_order(a: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Return `a` if its strides have the given order; otherwise return a copy that has this order."""
    try:
        strides, moves = _reordered(a.shape, a.stride(), tuple(order))
    except TypeError:  # torch's symbolic sizes cannot be hashed
        strides, moves = _reordered.__wrapped__(a.shape, a.stride(), tuple(order))
    if strides is None:
        return a
    if not moves:
        return a.as_strided(a.shape, strides)
    return torch.empty_strided(a.shape, strides, dtype=a.dtype, device=a.device).copy_(a)


@functools.lru_cache(maxsize=4096)  # programs of images call it hundreds of times, with few shapes
def _reordered(shape: torch.Size, strides: Strides, order: Strides) -> tuple[Strides | None, bool]:
    """Return the strides of this order, or None if they are the given ones, and whether elements have to move."""
    new = ordered_strides(shape, order)
    if new == strides:
        return None, False
    # If only dimensions of one element have other strides, no element has to move.
    return new, dense_strides(shape, strides) != dense_strides(shape, new)


@kernel
def clone_in_order(a: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Return a copy whose strides have the given order."""
    return torch.empty_strided(a.shape, ordered_strides(a.shape, order), dtype=a.dtype, device=a.device).copy_(a)


@kernel
def assign_value(a: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a copy of the value. Both may be results with different gradients."""
    return value.detach()


@kernel
def copy_(value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Write `value` to the memory of `target`."""
    return target.copy_(value)
