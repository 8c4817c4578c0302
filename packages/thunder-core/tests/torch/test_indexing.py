# SPDX-License-Identifier: Apache-2.0
"""Index operations in programs: in place, with masks, over one dimension; keys themselves are tested with the core
language."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i, v: x.index_add_(0, i, v, alpha=2),
        lambda x, i, v: x.index_copy_(0, i, v),
        lambda x, i, v: x.index_fill_(1, i, 7),
        lambda x, i, v: x.index_put_((i,), v),
        lambda x, i, v: x.index_put_((i, i), v[0, :2], accumulate=True),
        lambda x, i, v: x.scatter_(0, i[:, None].expand(2, 4), v),
        lambda x, i, v: x.scatter_add_(0, i[:, None].expand(2, 4), v),
        lambda x, i, v: x.scatter_reduce_(0, i[:, None].expand(2, 4), v, "amax"),
        lambda x, i, v: x.masked_scatter_(x > 0, v.new_ones(12)),
        lambda x, i, v: x.masked_fill_(x > 0, 3.0),
        lambda x, i, v: x.__setitem__(x > 0, 0.0),
        lambda x, i, v: x.__setitem__((i, slice(None, None, 2)), v[:, :2]),
        lambda x, i, v: x[1:].copy_(v),
        lambda x, i, v: x.tril_(),
    ],
)
def test_writes_in_place(write: Any) -> None:
    """The tensor is changed, and so is the argument of the program where it is one."""

    def program(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        write(x, i, v)
        return x * 2

    x, i, v = torch.randn(3, 4), torch.tensor([2, 0]), torch.randn(2, 4)
    ours, theirs = x.clone(), x.clone()
    assert torch.equal(thunder.jit(program)(ours, i, v), program(theirs, i, v))
    assert torch.equal(ours, theirs)


def test_a_growing_cache() -> None:
    """Writes at a position that is a tensor: one trace serves all of them."""

    def step(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, new)
        return cache.sum(1)

    jitted = thunder.jit(step)
    ours, theirs = torch.zeros(2, 5), torch.zeros(2, 5)
    for t in range(5):
        at, new = torch.tensor([t]), torch.randn(2, 1)
        assert torch.equal(jitted(ours, at, new), step(theirs, at, new))
    assert torch.equal(ours, theirs)
    assert thunder.cache_misses(jitted) == 1


def test_gradients_of_masked_scatter() -> None:
    """The source's elements get those of the places they went to, in order."""
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    source = torch.randn(6, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False, True], [False, True, True]])

    def fn(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return torch.masked_scatter(x, mask, source)

    g = torch.randn(2, 3, dtype=torch.float64)
    actual = torch.autograd.grad(thunder.jit(fn)(x, mask, source), (x, source), g)
    for a, b in zip(actual, torch.autograd.grad(fn(x, mask, source), (x, source), g)):
        assert torch.equal(a, b)


def test_out_of_range_positions_are_errors_when_the_program_runs() -> None:
    """As torch's, with its exception."""
    jitted = thunder.jit(lambda x, i: x[i])
    assert jitted(torch.randn(3), torch.tensor([2])).shape == (1,)
    with pytest.raises(IndexError):
        jitted(torch.randn(3), torch.tensor([3]))


def test_dtypes_that_do_not_fit() -> None:
    """A write by position converts numbers, not tensors; a write of a part converts both."""
    x, wide = torch.zeros(3), torch.ones(1, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="source and destination dtypes match"):
        thunder.jit(lambda x, w: x.clone().__setitem__([0], w))(x, wide)

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[0] = w[0]
        x[1:] = w
        x[[0, 2]] = 5
        return x

    assert torch.equal(thunder.jit(program)(x, wide), program(x, wide))
