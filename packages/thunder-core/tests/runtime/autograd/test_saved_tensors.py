# SPDX-License-Identifier: Apache-2.0
"""Hooks that return saved tensors with other strides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import thunder
import thunder.torch as ltorch


def every_second(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same values whose memory has gaps."""
    return torch.stack([x, x], -1)[..., 0]


HOOKS = {
    "none": lambda: saved_tensors_hooks(lambda x: x, lambda x: x),
    "on the CPU": save_on_cpu,
    "with gaps": lambda: saved_tensors_hooks(lambda x: x, every_second),
    "flat": lambda: saved_tensors_hooks(lambda x: (x.shape, x.flatten()), lambda kept: kept[1].reshape(kept[0])),
}


@pytest.fixture
def turned() -> tuple[Any, list[Any]]:
    """Return an operator whose kernel writes a transposed result, and the strides of that result in backward."""
    seen: list[Any] = []

    def backward(g: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        seen.append(out.stride())
        return g * out

    executor = thunder.extend.OperatorExecutor("turning")
    forward = executor.register_operator("turned_exp", like=ltorch.exp, fn=lambda x: x.mT.contiguous().exp().mT)
    of_input = executor.register_operator("turned_exp_grad", like=ltorch.mul, fn=backward)
    forward.vjp(lambda g, out, x: of_input(g, out))
    return (lambda fn: thunder.jit(fn(forward), executors=[executor])), seen


@pytest.mark.parametrize("hooks", HOOKS)
def test_kernels_read_the_layout_that_they_wrote(turned: Any, hooks: str) -> None:
    """Also if a result is differentiated twice, or after another one."""
    jit, seen = turned
    jitted = jit(lambda exp: lambda x, y: (exp(x), y.sin() * y))
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, requires_grad=True)
    with HOOKS[hooks]():
        out, other = jitted(x, y)
        again, _ = jitted(x, y)
    other.sum().backward()  # saves what the other result needs again
    torch.testing.assert_close(y.grad, (y.sin() + y * y.cos()).detach())
    (found,) = torch.autograd.grad(out.sum(), x)
    (once,) = torch.autograd.grad(again.sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), x)
    for gradient in (found, once, twice):
        torch.testing.assert_close(gradient, x.exp())
    assert seen
    assert set(seen) == {(1, 3)}


def test_values_that_no_kernel_wrote_stay() -> None:
    """The strides of an expanded input, and those of a part of one, are not restored."""
    jitted = thunder.jit(lambda x, y: x * y)
    x, y = torch.randn(3, 1, requires_grad=True), torch.randn(3, 8, requires_grad=True)
    with save_on_cpu():
        out = jitted(x.expand(3, 4), y[:, ::2])
    out.sum().backward()
    torch.testing.assert_close(x.grad, y[:, ::2].sum(1, keepdim=True))
    torch.testing.assert_close(y.grad[:, ::2], x.detach().expand(3, 4))
