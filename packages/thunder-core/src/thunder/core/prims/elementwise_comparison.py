# SPDX-License-Identifier: Apache-2.0
"""Comparisons, and bitwise operations on integers and bools."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

from thunder.core.dtypes import bool8, complex64, float32
from thunder.core.prims.elementwise_base import BITS, COMPARISON, INTEGERS, KIND, ORDERED, elementwise
from thunder.core.samples import MakeTensor, SampleInput, elementwise_binary
from thunder.core.symbol import Symbol


def _of_few_values(make: MakeTensor) -> Any:
    # In this range, some of the integers are equal.
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


def _order(name: str, long_name: str, words: str, *, swapped: str) -> Symbol:
    return _comparison(
        name,
        f"Return True for each element where `{{a}}` is {words} `{{b}}`.",
        categories=ORDERED,
        refuses=complex64,
        number_fn=getattr(operator, name),
        swapped=swapped,
        torch=(f"torch.{name}", f"torch.{long_name}"),
        numpy=long_name,
    )


_equality = partial(_comparison, facts={"commutative": True})
eq = _equality(
    "eq", "Return True for each element where `{a}` equals `{b}`.", number_fn=operator.eq, swapped="eq", numpy="equal"
)
ne = _equality(
    "ne",
    "Return True for each element where `{a}` differs from `{b}`; NaN differs from every number.",
    number_fn=operator.ne,
    swapped="ne",
    torch=("torch.ne", "torch.not_equal"),
    numpy="not_equal",
)
lt = _order("lt", "less", "less than", swapped="gt")
le = _order("le", "less_equal", "at most", swapped="ge")
gt = _order("gt", "greater", "greater than", swapped="lt")
ge = _order("ge", "greater_equal", "at least", swapped="le")

_bits = partial(elementwise, categories=BITS, tags=COMPARISON, method=True, refuses=float32)
_two_bits = partial(_bits, operands=2, numbers=True, samples=lambda make: [SampleInput(5, make((2, 3)))])
_commutative_bits = partial(_two_bits, facts={"commutative": True})
_shift = partial(
    _two_bits,
    categories=INTEGERS,
    domain={"low": 0, "high": 6},
    samples=lambda make: [SampleInput(5, make((2, 3), low=0, high=6))],
)

bitwise_not = _bits(
    "bitwise_not",
    "Return each element with all bits inverted; for bools, the logical not.",
    number_fn=operator.invert,
    numpy="invert",
)
bitwise_and = _commutative_bits(
    "bitwise_and", "Return the bitwise and of `{a}` and `{b}`.", number_fn=operator.and_, numpy="bitwise_and"
)
bitwise_or = _commutative_bits(
    "bitwise_or", "Return the bitwise or of `{a}` and `{b}`.", number_fn=operator.or_, numpy="bitwise_or"
)
bitwise_xor = _commutative_bits(
    "bitwise_xor", "Return the bitwise exclusive or of `{a}` and `{b}`.", number_fn=operator.xor, numpy="bitwise_xor"
)
bitwise_left_shift = _shift("bitwise_left_shift", "Return `{a}` shifted left by `{b}` bits.", number_fn=operator.lshift)
bitwise_right_shift = _shift(
    "bitwise_right_shift", "Return `{a}` shifted right by `{b}` bits, with the same sign.", number_fn=operator.rshift
)
