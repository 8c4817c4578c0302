# SPDX-License-Identifier: Apache-2.0
"""Casting, copying and detaching in programs."""

from __future__ import annotations

import pytest
import torch

import thunder
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace

NAMES = ["float", "double", "half", "bfloat16", "int", "long", "short", "char", "byte", "bool", "cfloat", "cdouble"]


@pytest.mark.parametrize("name", NAMES)
def test_by_name(name: str) -> None:
    """Each gives its dtype, and the tensor itself where it has that."""
    x = torch.tensor([0.0, 1.0, 7.0])
    jitted = thunder.jit(lambda x: getattr(x, name)())
    assert torch.equal(jitted(x), getattr(x, name)())
    assert thunder.jit(lambda x: getattr(x, name)() is x)(getattr(x, name)())


def test_what_is_there_already_is_handed_on() -> None:
    """to, type_as and cpu record nothing; `copy=True` copies."""
    trace = Trace()
    with tracectx(trace):
        a = TensorProxy("a", shape=(2,), device="cpu", dtype=torch.float32)
        for same in (
            a.to(torch.float32),
            a.to("cpu"),
            a.to(a),
            a.type_as(a),
            a.cpu(),
            a.float(),
            a.type(torch.float32),
        ):
            assert same is a
        assert a.to(torch.float32, copy=True) is not a
    assert [b.sym.name for b in trace.bound_symbols[-1].subsymbols] == ["clone"]


def test_names_of_torchs_old_tensor_types() -> None:
    """`x.type()` tells one, `x.type("torch.DoubleTensor")` takes one."""
    x = torch.tensor([1.5])
    for fn in (
        lambda x: x.type("torch.DoubleTensor"),
        lambda x: x.type(torch.LongTensor),
        lambda x: x.type(torch.float16),
    ):
        expected = fn(x)
        actual = thunder.jit(fn)(x)
        assert actual.dtype is expected.dtype
        assert torch.equal(actual, expected)
    assert thunder.jit(lambda x: x.type())(x) == x.type()


def test_no_gradient_flows_through_detach() -> None:
    """And the rest of it does."""
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    (grad,) = torch.autograd.grad(thunder.jit(lambda x: x * x.detach())(x).sum(), x)
    assert torch.equal(grad, x.detach())


def test_gradients_come_back_in_the_inputs_type() -> None:
    """Through casts to wider and narrower floats and to complex numbers; none through integers."""
    for dtype in (torch.float64, torch.bfloat16, torch.complex64):
        x = torch.randn(3, requires_grad=True)

        def fn(x: torch.Tensor, dtype: torch.dtype = dtype) -> torch.Tensor:
            return x.to(dtype) * 2 + x.long()

        g = torch.ones(3, dtype=dtype)
        (actual,) = torch.autograd.grad(thunder.jit(fn)(x), x, g)
        (expected,) = torch.autograd.grad(fn(x), x, g)
        assert actual.dtype is expected.dtype is torch.float32
        assert torch.equal(actual, expected)


def test_a_clone_is_a_copy() -> None:
    """What is returned does not share memory with the input."""
    x = torch.ones(3)
    out = thunder.jit(lambda x: x.clone())(x)
    out.add_(1)
    assert x.tolist() == [1, 1, 1]


def test_memory_read_as_another_type() -> None:
    """Both ways, with the last dimension growing and shrinking."""
    x = torch.randn(3, 4)
    for fn in (lambda x: x.view(torch.int32) + 1, lambda x: x.view(torch.int16), lambda x: x.view(torch.float64)):
        assert torch.equal(thunder.jit(fn)(x).view(torch.uint8), fn(x).view(torch.uint8))
    with pytest.raises(RuntimeError, match="must be divisible by 2"):
        thunder.jit(lambda x: x.view(torch.float64))(torch.randn(3, 3))
