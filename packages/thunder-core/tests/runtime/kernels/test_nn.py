# SPDX-License-Identifier: Apache-2.0
"""Kernels that torch has for two dimensions only, used for one; every resampling kernel exists."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from thunder.core.prims.resize import RESIZE_MODES
from thunder.runtime.kernels import nn


def test_one_dimension() -> None:
    """Gradients of 1-D pooling, with a batch and without."""
    for shape in ((2, 3, 7), (3, 7)):
        x = torch.randn(shape, requires_grad=True)
        for forward, fn, how in (
            (lambda a: F.avg_pool1d(a, 3, 2, 1), nn.avg_pool_backward, ((3,), (2,), (1,), False, True, None)),
            (lambda a: F.adaptive_avg_pool1d(a, 3), nn.adaptive_avg_pool_backward, ((3,),)),
        ):
            out = forward(x)
            g = torch.randn_like(out)
            torch.testing.assert_close(fn(g, x.detach(), *how), torch.autograd.grad(out, x, g)[0])
        values, indices = nn.max_pool(x.detach(), (3,), (2,), (1,), (1,), False)
        g = torch.randn_like(values)
        (expected,) = torch.autograd.grad(F.max_pool1d(x, 3, 2, 1), x, g)
        found = nn.max_pool_backward(g, x.detach(), indices, (3,), (2,), (1,), (1,), False)
        torch.testing.assert_close(found, expected)


def test_resampling_kernels() -> None:
    """Forward and backward, smoothed and not."""
    for mode, ranks in RESIZE_MODES.items():
        for spatial in ranks:
            for suffix in ("", "_backward"):
                assert callable(nn._resizer(mode, spatial, False, suffix))
                if mode in ("bilinear", "bicubic"):
                    assert callable(nn._resizer(mode, spatial, True, suffix))
