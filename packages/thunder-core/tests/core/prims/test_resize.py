# SPDX-License-Identifier: Apache-2.0
"""Resampling is adjoint to its gradient in every mode."""

from __future__ import annotations

import pytest
import torch

from thunder.core import prims
from thunder.core.prims.resize import RESIZE_MODES


@pytest.mark.parametrize(("mode", "spatial"), [(mode, n) for mode, ranks in RESIZE_MODES.items() for n in ranks])
def test_adjoint(mode: str, spatial: int) -> None:
    """<resize(a), g> = <a, backward(g)>, up and down, by size and by factor."""
    a = torch.randn(2, 3, *(5, 4, 3)[:spatial], dtype=torch.float64)
    corners = [False] if mode.startswith("nearest") else [False, True]
    for size in ((7, 3, 4)[:spatial], (2, 6, 3)[:spatial]):
        for align in corners:
            for scales in ((None,) * spatial, tuple(m / n for m, n in zip(size, a.shape[2:]))):
                out = prims.resize(a, size, mode, align, scales, False)
                assert out.shape[2:] == size
                g = torch.randn_like(out)
                back = prims.resize_backward(g, a.shape, mode, align, scales, False)
                torch.testing.assert_close((out * g).sum(), (a * back).sum())
