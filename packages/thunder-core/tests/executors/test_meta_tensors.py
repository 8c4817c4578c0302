# SPDX-License-Identifier: Apache-2.0
"""Strides of results on the meta device. Operators of executors may be kernels, which must not run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.extend import OperatorExecutor, deregister_executor, register_executor


@pytest.fixture
def executor() -> Iterator[OperatorExecutor]:
    found = OperatorExecutor("layouts")
    register_executor(found)
    yield found
    deregister_executor(found)


ADDRESSES: list[int] = []  # that kernels got


def _of_torch(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _kernel(x: torch.Tensor) -> torch.Tensor:
    """Read and write by address, as kernels do."""
    x = x.contiguous()
    out = torch.empty_like(x)
    ADDRESSES.extend(t.data_ptr() for t in (x, out))
    return torch.add(x, 1, out=out)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous() + 1


INPUTS = {
    "contiguous": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(3, 4).t(),
    "with gaps": lambda: torch.randn(3, 8)[:, ::2],
    "one element": lambda: torch.randn(1),
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("fn", [_of_torch, _rows, _kernel], ids=lambda fn: fn.__name__)
def test_strides_of_operators(executor: OperatorExecutor, fn: Callable[..., Any], kind: str) -> None:
    """A program that asks for strides takes eager mode's branch, and no kernel runs while it is traced."""
    operator = executor.register_operator("next_one", like=lambda x: ltorch.add(x, 1), fn=fn)

    def program(operate: Any, x: Any) -> Any:
        y = operate(x)
        return y.t() if y.is_contiguous() else y * y.transpose(0, -1).stride(0)

    x = INPUTS[kind]()
    ADDRESSES.clear()
    found = thunder.jit(lambda x: program(operator, x), executors=[executor, "torch"])(x)
    torch.testing.assert_close(found, program(fn, x))
    assert all(ADDRESSES)
    assert len(ADDRESSES) == (4 if fn is _kernel else 0)


def test_an_operator_without_inputs(executor: OperatorExecutor) -> None:
    def make(n: int, **how: Any) -> torch.Tensor:
        out = torch.empty(n, 2, **how)
        ADDRESSES.append(out.data_ptr())
        return out.fill_(1)

    ADDRESSES.clear()
    operator = executor.register_operator("ones_by_kernel", like=lambda n: ltorch.ones(n, 2), fn=make)
    jitted = thunder.jit(lambda x: x * operator(3).t().stride(0), executors=[executor, "torch"])
    assert torch.equal(jitted(torch.ones(2)), torch.ones(2))
    assert all(ADDRESSES)


def test_tensors_of_the_caller_keep_their_addresses(executor: OperatorExecutor) -> None:
    other = torch.empty(3, 4, device="meta")

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.is_cpu else torch.add(x, other.detach())

    operator = executor.register_operator("add_other", like=lambda x: ltorch.add(x, 1), fn=add)
    assert thunder.jit(lambda x: operator(x).is_contiguous(), executors=[executor, "torch"])(torch.ones(3, 4))
    assert other.data_ptr() == 0
