# SPDX-License-Identifier: Apache-2.0
"""Operations on the bits of integers, and on truth values."""

from __future__ import annotations

from typing import Any

from thunder.core.prims.base import prim
from thunder.core.prims.elementwise_base import COMPARISON, binary_samples, integer_meta, unary_samples
from thunder.core.proxies import TensorProxy


@prim(torch="torch.bitwise_not", tags=COMPARISON)
def bitwise_not(a: TensorProxy, /) -> TensorProxy:
    """Each bit turned over."""
    return integer_meta("bitwise_not", a, bools=True)


@prim(torch="torch.bitwise_and", tags=COMPARISON)
def bitwise_and(a: Any, b: Any, /) -> TensorProxy:
    """The bits that both have."""
    return integer_meta("bitwise_and", a, b, bools=True)


@prim(torch="torch.bitwise_or", tags=COMPARISON)
def bitwise_or(a: Any, b: Any, /) -> TensorProxy:
    """The bits that one of them has."""
    return integer_meta("bitwise_or", a, b, bools=True)


@prim(torch="torch.bitwise_xor", tags=COMPARISON)
def bitwise_xor(a: Any, b: Any, /) -> TensorProxy:
    """The bits that just one of them has."""
    return integer_meta("bitwise_xor", a, b, bools=True)


@prim(torch="torch.bitwise_left_shift", tags=COMPARISON)
def bitwise_left_shift(a: Any, b: Any, /) -> TensorProxy:
    """`a` moved to the left by `b` bits."""
    return integer_meta("bitwise_left_shift", a, b, bools=False)


@prim(torch="torch.bitwise_right_shift", tags=COMPARISON)
def bitwise_right_shift(a: Any, b: Any, /) -> TensorProxy:
    """`a` moved to the right by `b` bits; the sign stays."""
    return integer_meta("bitwise_right_shift", a, b, bools=False)


bitwise_not.samples(unary_samples())
for _bitwise in (bitwise_and, bitwise_or, bitwise_xor):
    _bitwise.samples(binary_samples(numbers=True))
for _shift in (bitwise_left_shift, bitwise_right_shift):
    _shift.samples(binary_samples(low=0, high=6, numbers=True))
