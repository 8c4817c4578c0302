# SPDX-License-Identifier: Apache-2.0
"""The index of the largest element of long rows: ties, NaN, infinities, strides, and what is left to torch."""

from __future__ import annotations

import math

import pytest
import torch

import thunder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COLUMNS = (1 << 14) + 37


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def check(x: torch.Tensor, dim: int | None = -1, claimed: bool = True, keepdim: bool = False) -> None:
    jitted = thunder.jit(lambda x: x.argmax(dim, keepdim=keepdim))
    found, expected = jitted(x), x.argmax(dim, keepdim=keepdim)
    assert torch.equal(found, expected) and found.dtype is expected.dtype
    names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
    assert ("triton_argmax" in names) == claimed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(COLUMNS,), (1, 1, COLUMNS), (2, 3, COLUMNS)])
def test_values(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(random(*shape, dtype=dtype))  # float16 has equal elements


def test_strides() -> None:
    check(random(COLUMNS, 2).T)
    check(random(3, 2 * COLUMNS)[:, ::2])


@pytest.mark.parametrize("fill", [-math.inf, math.inf, math.nan, 0.0])
def test_equal_elements(fill: float) -> None:
    x = torch.full((2, COLUMNS), fill, device=DEVICE)
    check(x)
    x[1, 9000] = 1.0
    check(x)


def test_nan_is_the_largest() -> None:
    x = random(2, COLUMNS)
    x[0, 3], x[0, 12000], x[0, 15000], x[1, 16400] = math.inf, math.nan, math.nan, math.nan
    check(x)


def test_what_is_left_to_torch() -> None:
    check(random(2, 100), claimed=False)
    check(random(COLUMNS, 2), 0, claimed=False)
    check(random(2, COLUMNS, dtype=torch.float64), claimed=False)
    check(random(17, COLUMNS), claimed=False)
    check(random(2, COLUMNS), keepdim=True, claimed=False)
    check(random(2, COLUMNS), None, claimed=False)
