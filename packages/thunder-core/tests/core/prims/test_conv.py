# SPDX-License-Identifier: Apache-2.0
"""Convolution and its gradients: linear in two tensors each, and adjoint to one another."""

from __future__ import annotations

import pytest
import torch

from thunder.core import prims

HOW = ((2, 1), (1, 0), (1, 2), False, (0, 0), 2)
TRANSPOSED = ((2, 1), (1, 0), (1, 2), True, (1, 0), 2)


@pytest.mark.parametrize("how", [HOW, TRANSPOSED], ids=["ordinary", "transposed"])
def test_adjoint(how: tuple[object, ...]) -> None:
    """<conv(a, w), g> = <a, input_grad(g, w)> = <w, weight_grad(g, a)>."""
    a, w = torch.randn(2, 4, 6, 7, dtype=torch.float64), torch.randn(4, 2, 3, 2, dtype=torch.float64)
    out = prims.convolution(a, w, None, *how)
    g = torch.randn_like(out)
    product = (out * g).sum()
    torch.testing.assert_close((a * prims.convolution_input_grad(g, a, w, *how)).sum(), product)
    torch.testing.assert_close((w * prims.convolution_weight_grad(g, a, w, *how)).sum(), product)


def test_values_that_are_not_read() -> None:
    """Each gradient takes the other's tensor for its shape alone."""
    a, w = torch.randn(2, 4, 6, 7), torch.randn(4, 2, 3, 2)
    g = prims.convolution(a, w, None, *HOW)
    nan = float("nan")
    assert prims.convolution_input_grad(g, a * nan, w, *HOW).isfinite().all()
    assert prims.convolution_weight_grad(g, a, w * nan, *HOW).isfinite().all()


def test_real_numbers_only() -> None:
    """Complex convolutions are put together from real ones."""
    with pytest.raises(NotImplementedError, match="convolve real and imaginary parts"):
        prims.convolution(torch.ones(1, 1, 3) + 0j, torch.ones(1, 1, 2) + 0j, None, (1,), (0,), (1,), False, (0,), 1)
