# SPDX-License-Identifier: Apache-2.0
"""`is_grads_batched=True`: kernels that read addresses do not receive batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.functional import hessian, jacobian

import thunder
import thunder.torch as ltorch


@pytest.fixture
def jit() -> Callable[..., Any]:
    """Return a function that jits with sine and cosine by kernels that read addresses, also in derivatives."""
    executor = thunder.extend.OperatorExecutor("by_address")

    def kernel(torch_function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*tensors: torch.Tensor) -> torch.Tensor:
            assert all(x.data_ptr() for x in tensors)
            return torch_function(*tensors)

        return run

    for name in ("sin", "cos", "mul", "sum"):
        like = getattr(ltorch, name)
        operator = executor.register_operator(f"{name}_by_address", like=like, fn=kernel(getattr(torch, name)))
        executor.register_implementation(like, operator)
    return lambda fn: thunder.jit(fn, executors=[executor])


def two(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin() * y, (x * y).cos()


def test_jacobians(jit: Any) -> None:
    """Of one and of several results; those that are differentiated again; and Hessians."""
    x, y = torch.randn(3), torch.randn(3)
    jitted = jit(two)
    for found, expected in zip(jacobian(jitted, (x, y), vectorize=True), jacobian(two, (x, y))):
        torch.testing.assert_close(found, expected)
    x.requires_grad_()
    found, expected = (
        jacobian(lambda x: f(x, y)[1], x, vectorize=True, create_graph=True) for f in (jitted, two)
    )  # fmt: skip
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*[torch.autograd.grad(j.sum(), x)[0] for j in (found, expected)])
    total = jit(lambda x: (x.sin() * x.cos()).sum())
    torch.testing.assert_close(hessian(total, x, vectorize=True), hessian(lambda x: (x.sin() * x.cos()).sum(), x))


def test_of_results_that_are_routed(jit: Any) -> None:
    """An input with a hook has an edge from each result that depends on it."""
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    seen: list[Any] = []
    middle = x.clone()
    middle.register_hook(lambda g: seen.append(g.shape))
    first, _ = jit(lambda x, y: (x.sin(), y.cos()))(middle, y)
    (found,) = torch.autograd.grad(first, x, torch.eye(3), is_grads_batched=True)
    torch.testing.assert_close(found, torch.diag(x.cos()))
    assert seen == [x.shape]


def test_single_gradients_use_the_kernels(jit: Any) -> None:
    """Also after a batch."""
    x = torch.randn(3, requires_grad=True)
    jitted = jit(lambda x: x.sin())
    out = jitted(x)
    torch.autograd.grad(out, x, torch.eye(3), is_grads_batched=True, retain_graph=True)
    (found,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(found, x.cos())
    assert "_by_address" in str(thunder.last_backward_traces(jitted)[-1])
