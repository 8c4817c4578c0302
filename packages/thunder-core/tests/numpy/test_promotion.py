# SPDX-License-Identifier: Apache-2.0
"""The NumPy language promotes as NumPy does: every pair of dtypes, and Python numbers of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from thunder.core import dtypes
from thunder.core.dtypes import dtype
from thunder.core.proxies import TensorProxy
from thunder.numpy.promotion import inexact_type, promote_types, result_type

SHARED = [
    d
    for d in dtypes.all_dtypes
    if d.name in {"bool", "float16", "float32", "float64", "complex64", "complex128"} or "int" in d.name
]


def of(d: dtype, rank: int = 1) -> TensorProxy:
    """An array of that dtype."""
    return TensorProxy("a", shape=(2,) * rank, device="cpu", dtype=d)


@pytest.mark.parametrize("a", SHARED, ids=str)
def test_pairs(a: dtype) -> None:
    """Two arrays, of whatever number of dimensions."""
    for b in SHARED:
        expected = str(np.promote_types(a.name, b.name))
        assert promote_types(a, b).name == expected, f"{a} and {b}"
        assert result_type(of(a), of(b, 0)).name == expected, f"{a} and {b} without dimensions"


@pytest.mark.parametrize("number", [True, 3, 2.5, 1j], ids=["bool", "int", "float", "complex"])
def test_numbers_are_weak(number: Any) -> None:
    """A number takes the array's dtype where that can hold its kind."""
    for a in SHARED:
        expected = str(np.result_type(np.zeros(2, a.name), number))
        assert result_type(of(a), number).name == expected, str(a)
        assert result_type(number, of(a)).name == expected, str(a)
    assert result_type(number).name == str(np.result_type(number))


def test_functions_of_real_numbers() -> None:
    """What exp of an array is computed in."""
    for a in SHARED:
        assert inexact_type(a).name == str(np.exp(np.zeros(1, a.name)).dtype), str(a)


def test_what_is_no_array() -> None:
    """Strings and the like are named."""
    with pytest.raises(TypeError, match="expected arrays and numbers, but got str: 'a'"):
        result_type(of(dtypes.int32), "a")
