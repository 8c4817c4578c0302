# SPDX-License-Identifier: Apache-2.0
"""Values that are added up at the rows of zeros: the gradient of indexing with one tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
from thunder_ex_triton.indexed_rows import add_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)


def is_claimed(jitted: Any) -> bool:
    return "triton_add_rows(" in str(thunder.last_backward_traces(jitted)[-1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(7,), (7, 5), (7, 2, 3)])
@pytest.mark.parametrize("index", [[0, 6, 3], [2, -1, 2, 2, -5], [[1, 6], [-6, 0]], [4] * 40])
def test_gradient_of_indexing(index: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, where = numbers(*shape, dtype=dtype).requires_grad_(), torch.tensor(index, device=DEVICE)
    jitted = thunder.jit(lambda x, i: x[i] * 2)
    g = numbers(*where.shape, *shape[1:], dtype=dtype)
    (found,) = torch.autograd.grad(jitted(x, where), x, g)
    exact = x.detach().double().requires_grad_()
    (right,) = torch.autograd.grad(exact[where] * 2, exact, g.double())
    assert is_claimed(jitted)
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), right, rtol=2e-3 if dtype is torch.float16 else 1e-6, atol=1e-6)


def test_two_dimensions_are_indexed_by_torch() -> None:
    x, i, j = numbers(4, 5).requires_grad_(), torch.tensor([0, 3, 0]), torch.tensor([1, 1, 1])
    jitted = thunder.jit(lambda x, i, j: x[i, j] * 2)
    torch.autograd.grad(jitted(x, i.to(DEVICE), j.to(DEVICE)).sum(), x)
    assert not is_claimed(jitted)


def test_base_that_is_not_zero_is_left_to_torch() -> None:
    def f(x: Any, v: Any, i: Any) -> Any:
        return (x * 2).index_put((i,), v, accumulate=True)

    x, v, i = numbers(4, 3), numbers(2, 3), torch.tensor([1, 1], device=DEVICE)
    jitted = thunder.jit(f)
    torch.testing.assert_close(jitted(x, v, i), f(x, v, i))
    assert "triton_add_rows" not in str(thunder.last_traces(jitted)[-1])


def test_values_that_are_broadcast_and_masks() -> None:
    mask = torch.tensor([True, False, False, True])
    programs = [
        (lambda v, i: torch.zeros(4, 3, device=DEVICE).index_put((i,), v[0], accumulate=True), torch.tensor([1, 3])),
        (lambda v, i: torch.zeros(4, 3, device=DEVICE).index_put((i,), v, accumulate=True), torch.tensor([1, -1])),
        (lambda v, i: torch.zeros(4, 3, device=DEVICE).index_put((i,), v, accumulate=True), mask),
        (lambda v, i: torch.zeros(4, 3, device=DEVICE).index_put((i,), v), torch.tensor([1, 3])),
    ]
    for f, i in programs:
        v, i = numbers(2, 3), i.to(DEVICE)
        torch.testing.assert_close(thunder.jit(f)(v, i), f(v, i))


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU it stops the process")
@pytest.mark.parametrize("wrong", [-6, 5])
def test_indices_of_no_row_are_errors(wrong: int) -> None:
    with pytest.raises(Exception, match="index out of range"):
        add_rows(torch.ones(3, 2), torch.tensor([0, wrong, 1]), 5)
