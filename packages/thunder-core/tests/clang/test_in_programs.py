# SPDX-License-Identifier: Apache-2.0
"""Operations of the core language where programs call them, and what the package exports."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

import thunder
from thunder import clang
from thunder.clang import _elementwise_binary_wrapper, clangop
from thunder.clang.base import clang_ops, clangctx
from thunder.core import prims


def test_exports() -> None:
    """Operations and what contributors declare one with; modules of the package are there as of any."""
    exported = {name for name, x in vars(clang).items() if name[0] != "_" and not isinstance(x, types.ModuleType)}
    assert exported - set(clang_ops) == {"clangop", "maybe_broadcast", "maybe_convert_to_dtype"}
    assert all(getattr(clang, name) is operation for name, operation in clang_ops.items())


def test_an_operation_in_a_program() -> None:
    """It is recorded under its name, computes and is differentiated through its primitives."""
    a = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    b = torch.arange(3)
    jitted = thunder.jit(lambda a, b: clang.sin(a) * clang.add(a, b))
    torch.testing.assert_close(jitted(a, b), a.sin() * (a + b))
    printed = str(thunder.last_traces(jitted)[0])
    assert "t0 = clang.sin(a)  # t0: " in printed
    assert "    # t0 = prims.sin(a)  # t0: " in printed
    (found,) = torch.autograd.grad(jitted(a, b).sum(), a)
    torch.testing.assert_close(found, a.cos() * (a + b) + a.sin())


def test_the_trace_of_a_program_runs() -> None:
    """Its text calls the operation on real tensors."""
    a = torch.randn(3)
    trace = thunder.trace()(lambda a: clang.exp(a), a)
    namespace = trace.python_ctx()
    exec(str(trace), namespace)
    torch.testing.assert_close(namespace[trace.name](a), a.exp())
    torch.testing.assert_close(clang.exp(a), a.exp())


@pytest.mark.parametrize("name", ["sum_of", "sum_of_several"])
def test_an_operation_from_outside(name: str) -> None:
    """It is traced, batched and called by other operations; its body is in the core language."""

    def sum_of(a: Any, b: Any) -> Any:
        return _elementwise_binary_wrapper(a, b, prim=prims.add)

    def sum_of_several(a: Any, b: Any) -> Any:
        return declared(a, a + b) - a

    declared = clangop(method_name="sum_of")(sum_of)
    operation = declared if name == "sum_of" else clangop()(sum_of_several)
    a, b = torch.randn(2, 1), torch.arange(3)
    try:
        for fn in (thunder.jit(operation), thunder.vmap(operation, in_dims=(0, None))):
            torch.testing.assert_close(fn(a, b), a + b)
    finally:
        clang_ops.pop("sum_of")
        clang_ops.pop("sum_of_several", None)
        clangctx.methods.pop("sum_of")


def test_results_are_values_of_their_own() -> None:
    """A write to one does not reach the input, though the primitive gives a view."""

    def program(a: Any) -> Any:
        b = clang.transpose(a, (1, 0))
        b.add_(1)
        return b, a + 0

    a = torch.randn(2, 3)
    before = a.clone()
    b, c = thunder.jit(program)(a)
    torch.testing.assert_close(a, before, rtol=0, atol=0)
    torch.testing.assert_close(c, before, rtol=0, atol=0)
    torch.testing.assert_close(b, before.T + 1)
