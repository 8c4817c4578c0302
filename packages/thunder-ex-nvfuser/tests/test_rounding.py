# SPDX-License-Identifier: Apache-2.0
"""Fusions round the results of torch's operations in half precision, as eager mode does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder

pytestmark = pytest.mark.filterwarnings("error:nvfuser")


def halves(*shape: int, device: str, seed: int = 0, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Return numbers whose sums are seldom numbers of half precision."""
    draw = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=draw) * 3 + 1).to(device, dtype)


# Functions whose results follow from a value in half precision without other roundings to half precision.
READ: dict[str, Callable[[torch.Tensor], Any]] = {
    "returned": lambda y: (y, y.float()),
    "not returned": lambda y: y.float() * 2,
    "transposed": lambda y: (y.t().contiguous(), y.float()),
    "sums of rows": lambda y: y.float().sum(-1),
    "sums of columns": lambda y: (y, y.float().sum(0)),
    "clamped": lambda y: (c := y.clamp(min=0), (c - y).sqrt()),
    "clamped, not returned": lambda y: (y.clamp(min=0) - y).sqrt(),
    "products": lambda y: ((z := y * y), z.float() - y.float() * y.float()),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", READ)
def test_rounded_values_are_read(device: str, name: str, dtype: torch.dtype) -> None:
    a, b = halves(64, 33, device=device, dtype=dtype), halves(64, 33, device=device, dtype=dtype, seed=1)
    jitted = thunder.jit(lambda a, b: READ[name](a + b), executors=["nvfuser"])
    found, expected = jitted(a, b), READ[name](a + b)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert thunder.examine.fusions(jitted)


def test_parts_of_operations_are_not_rounded(device: str) -> None:
    """`addcmul` is one kernel of torch."""
    a, b = halves(8, 64, device=device), halves(8, 64, device=device, seed=1)
    jitted = thunder.jit(lambda a, b: torch.addcmul(a, a, b, value=-0.9), executors=["nvfuser"])
    assert torch.equal(jitted(a, b), torch.addcmul(a.double(), a.double(), b.double(), value=-0.9).half())


def test_a_residual_that_is_kept(device: str) -> None:
    """The norm is that of the sum that is returned, of which half precision has only whole numbers here."""

    def block(x: Any, r: Any, w: Any) -> Any:
        h = x + r
        return h, F.layer_norm(h, (64,), w)

    args = [halves(8, 64, device=device, seed=seed) for seed in (0, 1)]
    args = [args[0] + 1000, args[1] + 1000, halves(64, device=device, seed=3)]
    found, norm = thunder.jit(block, executors=["nvfuser"])(*args)
    assert torch.equal(found, args[0] + args[1])
    right = F.layer_norm(found.double(), (64,), args[2].double())
    assert (norm - right).abs().max() <= 2e-3 * right.abs().max()
