# SPDX-License-Identifier: Apache-2.0
"""Special values, at which elementwise functions often have errors. Samples contain them in every combination."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch

from thunder.core.pytree import tree_leaves
from thunder.core.samples import SampleInput
from thunder.tests.running import map_tensors, tensors_in

__all__ = ["special_numbers", "special_samples"]

# Signed zeros, halves (rounding), infinities, NaN, a denormal number, and a number whose square overflows.
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, 3.0, math.inf, -math.inf, math.nan, 1e-40, 1e30)
# The least integer is missing, because dividing it by -1 crashes the process.
_INTEGERS = (0, 1, -1, 2, -2, 3, -3, 7, -7)


def special_numbers(dtype: torch.dtype, *, zero: bool = True) -> torch.Tensor | None:
    """Return the special values of a dtype; None if there are none."""
    if dtype.is_floating_point and dtype.itemsize > 1:
        return torch.tensor([x for x in _FLOATS if zero or x != 0], dtype=torch.float64).to(dtype)
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return None
    info = torch.iinfo(dtype)
    # C++ promotes narrow integers, so overflow depends on how an expression is written.
    ends = (info.max,) if dtype.itemsize >= 4 else ()
    found = [x for x in (*_INTEGERS, *ends) if info.min <= x and (zero or x)]
    return torch.tensor(found, dtype=torch.int64 if dtype is not torch.uint64 else dtype).to(dtype)


def special_samples(samples: Iterable[SampleInput], dtype: torch.dtype) -> Iterator[SampleInput]:
    """Yield the samples with special values in their tensors of `dtype`. Yield one sample for each different signature.

    Two tensors contain every pair of values. Integers cannot be divided by zero, so there are samples with and without
    zeros.
    """
    seen: set[str] = set()
    for sample in samples:
        shapes = {tuple(x.shape) for x in tensors_in(sample)}
        call = repr(
            [x if not isinstance(x, torch.Tensor) else x.dtype for x in tree_leaves((sample.args, sample.kwargs))]
        )
        if len(shapes) != 1 or call in seen:
            continue
        seen.add(call)
        for zero in (True, False):
            numbers = special_numbers(dtype, zero=zero)
            if numbers is not None:
                yield _filled(sample, dtype, numbers)
            if dtype.is_floating_point:
                break


def _filled(sample: SampleInput, dtype: torch.dtype, numbers: torch.Tensor) -> SampleInput:
    n, place = len(numbers), [0]

    def fill(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is torch.bool and dtype is not torch.bool:
            return (torch.arange(n * n) % 2 == 0).to(x.device)
        if x.dtype is not dtype:
            return x.new_zeros(n * n)
        place[0] += 1
        values = numbers.repeat(n) if place[0] % 2 else numbers.repeat_interleave(n)
        return values.to(x.device)

    return map_tensors(sample, fill)
