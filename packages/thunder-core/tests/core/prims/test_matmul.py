# SPDX-License-Identifier: Apache-2.0
"""Products: the shape they have, on one device, of one type that can be multiplied."""

from __future__ import annotations

import pytest
import torch

import thunder
from thunder.core import prims
from thunder.core.prims.matmul import MATMUL_SHAPES, matmul_shape


def test_shapes() -> None:
    """Those of torch."""
    for a, b in MATMUL_SHAPES:
        assert matmul_shape(a, b) == tuple((torch.ones(a) @ torch.ones(b)).shape)


def test_what_is_refused() -> None:
    """Truth values, two types, two devices, what is no tensor."""
    x = torch.ones(2, 2)
    with pytest.raises(NotImplementedError, match="not implemented for bool"):
        prims.matmul(x > 0, x > 0)
    with pytest.raises(RuntimeError, match="to have the same dtype, but got: float32 != float64"):
        prims.linear(x, x.double())
    with pytest.raises(RuntimeError, match="found at least two devices, cpu and meta"):
        prims.matmul(x, x.to("meta"))
    with pytest.raises(TypeError, match="matmul expects tensors, not int"):
        prims.matmul(x, 2)


def test_a_bias_that_is_broadcast() -> None:
    """Of one element, of none, of a row for each input."""
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    for shape in ((1,), (), (3, 5), (3, 1)):
        b = torch.randn(shape)
        torch.testing.assert_close(prims.linear(x, w, b), torch.nn.functional.linear(x, w, b))
        (grad,) = torch.autograd.grad(thunder.jit(prims.linear)(x, w, b.requires_grad_()).sum(), b)
        assert grad.shape == shape
    with pytest.raises(RuntimeError, match="must match the existing size"):
        prims.linear(x, w, torch.randn(4))
