# SPDX-License-Identifier: Apache-2.0
"""Embeddings: rows without a gradient, rows that occur often, what cannot be traced; one-hot vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import thunder
import thunder.torch as ltorch
from thunder.core.errors import TracingError, UnsupportedError

NUMBERS = torch.tensor([[0, 2, 2], [4, 2, 0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", [{}, {"padding_idx": 2}, {"padding_idx": -1}, {"scale_grad_by_freq": True}], ids=str)
def test_the_tables_gradient(as_eager: Any, randn: Any, how: dict[str, Any], dtype: torch.dtype) -> None:
    """Eager's, for int64 and int32 numbers, of any shape."""
    for numbers in (NUMBERS, NUMBERS.int(), NUMBERS.t(), NUMBERS[0, 0], NUMBERS[:0]):
        as_eager(lambda n, w: F.embedding(n, w, **how), numbers, randn(5, 4, dtype=dtype), exactly=True)
    as_eager(lambda w: torch.embedding(w, NUMBERS), randn(5, 4, dtype=dtype), exactly=True)


def test_what_cannot_be_traced(by_primitives: Any, randn: Any) -> None:
    """A write into the table, which the frontend does for the user, and sparse gradients."""
    weight = randn(5, 4)
    with pytest.raises(UnsupportedError, match="normalize the rows before the traced function"):
        by_primitives(ltorch.embedding, NUMBERS, weight.detach(), max_norm=1.0)
    with pytest.raises(UnsupportedError, match="has a sparse gradient"):
        by_primitives(ltorch.embedding, NUMBERS, weight.detach(), sparse=True)
    with pytest.raises(AssertionError, match="Padding_idx must be within num_embeddings"):
        thunder.jit(lambda w: F.embedding(NUMBERS, w, padding_idx=7))(weight)
    with pytest.raises(IndexError, match="index out of range"):
        thunder.jit(lambda n, w: F.embedding(n, w))(NUMBERS + 9, weight)


def test_sparse_gradients() -> None:
    """Such a table runs as Python where it learns, and what is around it is compiled; else it is like any other."""
    table, head = nn.Embedding(5, 4, sparse=True), nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    model = nn.Sequential(table, head)
    jitted = thunder.jit(model)
    expected = model(NUMBERS)
    with torch.no_grad():
        torch.testing.assert_close(jitted(NUMBERS), expected)
    assert "Python" not in thunder.explain(jitted)
    wanted = torch.autograd.grad(expected.sum(), [*model.parameters()])
    with pytest.warns(thunder.FallbackWarning, match="calls embedding with sparse=True"):
        jitted(NUMBERS)
    for _ in range(2):
        out = jitted(NUMBERS)
        torch.testing.assert_close(out, expected)
        for found, grad in zip(torch.autograd.grad(out.sum(), [*model.parameters()]), wanted):
            assert found.layout is grad.layout
            torch.testing.assert_close(found.to_dense(), grad.to_dense())
    assert "sparse=True" in thunder.explain(jitted) and "thunder.jit(Sequential)" in thunder.explain(jitted)
    table.requires_grad_(False)
    frozen = thunder.jit(model)
    torch.testing.assert_close(frozen(NUMBERS), expected)
    assert "Python" not in thunder.explain(frozen)
    with pytest.raises(TracingError, match="cannot be compiled: the program calls embedding with sparse=True"):
        thunder.jit(thunder.grad(lambda w: F.embedding(NUMBERS, w, sparse=True).sum()), sharp_edges="error")(
            torch.randn(5, 4)
        )


def test_one_hot() -> None:
    """With the number of classes; without it the shape depends on values, and the program runs eagerly."""
    for numbers in (NUMBERS, NUMBERS[0, 0], NUMBERS[:0]):
        assert torch.equal(thunder.jit(lambda n: F.one_hot(n, 5))(numbers), F.one_hot(numbers, 5))
    with pytest.warns(UserWarning, match="Pass num_classes"):
        assert torch.equal(thunder.jit(lambda n: F.one_hot(n))(NUMBERS), F.one_hot(NUMBERS))
    with pytest.raises(RuntimeError, match="Class values must be smaller than num_classes"):
        thunder.jit(lambda n: F.one_hot(n, 3))(NUMBERS)
