# SPDX-License-Identifier: Apache-2.0
"""topk as a contributor meets it: its signature, its errors and its gradient."""

from __future__ import annotations

import pytest
import torch

import thunder
from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace


def test_topk_takes_what_torchs_takes() -> None:
    """All arguments, the dimension left open, and no `out`."""
    trace = Trace()
    with tracectx(trace):
        a = TensorProxy("a", shape=(3, 4), device="cpu", dtype=torch.float32)
        values, indices = prims.topk(a, 2, None, True, True, out=None)
        assert (values.shape, indices.shape, indices.dtype) == ((3, 2), (3, 2), torch.int64)
        with pytest.raises(RuntimeError, match="only out=None is supported"):
            prims.topk(a, 2, out=(values, indices))
        with pytest.raises(RuntimeError, match="selected index k out of range"):
            prims.topk(a, 5)
    assert str(trace.bound_symbols[0]) == "(t0, t1) = prims.topk(a, 2)"


def test_the_gradient_of_topk_goes_where_the_values_came_from() -> None:
    """scatter_add into zeros; positions have none."""
    x = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]], requires_grad=True)
    values, indices = thunder.jit(lambda x: prims.topk(x * 1, 2))(x)
    assert not indices.requires_grad
    (grad,) = torch.autograd.grad(values, x, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert grad.tolist() == [[1, 0, 2], [0, 3, 4]]
