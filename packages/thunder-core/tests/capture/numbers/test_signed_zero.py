# SPDX-License-Identifier: Apache-2.0
"""Floats that are equal and differ: 0.0 and -0.0, infinities, NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder

X = torch.ones(3)
VALUES = (1.0, 2.0, 0.0, -0.0, 0.0, math.inf, -math.inf, math.nan, -2.0, -0.0)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, v: 1 / (x * v) if v != 0 else x * math.copysign(1.0, v),
        lambda x, v: 1 / (x * v),
        lambda x, v: x * len(f"{v * 0.0}") if math.isfinite(v) else x,
        lambda x, v: x * len(str(v)),
        lambda x, v: 1 / (x * max(v, 0.0)),
        lambda x, v: x * 2 if v > 0 else x * 3,
        lambda x, v: x * 2 if v == v else x * 3,
    ],
)
def test_floats_that_are_equal_and_differ(fn: Callable[..., Any], cache: Any) -> None:
    """As arguments, from the start symbolic or when they have changed."""
    jitted = thunder.jit(fn, cache=cache)
    for v in VALUES * 2:
        torch.testing.assert_close(jitted(X, v), fn(X, v), equal_nan=True)
    assert thunder.cache_hits(jitted) > 8
