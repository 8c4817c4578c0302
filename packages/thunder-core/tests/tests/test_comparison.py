# SPDX-License-Identifier: Apache-2.0
"""What is told apart, what is close enough, and what the message says."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from thunder.tests.comparison import Mismatch, compare, default_tolerance, describe
from thunder.tests.target import FULL_DTYPES

NAN, INF = math.nan, math.inf


def t(*values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (t(1.0, NAN, INF), t(1.0, NAN, INF)),
        (t(1.0 + 1e-7), t(1.0)),
        (t(3, dtype=torch.int64), t(3, dtype=torch.int64)),
        (t(True, dtype=torch.bool), t(True, dtype=torch.bool)),
        (t(1 + 1j, dtype=torch.complex64), t(1 + 1j, dtype=torch.complex64)),
        (t(0.0), t(-0.0)),
        ((t(1.0), [t(2.0)]), (t(1.0), [t(2.0)])),
        ((1, 2), torch.Size([1, 2])),
        ({"a": t(1.0), "b": None}, {"a": t(1.0), "b": None}),
        (1.5, 1.5 * (1 + 1e-9)),
        (NAN, NAN),
        (2, 2),
        (torch.float32, torch.float32),
    ],
    ids=str,
)
def test_the_same(actual: Any, expected: Any) -> None:
    """Equal, or as close as the dtype allows."""
    compare(actual, expected)


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        (t(1.0), t(2.0), "1 of 1 elements of result .* differ: first at \\(0,\\), where it is 1.0 and should be 2.0"),
        (t(1.0, 5.0), t(1.0, 2.0), "the largest difference is 3"),
        (t(1.0), t(1.0, 2.0), "the shape of result is \\(1,\\), but should be \\(2,\\)"),
        (t(1.0), t(1.0, dtype=torch.float64), "the dtype of result is torch.float32, but should be torch.float64"),
        (t(1.0, NAN), t(1.0, 2.0), "differ"),
        (t(1.0, 2.0), t(1.0, NAN), "differ"),
        (t(INF), t(-INF), "differ"),
        (t(3, dtype=torch.int64), t(4, dtype=torch.int64), "where it is 3 and should be 4"),
        (t(1j, dtype=torch.complex64), t(1, dtype=torch.complex64), "differ"),
        ((t(1.0),), (t(1.0), t(2.0)), "should be \\(cpu float32\\[1\\], cpu float32\\[1\\]\\)"),
        ((t(1.0), t(3.0)), (t(1.0), t(2.0)), "result\\[1\\]"),
        ({"a": t(1.0)}, {"b": t(1.0)}, "should be \\{'b': cpu float32\\[1\\]\\}"),
        (1.0, t(1.0), "result is 1.0, but should be cpu float32\\[1\\]"),
        (2, 2.0, "result is 2, but should be 2.0"),
        (True, 1, "result is True, but should be 1"),
        (2.0, 2.1, "should be 2.1"),
        (None, t(1.0), "result is None"),
    ],
    ids=str,
)
def test_different(actual: Any, expected: Any, message: str) -> None:
    """Every kind of difference is found and told."""
    with pytest.raises(Mismatch, match=message):
        compare(actual, expected)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype_is_compared(dtype: torch.dtype) -> None:
    """An element that is off by a lot is found in all of them."""
    ones, other = torch.ones(3).to(dtype), torch.tensor([1.0, 1.0, 0.0]).to(dtype)
    if dtype is torch.float8_e8m0fnu:
        other = torch.tensor([1.0, 1.0, 16.0]).to(dtype)  # it has no zero
    compare(ones, ones.clone())
    with pytest.raises(Mismatch):
        compare(ones, other)


def test_signs_of_zeros_when_asked() -> None:
    """Where the edge cases are what is tested."""
    with pytest.raises(Mismatch, match=r"has 0.0 at \(0,\), where torch has -0.0"):
        compare(t(0.0), t(-0.0), signed_zeros=True)


def test_as_good_as_torch_is_good_enough() -> None:
    """A result that is no further from the float64 one than torch's passes, one that is much further does not."""
    truth, theirs = 1.0, 1.0001
    compare(t(0.9999), t(theirs), truth=lambda: t(truth, dtype=torch.float64))
    with pytest.raises(Mismatch):
        compare(t(0.9), t(theirs), truth=lambda: t(truth, dtype=torch.float64))


def test_nearer_than_an_overflow() -> None:
    """Where torch overflowed on the way and the truth is finite, being close to the truth is right."""
    compare(t(3.0), t(INF), truth=lambda: t(3.0, dtype=torch.float64))
    for actual, theirs, truth in ((4.0, INF, 3.0), (INF, 1.0, 3.0), (3.0, 1.0, INF)):
        with pytest.raises(Mismatch):
            compare(t(actual), t(theirs), truth=lambda value=truth: t(value, dtype=torch.float64))


def test_a_truth_that_cannot_be_had() -> None:
    """Leaves the plain tolerance."""

    def fails() -> Any:
        raise TypeError("no float64 here")

    compare(t(1.0), t(1.0 + 1e-7), truth=fails)
    with pytest.raises(Mismatch):
        compare(t(1.0), t(1.1), truth=fails)
    with pytest.raises(Mismatch):
        compare(t(1.0), t(1.1), truth=lambda: (t(1.0, dtype=torch.float64), 1))


def test_only_metadata_when_values_say_nothing() -> None:
    """For what has random or undefined values."""
    compare((t(1.0), 3), (t(5.0), 4), values=False)
    with pytest.raises(Mismatch, match="dtype"):
        compare(t(1.0), t(5.0, dtype=torch.float64), values=False)


def test_tolerances() -> None:
    """Integers are exact; a profile may widen."""
    assert default_tolerance(torch.int8) == (0.0, 0.0)
    compare(t(1.0), t(1.05), tolerance=lambda dtype: (0.1, 0.0))


def test_descriptions() -> None:
    """Arguments in a few words."""
    assert describe(torch.ones(2, 3).mT) == "cpu float32[3, 2] with strides [1, 3]"
    assert describe((torch.ones(2), 1, [None])) == "(cpu float32[2], 1, [None])"
    assert describe((1,)) == "(1,)"
    assert describe("x" * 100) == "a str"
