# SPDX-License-Identifier: Apache-2.0
"""Casting and layout primitives: what their gradient rules let through."""

from __future__ import annotations

import pytest
import torch

import thunder
from thunder.core import dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_stride_order(order: tuple[int, ...]) -> None:
    """Dimension i gets the order[i]-th smallest stride; the values stay, and so does the gradient."""
    x = torch.randn(2, 3, 4, requires_grad=True)
    out = thunder.jit(lambda x: prims.stride_order(x, order))(x)
    assert torch.equal(out, x)
    assert tuple(sorted(range(3), key=out.stride().__getitem__)) == tuple(sorted(range(3), key=order.__getitem__))
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
    assert torch.equal(grad, torch.ones_like(x))


def test_clone_in_order() -> None:
    """A copy with the strides of `stride_order`, even where they are those of the argument."""
    x = torch.randn(3, 2, requires_grad=True)
    for order, strides in (((1, 0), (2, 1)), ((0, 1), (1, 3))):
        out = thunder.jit(lambda x, order=order: prims.clone_in_order(x, order))(x)
        assert torch.equal(out, x)
        assert out.stride() == strides
        assert out.data_ptr() != x.data_ptr()
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(grad, torch.ones_like(x))


def test_bitcast_knows_the_sizes_of_elements() -> None:
    """The last dimension grows and shrinks with them."""
    with tracectx(Trace()):
        a = TensorProxy("a", shape=(3, 8), device="cpu", dtype=torch.float32)
        for dtype, last in ((dtypes.int32, 8), (dtypes.uint8, 32), (dtypes.complex64, 4), (dtypes.bfloat16, 16)):
            assert prims.bitcast(a, dtype).shape == (3, last)


def test_a_detached_value_requires_no_grad() -> None:
    """Whatever it is made of."""
    with tracectx(Trace()):
        a = TensorProxy("a", shape=(3,), device="cpu", dtype=torch.float32, requires_grad=True)
        assert not prims.detach(a).requires_grad
