# SPDX-License-Identifier: Apache-2.0
"""Comparisons, and operations on the bits of integers and on truth values."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

from thunder.core.dtypes import bool8, complex64, float32
from thunder.core.prims.elementwise_base import BITS, COMPARISON, INTEGERS, KIND, ORDERED, elementwise
from thunder.core.samples import MakeTensor, SampleInput, elementwise_binary


def _of_few_values(make: MakeTensor) -> Any:
    # So that some are equal.
    yield from elementwise_binary(make, low=-2, high=2)
    yield SampleInput(make((4, 4), low=-2, high=2), 0)


_comparison = partial(
    elementwise,
    operands=2,
    out=bool8,
    tags=COMPARISON,
    promotion=KIND.ALWAYS_BOOL,
    method=True,
    numbers=True,
    samples=_of_few_values,
)
_order = partial(_comparison, categories=ORDERED, refuses=complex64)

eq = _comparison(
    "eq",
    "Return where `{a}` equals `{b}`.",
    number_fn=operator.eq,
    swapped="eq",
    numpy="equal",
    facts={"commutative": True},
)
ne = _comparison(
    "ne",
    "Return where `{a}` differs from `{b}`; NaN differs from everything.",
    number_fn=operator.ne,
    swapped="ne",
    torch=("torch.ne", "torch.not_equal"),
    numpy="not_equal",
    facts={"commutative": True},
)
lt = _order(
    "lt",
    "Return where `{a}` is less than `{b}`.",
    number_fn=operator.lt,
    swapped="gt",
    torch=("torch.lt", "torch.less"),
    numpy="less",
)
le = _order(
    "le",
    "Return where `{a}` is at most `{b}`.",
    number_fn=operator.le,
    swapped="ge",
    torch=("torch.le", "torch.less_equal"),
    numpy="less_equal",
)
gt = _order(
    "gt",
    "Return where `{a}` is greater than `{b}`.",
    number_fn=operator.gt,
    swapped="lt",
    torch=("torch.gt", "torch.greater"),
    numpy="greater",
)
ge = _order(
    "ge",
    "Return where `{a}` is at least `{b}`.",
    number_fn=operator.ge,
    swapped="le",
    torch=("torch.ge", "torch.greater_equal"),
    numpy="greater_equal",
)

_bits = partial(elementwise, categories=BITS, tags=COMPARISON, method=True, refuses=float32)
_two_bits = partial(_bits, operands=2, numbers=True, samples=lambda make: [SampleInput(5, make((2, 3)))])
_shift = partial(
    _two_bits,
    categories=INTEGERS,
    domain={"low": 0, "high": 6},
    samples=lambda make: [SampleInput(5, make((2, 3), low=0, high=6))],
)

bitwise_not = _bits(
    "bitwise_not",
    "Return each bit turned over; of truth values the opposite.",
    number_fn=operator.invert,
    numpy="invert",
)
bitwise_and = _two_bits(
    "bitwise_and",
    "Return the bits that both have.",
    number_fn=operator.and_,
    numpy="bitwise_and",
    facts={"commutative": True},
)
bitwise_or = _two_bits(
    "bitwise_or",
    "Return the bits that one of them has.",
    number_fn=operator.or_,
    numpy="bitwise_or",
    facts={"commutative": True},
)
bitwise_xor = _two_bits(
    "bitwise_xor",
    "Return the bits that just one of them has.",
    number_fn=operator.xor,
    numpy="bitwise_xor",
    facts={"commutative": True},
)
bitwise_left_shift = _shift(
    "bitwise_left_shift",
    "Return `{a}` moved to the left by `{b}` bits.",
    number_fn=operator.lshift,
)
bitwise_right_shift = _shift(
    "bitwise_right_shift",
    "Return `{a}` moved to the right by `{b}` bits; the sign stays.",
    number_fn=operator.rshift,
)
