# SPDX-License-Identifier: Apache-2.0
"""Reductions over any dimensions of any tensor as torch, random ones too; overloads; edges that samples do not have."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import result_or_error

import thunder
import thunder.torch as ltorch

SHAPES = st.lists(st.integers(0, 3), max_size=4)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool, torch.complex64]
OVER_DIMS = [
    "sum",
    "nansum",
    "mean",
    "nanmean",
    "any",
    "all",
    "amax",
    "amin",
    "var",
    "std",
    "logsumexp",
    "count_nonzero",
]


@st.composite
def calls(draw: Any) -> tuple[str, torch.Tensor, list[Any]]:
    """A reduction, a tensor and its arguments, some of which torch refuses."""
    shape = draw(SHAPES)
    dtype = draw(st.sampled_from(DTYPES))
    rank = max(len(shape), 1)
    dims = draw(st.one_of(st.integers(-rank - 1, rank), st.lists(st.integers(-rank, rank - 1), max_size=3).map(tuple)))
    x = torch.randint(0, 4, shape).to(dtype)
    name = draw(st.sampled_from(OVER_DIMS))
    return name, x, [dims] if draw(st.booleans()) else [dims, True]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls())
def test_against_torch(by_primitives: Any, call: tuple[str, torch.Tensor, list[Any]]) -> None:
    """Results, dtypes and refusals, of what each comes down to."""
    name, x, args = call
    if name in ("var", "std") and len(args) == 2:
        args = [args[0], None, True]
    fn = getattr(torch, name)
    expected = result_or_error(lambda: fn(x, args[0], keepdim=True) if len(args) > 1 else fn(x, args[0]))
    actual = result_or_error(by_primitives, getattr(ltorch, name), x, *args)
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        torch.testing.assert_close(actual, expected, equal_nan=True)
    elif isinstance(actual, torch.Tensor):
        # torch refuses what has no elements, or stumbles over an empty list of dimensions, now and then.
        assert 0 in x.shape or args[0] == () or len(x.shape) == 0, (call, expected)
    elif isinstance(expected, torch.Tensor):
        assert 0 in x.shape, (call, actual)


def test_the_spellings_of_moments(as_eager: Any, randn: Any) -> None:
    """`unbiased` by position, by name and instead of the dimension; `correction`; not both."""
    x = randn(3, 4)
    for fn in (torch.var, torch.std):
        as_eager(lambda x: fn(x, False), x)
        as_eager(lambda x: fn(x, 1, False), x)
        as_eager(lambda x: fn(x, 1, False, True), x)
        as_eager(lambda x: fn(x, dim=(0, 1), unbiased=False), x)
        as_eager(lambda x: fn(x, 1, correction=0.5, keepdim=True), x)
    as_eager(lambda x: torch.var_mean(x, 1, False), x)
    as_eager(lambda x: torch.std_mean(x, correction=2), x)
    with pytest.raises(TypeError, match="either `unbiased` or `correction`"):
        ltorch.var(x.detach(), 1, True, correction=1)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_moments_without_freedom(as_eager: Any, randn: Any) -> None:
    """Gradients where nothing is left to divide by, and at no variance, as torch defines them."""
    x = randn(3, 4)
    as_eager(lambda x: x.var(0, correction=3), x)
    as_eager(lambda x: x.var(correction=12), x)
    as_eager(lambda x: x[:1].var(0), x)
    as_eager(lambda x: x[0, 0].var(), x)
    as_eager(lambda x: (x * 0).std(0), x)
    as_eager(lambda x: x.std(0, correction=5), x)


def test_logsumexp_of_infinities(as_eager: Any) -> None:
    """-inf everywhere, inf somewhere, NaN, large numbers."""
    inf, nan = math.inf, math.nan
    for values in ([-inf, -inf], [inf, 1.0], [inf, inf], [-inf, 1.0], [nan, 1.0], [1000.0, 1000.0]):
        as_eager(lambda x: x.logsumexp(0), torch.tensor(values, requires_grad=True))


def test_products_with_zeros(as_eager: Any) -> None:
    """The gradient of a product with no zero, one and two."""
    x = torch.tensor([[2.0, 3.0, 4.0], [0.0, 3.0, 4.0], [0.0, 0.0, 4.0]], dtype=torch.float64, requires_grad=True)
    as_eager(lambda x: x.prod(1), x)
    as_eager(lambda x: x.prod(), x)


def test_dtypes_that_are_asked_for(as_eager: Any, by_primitives: Any, randn: Any) -> None:
    """The sum is taken in that type: integers are cut before, truth values are whether there is anything."""
    x = randn(3, 4, dtype=torch.float32)
    for dtype in (torch.float64, torch.bfloat16):
        as_eager(lambda x: torch.sum(x, 0, dtype=dtype), x, rtol=0.02, atol=0.02)
        as_eager(lambda x: torch.mean(x, 0, dtype=dtype), x, rtol=0.02, atol=0.02)
    for dtype in (torch.int32, torch.bool):
        for ours, theirs in ((ltorch.sum, torch.sum), (ltorch.prod, torch.prod)):
            assert torch.equal(by_primitives(ours, x.detach(), dtype=dtype), theirs(x.detach(), dtype=dtype))


@pytest.mark.parametrize("name", ["mean", "sum", "var", "std", "logsumexp"])
def test_half_precision_is_rounded_once(by_primitives: Any, name: str) -> None:
    """Of many numbers, the sum is taken in float32."""
    x = torch.full((1, 4096), 1.1, dtype=torch.bfloat16)
    x[0, ::2] = 2.3
    expected = getattr(torch, name)(x, 1)
    torch.testing.assert_close(by_primitives(getattr(ltorch, name), x, 1), expected, rtol=1e-2, atol=0)


def test_sum_to_size(as_eager: Any, randn: Any) -> None:
    """What was broadcast, summed back."""
    as_eager(lambda x: x.sum_to_size(3, 1), randn(2, 3, 4))
    as_eager(lambda x: x.sum_to_size((2, 3, 4)), randn(2, 3, 4))
    with pytest.raises(RuntimeError, match="is not expandable to size"):
        thunder.jit(lambda x: x.sum_to_size(2))(torch.ones(2, 3))
