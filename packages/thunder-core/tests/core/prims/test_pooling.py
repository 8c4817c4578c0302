# SPDX-License-Identifier: Apache-2.0
"""Pooling: means are adjoint to their gradients, indices point at the maxima."""

from __future__ import annotations

import pytest
import torch

from thunder.core import prims

WINDOWS = [((7,), (3,), (2,), (1,)), ((6, 5), (3, 2), (2, 1), (1, 0)), ((4, 5, 6), (2, 2, 3), (1, 2, 2), (0, 1, 1))]


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), WINDOWS)
def test_means_are_adjoint(size: object, kernel: object, stride: object, padding: object, ceil_mode: bool,
                           count_include_pad: bool) -> None:  # fmt: skip
    """<pool(a), g> = <a, backward(g)>."""
    a = torch.randn(2, 3, *size, dtype=torch.float64)  # type: ignore[misc]
    how = (kernel, stride, padding, ceil_mode, count_include_pad, None)
    out = prims.avg_pool(a, *how)
    g = torch.randn_like(out)
    torch.testing.assert_close((out * g).sum(), (a * prims.avg_pool_backward(g, a, *how)).sum())
    adaptive = prims.adaptive_avg_pool(a, (2,) * len(kernel))  # type: ignore[arg-type]
    g = torch.randn_like(adaptive)
    back = prims.adaptive_avg_pool_backward(g, a, (2,) * len(kernel))  # type: ignore[arg-type]
    torch.testing.assert_close((adaptive * g).sum(), (a * back).sum())


@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), WINDOWS)
def test_indices(size: object, kernel: object, stride: object, padding: object) -> None:
    """Flat positions among the pooled dimensions."""
    a = torch.randn(2, 3, *size)  # type: ignore[misc]
    flat = a.reshape(2, 3, -1)
    for values, indices in (
        prims.max_pool(a, kernel, stride, padding, (1,) * len(kernel), True),  # type: ignore[arg-type]
        prims.adaptive_max_pool(a, (2,) * len(kernel)),  # type: ignore[arg-type]
    ):
        assert torch.equal(flat.gather(2, indices.reshape(2, 3, -1)).reshape(values.shape), values)
