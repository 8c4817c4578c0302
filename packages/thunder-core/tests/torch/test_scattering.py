# SPDX-License-Identifier: Apache-2.0
"""Gradients of gather and the scatters: repeated places, ties, zeros, a source larger than the index."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder


def _compare(fn: Any, *args: torch.Tensor) -> None:
    expected, actual = fn(*args), thunder.jit(fn)(*args)
    torch.testing.assert_close(actual, expected)
    torch.manual_seed(5)
    g = torch.randn_like(expected)
    wanted = [a for a in args if a.requires_grad]
    for x, y in zip(torch.autograd.grad(actual, wanted, g), torch.autograd.grad(expected, wanted, g)):
        torch.testing.assert_close(x, y)


def _small_integers(*shape: int) -> torch.Tensor:
    return torch.randint(-1, 2, shape).double().requires_grad_()


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "amax", "amin"])
def test_reductions_with_ties_and_zeros(reduce: str, include_self: bool) -> None:
    """Equal extremes share a gradient; a single zero of a product has one, two have none."""
    torch.manual_seed(1)
    for _ in range(8):
        index = torch.randint(0, 3, (4, 3))
        a, src = _small_integers(3, 3), _small_integers(4, 3)
        if reduce in ("amax", "amin") and not include_self:
            # torch counts the tensor's own element among the ties though it takes no part.
            a = (a.detach() + 0.5).requires_grad_()
        _compare(lambda a, i, s: a.scatter_reduce(0, i, s, reduce, include_self=include_self), a, index, src)


def test_a_source_larger_than_the_index() -> None:
    """What is not read has no gradient; torch's own differentiation refuses this."""
    a, src = torch.zeros(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    index = torch.tensor([[0, 2, 1]])
    for fn in (lambda a, i, s: a.scatter(0, i, s), lambda a, i, s: a.scatter_add(0, i, s)):
        out = thunder.jit(fn)(a, index, src)
        assert torch.equal(out, fn(a, index, src))
        grad_a, grad_src = torch.autograd.grad(out, (a, src), torch.ones_like(out))
        expected = torch.zeros(4, 5)
        expected[0, :3] = 1
        assert torch.equal(grad_src, expected)
        assert grad_a.shape == a.shape


def test_repeated_places() -> None:
    """Sums go back to each of them."""
    index = torch.tensor([[0, 0, 2], [0, 1, 2]])
    a = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    src = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    _compare(lambda a, i: a.gather(0, i), a, index)
    _compare(lambda a, i, s: a.scatter_add(0, i, s), a, index, src)
    _compare(lambda a, i: a.index_select(0, i[0]), a, index)
    _compare(lambda a, i, s: a.index_add(0, i[:, 0], s, alpha=3), a, index, src)
    value = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    _compare(lambda a, i, v: a.index_fill(0, i[0], v), a, index, value)


def test_the_older_spelling_of_reductions() -> None:
    """scatter(reduce="add" | "multiply"), of tensors and numbers."""
    a, index = torch.randn(3, 3), torch.tensor([[0, 0, 2], [0, 1, 2]])
    src = torch.randn(2, 3)
    for fn in (
        lambda a, i, s: a.scatter(0, i, s, reduce="add"),
        lambda a, i, s: a.scatter(0, i, 2.0, reduce="multiply"),
    ):
        torch.testing.assert_close(thunder.jit(fn)(a, index, src), fn(a, index, src))
