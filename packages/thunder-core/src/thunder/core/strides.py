# SPDX-License-Identifier: Apache-2.0
"""The strides of dense tensors, whose elements fill their memory without gaps and overlaps."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Strides", "contiguous_strides", "dense_strides", "order_of", "ordered_strides"]

Strides = tuple[int, ...]


def contiguous_strides(shape: Sequence[int]) -> Strides:
    """Return the strides of a contiguous tensor, in the form of `dense_strides`."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step if n > 1 else 0)
        step *= n
    return tuple(reversed(strides))


def dense_strides(shape: Sequence[int], strides: Sequence[int]) -> Strides | None:
    """Return the strides of a dense tensor, with 0 for dimensions of at most one element; None if it is not dense.

    Two dense tensors of one shape have their elements at the same places if and only if these strides are equal.
    """
    step = 1
    for stride, n in sorted((stride, n) for n, stride in zip(shape, strides) if n > 1):
        if stride != step:
            return None
        step *= n
    return tuple([stride if n > 1 else 0 for n, stride in zip(shape, strides)])


def order_of(strides: Sequence[int]) -> tuple[int, ...]:
    """Return the rank of each dimension's stride, 0 for the smallest. Of equal strides, the last is the smallest."""
    inner_to_outer = sorted(range(len(strides)), key=lambda d: (strides[d], -d))
    return tuple([inner_to_outer.index(d) for d in range(len(strides))])


def ordered_strides(shape: Sequence[int], order: Sequence[int]) -> Strides:
    """Return the strides of a dense tensor in which dimension i has the `order[i]`-th smallest stride."""
    strides, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=lambda d: order[d]):
        strides[d] = step
        step *= max(shape[d], 1)
    return tuple(strides)
