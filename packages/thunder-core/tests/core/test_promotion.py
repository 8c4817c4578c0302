# SPDX-License-Identifier: Apache-2.0
"""Type promotion is torch's: every pair of dtypes and dimension classes, and random lists of operands."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder.core import dtypes
from thunder.core.dtypes import bool8, complex64, float32, float64, int64, to_torch_dtype
from thunder.core.promotion import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from thunder.core.promotion import default_dtype, elementwise_type_promotion, promote, result_type
from thunder.core.proxies import TensorProxy

DTYPES = [d for d in dtypes.all_dtypes if hasattr(torch, d.name)]
NUMBERS = [True, 3, 2.5, 1j]


def proxy(tensor: torch.Tensor) -> TensorProxy:
    """The proxy that stands for a tensor."""
    return TensorProxy("a", shape=tensor.shape, device="cpu", dtype=tensor.dtype)


def in_torch(*operands: Any) -> Any:
    """torch's answer for two operands, or the type of its error."""
    try:
        return torch.result_type(*operands)
    except (RuntimeError, TypeError) as error:
        return type(error)


def ours(*operands: Any) -> Any:
    """The same of ours."""
    try:
        return to_torch_dtype(result_type(*[proxy(x) if isinstance(x, torch.Tensor) else x for x in operands]))
    except (RuntimeError, TypeError) as error:
        return type(error)


def operands_of(d: dtypes.dtype) -> list[torch.Tensor]:
    """A tensor with dimensions and one without."""
    return [torch.empty(shape, dtype=to_torch_dtype(d), device="meta") for shape in ((2,), ())]


@pytest.mark.parametrize("a", DTYPES, ids=str)
def test_every_pair(a: dtypes.dtype) -> None:
    """Two tensors with and without dimensions, a tensor and a number, either way round."""
    for x in operands_of(a):
        for y in [y for b in DTYPES for y in operands_of(b)] + NUMBERS:
            assert ours(x, y) == in_torch(x, y), f"{x} and {y}"
            assert ours(y, x) == in_torch(y, x), f"{y} and {x}"


COMMON = ["bool", "uint8", "int32", "int64", "bfloat16", "float16", "float32", "float64", "complex64", "complex128"]
tensors = st.builds(
    lambda name, rank: torch.empty((2,) * rank, dtype=getattr(torch, name), device="meta"),
    st.sampled_from(COMMON),
    st.integers(0, 2),
)


@given(st.lists(tensors | st.sampled_from(NUMBERS), min_size=3, max_size=5))
def test_many_operands(operands: list[Any]) -> None:
    """The order does not matter, and `where` has the same rules."""
    a, b = operands[:2]
    condition = torch.empty((2, 2), dtype=torch.bool, device="meta")
    assert ours(a, b) == torch.where(condition, a, b).dtype
    assert ours(*operands) == ours(*reversed(operands))


@given(tensors, tensors, tensors)
def test_three_tensors(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """`addcmul` promotes all three at once."""
    if all(x.dtype is torch.bool for x in (a, b, c)):
        return  # torch has no addcmul of truth values
    assert ours(a, b, c) == torch.addcmul(a, b, c).dtype


@given(tensors, st.sampled_from(NUMBERS), st.sampled_from(NUMBERS))
def test_a_tensor_and_two_numbers(a: torch.Tensor, low: Any, high: Any) -> None:
    """`clamp` promotes with both bounds."""
    if a.dtype.is_complex or complex in (type(low), type(high)) or ours(a, low, high) is torch.bool:
        return  # they have no order
    if not a.dtype.is_floating_point:
        assert ours(a, low, high) == torch.clamp(a, low, high).dtype


def test_the_default_type_counts() -> None:
    """What a Python float is."""
    x = torch.empty(2, dtype=torch.int32, device="meta")
    for default in (torch.float64, torch.bfloat16, torch.float32):
        before = torch.get_default_dtype()
        torch.set_default_dtype(default)
        try:
            assert to_torch_dtype(default_dtype()) is default
            assert ours(x, 2.5) == in_torch(x, 2.5) == default
            assert ours(x, 1j) == in_torch(x, 1j)
        finally:
            torch.set_default_dtype(before)


def test_what_derives_from_numbers_is_one() -> None:
    """Enumerations and NumPy's scalars."""

    class Size(enum.IntEnum):
        SMALL = 1

    x = proxy(torch.empty(2, dtype=torch.bfloat16, device="meta"))
    assert result_type(x, np.float64(2)) is x.dtype
    assert result_type(Size.SMALL) is int64
    assert result_type(np.complex128(2)) is complex64


def test_nothing_to_promote() -> None:
    """None is passed over; something else is named."""
    with pytest.raises(TypeError, match="at least one tensor or number"):
        result_type(None)
    with pytest.raises(TypeError, match="expected tensors and numbers, but got str: 'a'"):
        result_type(1, "a")
    assert result_type(None, 2) is int64


def test_kinds() -> None:
    """What each kind of operation computes in and answers."""
    i, f, c, b = (TensorProxy("a", shape=(2,), device="cpu", dtype=d) for d in (int64, float64, complex64, bool8))
    expected = {
        (KIND.DEFAULT, i): (int64, int64),
        (KIND.INT_TO_FLOAT, i): (float32, float32),
        (KIND.INT_TO_FLOAT, f): (float64, float64),
        (KIND.ALWAYS_BOOL, f): (float64, bool8),
        (KIND.COMPLEX_TO_FLOAT, c): (complex64, float32),
        (KIND.BOOL_TO_LONG, b): (int64, int64),
        (KIND.NUMERIC_TO_INT, b): (int64, int64),
        (KIND.NUMERIC_TO_INT, f): (float64, float64),
    }
    for (kind, x), answer in expected.items():
        assert elementwise_type_promotion(x, type_promotion_kind=kind) == answer, kind
    assert elementwise_type_promotion(i, f, type_promotion_kind=KIND.PRESERVE) == (int64, int64)
    assert elementwise_type_promotion(i, f) == (float64, float64)


def test_promote_is_torchs() -> None:
    """By dtypes alone."""
    assert promote(int64, float32) is float32
    assert promote(float32, float32) is float32
    with pytest.raises(RuntimeError, match="Promotion for Float8"):
        promote(dtypes.float8_e4m3fn, float32)
