# SPDX-License-Identifier: Apache-2.0
"""What thunder uses of torch that is private, and what it does without."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from thunder.runtime import torch_private as private


class Twice(torch.autograd.Function):
    """Two times its input."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize("asked", [private.any_autocast, private._any_autocast])
def test_autocast_is_seen(asked):
    assert not asked()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert asked()
    assert not asked()


def thrice(x):
    """What is called where `Twice` would be asked for what it does not have."""
    return x * 3


def test_a_function_is_applied_directly():
    x = torch.ones(3, requires_grad=True)
    out = private.direct_apply(Twice, thrice)(x)
    out.sum().backward()
    assert torch.equal(out, x * 2)
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_within_transforms_of_torch_it_is_the_other_function():
    apply = private.direct_apply(Twice, thrice)
    x = torch.ones(3)
    assert torch.equal(torch.func.grad(lambda x: apply(x).sum())(x), torch.full((3,), 3.0))
    assert torch.equal(torch.func.vmap(apply)(x), x * 3)
    with torch.autograd.forward_ad.dual_level():
        out = apply(torch.autograd.forward_ad.make_dual(x, x))
        assert torch.equal(torch.autograd.forward_ad.unpack_dual(out).tangent, x * 3)
    assert torch.equal(apply(x), x * 2)


def test_without_an_apply_of_the_interpreter_the_function_is_asked(monkeypatch):
    monkeypatch.setattr(private, "types", types.SimpleNamespace(BuiltinFunctionType=type(None)))
    x = torch.ones(3, requires_grad=True)
    assert torch.equal(private.direct_apply(Twice, thrice)(x), x * 2)


def test_guards_of_tensors():
    a, b = torch.ones(2, 3), torch.ones(3, 2).T
    check, refuses_twice = private.tensor_guards([a, b])
    assert refuses_twice
    assert check(a, b)
    assert check(torch.zeros(2, 3), b)
    assert not check(a, a)
    assert not check(torch.ones(2, 4), b)
    assert not check(a.double(), b)
    assert not check(a.requires_grad_(), b)


def test_guards_that_torch_lacks(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._C._dynamo.guards", types.ModuleType("guards"))
    assert private.tensor_guards([torch.ones(2)]) == (None, False)


def test_entrances_for_generated_code():
    """On a GPU they are torch's own, and tell what the public functions tell; without one there is no device."""
    if not torch.cuda.is_available():
        assert private.current_cuda_device() == private.no_device() == -1
        return
    made = private.new_tensor((2, 3), (3, 1), torch.float16)
    assert private.current_cuda_device() == torch.cuda.current_device() == made.device.index
    assert private.current_stream(made.device.index) == torch.cuda.current_stream().cuda_stream
    assert (made.shape, made.stride(), made.dtype) == ((2, 3), (3, 1), torch.float16)
    assert private.new_tensor.__name__ == "_empty_strided_cuda"
