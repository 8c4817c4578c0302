# SPDX-License-Identifier: Apache-2.0
"""Special values: which there are for a dtype, and how samples are filled with them."""

from __future__ import annotations

import math

import pytest
import torch

from thunder.core.samples import SampleInput
from thunder.tests.special import special_numbers, special_samples
from thunder.tests.target import FULL_DTYPES


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_numbers(dtype: torch.dtype) -> None:
    """Floats have NaN, infinities and both zeros, integers their greatest number; others say nothing."""
    found = special_numbers(dtype)
    if dtype.is_complex or dtype is torch.bool or (dtype.itemsize == 1 and dtype.is_floating_point):
        assert found is None
        return
    assert found.dtype is dtype
    values = found.tolist()
    if dtype.is_floating_point:
        assert any(math.isnan(x) for x in values)
        assert {math.inf, -math.inf} <= set(values)
        assert {math.copysign(1, x) for x in values if x == 0} == {1.0, -1.0}
    else:
        assert (torch.iinfo(dtype).max in values) is (dtype.itemsize >= 4)
        assert 0 in values
        assert 0 not in special_numbers(dtype, zero=False).tolist()


def test_every_pair() -> None:
    """Two tensors take every combination; masks alternate; other tensors are zero."""
    mask, index = torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.int64)
    (found,) = special_samples([SampleInput(torch.ones(2), torch.ones(2), mask, index)], torch.float32)
    a, b, where, zeros = found.args
    n = len(special_numbers(torch.float32))
    pairs = {(str(x), str(y)) for x, y in zip(a.tolist(), b.tolist())}
    assert len(pairs) == n * n
    assert where.tolist()[:3] == [True, False, True]
    assert not zeros.any()


def test_one_for_each_way_of_calling() -> None:
    """Different options are different calls, different shapes are not; what broadcasts is left out."""
    a, b = torch.ones(2), torch.ones(3)
    samples = [SampleInput(a), SampleInput(b), SampleInput(a, mode="floor"), SampleInput(a, b)]
    found = list(special_samples(samples, torch.float32))
    assert [sample.kwargs for sample in found] == [{}, {"mode": "floor"}]


def test_integers_with_zeros_and_without() -> None:
    """One cannot divide by the former."""
    with_zero, without = special_samples([SampleInput(torch.ones(2, dtype=torch.int64))], torch.int64)
    assert 0 in with_zero.args[0]
    assert 0 not in without.args[0]
