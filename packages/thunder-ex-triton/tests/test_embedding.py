# SPDX-License-Identifier: Apache-2.0
"""The gradient of an embedding's table: rows added up by their index, always in one order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder_ex_triton import embedding
from thunder_ex_triton.embedding import embedding_backward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and pieces that few indices do not fit into."""
    monkeypatch.setattr(embedding, "_FEWEST", 0)
    monkeypatch.setattr(embedding, "_FILLING", 2)
    monkeypatch.setattr(embedding, "_COMPARED", (8, 16))
    monkeypatch.setattr(embedding, "_PIECE", 4)
    monkeypatch.setattr(embedding, "_TILE", 32)


def expected(g: torch.Tensor, indices: torch.Tensor, table: int, padding: int) -> torch.Tensor:
    """By adding up in double precision."""
    rows = g.reshape(-1, g.shape[-1]).double()
    kept = indices.reshape(-1) != padding
    out = torch.zeros((table, g.shape[-1]), dtype=torch.float64, device=g.device)
    return out.index_add(0, indices.reshape(-1)[kept].long(), rows[kept])


def spread(how: str, count: int, table: int) -> torch.Tensor:
    """Indices: evenly spread, a few of them often, or all of them one."""
    generator = torch.Generator().manual_seed(count)
    if how == "even":
        return torch.randint(0, table, (count,), generator=generator).to(DEVICE)
    if how == "one":
        return torch.full((count,), table - 1, device=DEVICE)
    return (table * torch.rand(count, generator=generator) ** 6).long().to(DEVICE)


@pytest.mark.parametrize("sorted_by_torch", [False, True])
@pytest.mark.parametrize("how", ["even", "skewed", "one"])
@pytest.mark.parametrize(
    ("table", "count", "width", "padding", "dtype"),
    [
        (5, 7, 3, -1, torch.float32),
        (7, 40, 8, 2, torch.float64),
        (33, 50, 37, 32, torch.float32),
        (1, 9, 1, -1, torch.float32),
        (4, 1, 8, -1, torch.float32),
    ],
)
def test_rows_are_added_up(
    table: int, count: int, width: int, padding: int, dtype: torch.dtype, how: str, sorted_by_torch: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Tables, lengths and widths that no tile divides, rows that nobody asked for, one row that all asked for."""
    monkeypatch.setattr(embedding, "_MOST_COMPARED", 0 if sorted_by_torch else 1 << 20)
    g = torch.randn((count, width), dtype=dtype, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    indices = spread(how, count, table)
    found = embedding_backward(g, indices, table, padding, False)
    torch.testing.assert_close(found.double(), expected(g, indices, table, padding), rtol=1e-5, atol=1e-5)
    spaced = indices.int().repeat_interleave(2)[::2]
    assert torch.equal(found, embedding_backward(g, spaced, table, padding, False))


def test_what_is_not_finite_stays_in_its_row() -> None:
    """Also where a row's pieces are next to those of others."""
    g = torch.ones(14, 4, device=DEVICE)
    g[1] = torch.nan
    g[12] = torch.inf
    indices = torch.tensor([0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 4, 3, 4], device=DEVICE)
    found = embedding_backward(g, indices, 6, -1, False)
    assert found[1].isnan().all() and found[3].isinf().all()
    assert found[[0, 2, 4, 5]].eq(torch.tensor([[1.0], [9.0], [2.0], [0.0]], device=DEVICE)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_in_a_program(dtype: torch.dtype) -> None:
    """It runs in backward, with indices and gradients that are not contiguous."""
    w = torch.randn(9, 6, device=DEVICE).to(dtype).requires_grad_()
    indices = torch.arange(12, device=DEVICE).reshape(3, 4).mT % 5

    def f(i: Any, w: Any) -> Any:
        return F.embedding(i, w, padding_idx=2).mT * 2

    jitted = thunder.jit(f)
    (found,) = torch.autograd.grad(jitted(indices, w).float().sum(), w)
    assert "triton_embedding_backward(" in str(thunder.last_backward_traces(jitted)[-1])
    (right,) = torch.autograd.grad(f(indices, w).float().sum(), w)
    torch.testing.assert_close(found, right)


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU it stops the process")
@pytest.mark.parametrize("wrong", [-2, 5, (1 << 32) + 1])
def test_indices_of_no_row_are_errors(wrong: int) -> None:
    """They are never written to: not cut off to a row that exists either."""
    g = torch.ones(6, 3)
    indices = torch.tensor([0, 1, wrong, 1, 3, 4])
    with pytest.raises(Exception, match="index out of range"):
        embedding_backward(g, indices, 5, -1, False)


def test_any_number_of_indices() -> None:
    """One program takes them, none included; without elements there is nothing to launch."""
    w = torch.randn(9, 6, device=DEVICE).requires_grad_()
    jitted = thunder.jit(lambda i, w: F.embedding(i, w) * w.sum(), cache="symbolic values")
    for count in (5, 7, 12, 0):
        indices = torch.arange(count, device=DEVICE) % 4
        (found,) = torch.autograd.grad(jitted(indices, w).sum(), w)
        (right,) = torch.autograd.grad((F.embedding(indices, w) * w.sum()).sum(), w)
        torch.testing.assert_close(found, right)
    assert "triton_embedding_backward(" in str(thunder.last_backward_traces(jitted)[-1])
    assert embedding_backward(torch.ones(4, 0, device=DEVICE), indices.new_zeros(4), 3, -1, False).shape == (3, 0)


def test_few_indices_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it runs; its kernels are not launched."""
    monkeypatch.setattr(embedding, "_FEWEST", 3)
    monkeypatch.setattr(embedding, "in_order", None)
    g = torch.ones(4, 2, device=DEVICE)
    assert embedding_backward(g[:3], torch.tensor([0, 2, 2], device=DEVICE), 4, -1, False)[2].eq(2).all()
    with pytest.raises(TypeError):
        embedding_backward(g, torch.tensor([0, 2, 2, 1], device=DEVICE), 4, -1, False)


def test_what_it_leaves_to_torch() -> None:
    """Counting, and types that it does not add up."""
    takes = embedding._takes

    class Like:
        """What is asked of a proxy."""

        def __init__(self, *shape: int, dtype: Any = thunder.dtypes.float32):
            self.shape, self.dtype = shape, dtype
            self.device = torch.device(DEVICE)

    indices = Like(4)
    assert takes(Like(4, 8), indices, 10, -1, False) is True
    assert "do not support scale_grad_by_freq" in str(takes(Like(4, 8), indices, 10, -1, True))
    assert "complex64" in str(takes(Like(4, 8, dtype=thunder.dtypes.complex64), indices, 10, -1, False))
