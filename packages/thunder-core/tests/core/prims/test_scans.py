# SPDX-License-Identifier: Apache-2.0
"""Scan primitives answer in the dtype that they get."""

from __future__ import annotations

import pytest
import torch

import thunder
from thunder.core import prims


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.float16, torch.complex64], ids=str)
def test_they_do_not_widen(dtype: torch.dtype) -> None:
    """Promotion is the torch language's."""
    x = torch.tensor([1, 2, 3]).to(dtype)
    for prim in (prims.cumsum, prims.cumprod):
        out = thunder.jit(lambda x, prim=prim: prim(x, 0))(x)
        assert out.dtype is dtype
        assert out.tolist() == ([1, 3, 6] if prim is prims.cumsum else [1, 2, 6])
