# SPDX-License-Identifier: Apache-2.0
"""Autocast inside of operations that torch composes of others, and inside of opaque operations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thunder

A, B, C = (torch.randn(3, 3, generator=torch.Generator().manual_seed(i)) for i in range(3))
torch.manual_seed(0)
CELLS = [cell(3, 3) for cell in (nn.GRUCell, nn.LSTMCell, nn.RNNCell)]
NETWORKS = [network(3, 3) for network in (nn.GRU, nn.LSTM, nn.RNN)]

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "cov": torch.cov,
    "corrcoef": torch.corrcoef,
    "prelu": lambda x: nn.functional.prelu(x, A[0, :1]),
    "inner": lambda x: torch.inner(x, A),
    "inner product": lambda x: torch.inner(x[0], A[0]),
    "tensordot": lambda x: torch.tensordot(x, A, 1),
    "tensordot to one element": lambda x: torch.tensordot(x, A, 2),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, A),
    "einsum of products": lambda x: torch.einsum("ij,ij->ij", x, A),
    "matrix_power": lambda x: torch.linalg.matrix_power(x, 3),
    "bilinear": lambda x: nn.functional.bilinear(x, A, torch.stack([A, B]), None),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, A, B]),
    **{f"{type(m).__name__}": lambda x, m=m: m(x) for m in (*CELLS, *NETWORKS)},
}


def _tensors(x: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(x) if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "around"])
@pytest.mark.parametrize("name", CALLS)
def test_parts_are_cast_as_torch_casts_them(name: str, inside: bool) -> None:
    fn = CALLS[name]

    def under(x: torch.Tensor) -> Any:
        with torch.autocast("cpu") if inside else contextlib.nullcontext():
            return fn(x)

    jitted = thunder.jit(under, sharp_edges="error")
    for _ in range(2):
        results = []
        for run in (jitted, under):
            x = C.clone().requires_grad_()
            with torch.autocast("cpu", enabled=not inside):
                out = _tensors(run(x))
            (gradient,) = torch.autograd.grad([y.float().sum() for y in out], x)
            results.append(([y.detach() for y in out], gradient))
        (found, gradient), (wanted, expected) = results
        assert [y.dtype for y in found] == [y.dtype for y in wanted]
        for a, b in zip(found, wanted):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(gradient, expected, rtol=2e-2, atol=2e-2)


def test_an_operation_without_casts_stays_whole() -> None:
    with torch.autocast("cpu"):
        jitted = thunder.jit(lambda x: torch.cosine_similarity(x, A))
        jitted(C)
    assert "ltorch.cosine_similarity(" in str(thunder.last_traces(jitted)[0])


def test_a_disabled_region_inside() -> None:
    def f(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            return torch.linalg.matrix_power(x, 2) @ A

    x = C.clone().requires_grad_()
    with torch.autocast("cpu"):
        out, expected = thunder.jit(f, sharp_edges="error")(x), f(x)
    assert out.dtype is expected.dtype is torch.float32
    torch.testing.assert_close(*[torch.autograd.grad(y.sum(), x)[0] for y in (out, expected)])
