# SPDX-License-Identifier: Apache-2.0
"""Sorting with NaN and ties, its gradients, and the names of its results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder

nan = float("nan")


def test_nan_is_the_largest() -> None:
    """In all of them."""
    x = torch.tensor([[2.0, nan, -1.0, 3.0], [nan, nan, 0.0, float("inf")]])
    for fn in (
        lambda x: x.sort(dim=1, stable=True)[0],
        lambda x: x.sort(stable=True, dim=1, descending=True)[0],
        lambda x: x.topk(2)[0],
        lambda x: x.topk(2, largest=False)[0],
        lambda x: x.kthvalue(2)[0],
        torch.msort,
    ):
        torch.testing.assert_close(thunder.jit(fn)(x), fn(x), equal_nan=True)


def test_stable_sorting_keeps_the_order_of_equals() -> None:
    """Where it is asked for."""
    x = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0])
    for descending in (False, True):
        expected = x.sort(stable=True, descending=descending)
        actual = thunder.jit(lambda x, d=descending: x.sort(stable=True, descending=d))(x)
        assert torch.equal(actual.indices, expected.indices)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sort(0)[0],
        lambda x: x.sort(1, True).values,
        lambda x: x.sort(dim=1, stable=True).values,
        lambda x: x.topk(2, 0).values,
        lambda x: x.topk(3, largest=False)[0] * 2,
        lambda x: x.kthvalue(2, 1)[0],
        lambda x: x.kthvalue(1, 0, True)[0],
        torch.msort,
    ],
)
def test_gradients(fn: Any) -> None:
    """They go where the elements came from, ties included."""
    x = torch.randint(0, 4, (3, 4)).double().requires_grad_()
    expected, actual = fn(x), thunder.jit(fn)(x)
    g = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(actual, x, g)[0], torch.autograd.grad(expected, x, g)[0])


def test_results_have_names() -> None:
    """torch's return types, and positions that index."""

    def program(x: torch.Tensor) -> Any:
        found = torch.sort(x)
        return found, torch.topk(x, 2), x.gather(0, found.indices)

    x = torch.randn(4)
    found, top, again = thunder.jit(program)(x)
    assert isinstance(found, torch.return_types.sort)
    assert isinstance(top, torch.return_types.topk)
    assert torch.equal(found.values, again)
