# SPDX-License-Identifier: Apache-2.0
"""Vectors of memory in kernels whose strides are not multiples of 16.

Triton compiles a kernel for numbers that are multiples of 16 or not. If a stride is another even number, it does not
know that rows begin at multiples of a short vector, and loads single elements.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

__all__ = ["longest", "multiple"]


@triton.jit
def multiple(number, UNIT: tl.constexpr):
    """Return `number`, a multiple of UNIT, such that the compiler knows that it is one."""
    return number // UNIT * UNIT


def longest(dtype: torch.dtype, *numbers: int) -> int:
    """Return the elements of the longest vector of at most 16 bytes of which all numbers are multiples."""
    return math.gcd(16 // dtype.itemsize, *numbers)
