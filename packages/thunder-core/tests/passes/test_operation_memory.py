# SPDX-License-Identifier: Apache-2.0
"""Which values of a program may share memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import thunder
from thunder.core.symbol import BoundSymbol
from thunder.passes.operation_memory import SharedMemory, shared_arguments, written_arguments


def operations(fn: Callable[..., Any], *inputs: torch.Tensor) -> list[BoundSymbol]:
    jitted = thunder.jit(fn, executors=["torch"])
    jitted(*inputs)
    return [op for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.name != "python_del"]


def groups(fn: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    """Return the group of each tensor that the program returns, in a list of names of equal groups."""
    program = operations(fn, *inputs)
    memory = SharedMemory(program)
    return [memory.group(name) for name in program[-1].arg_names]


def test_new_tensors() -> None:
    assert len(set(groups(lambda x: (x, x.sin(), x + 1, x @ x), torch.rand(2, 2)))) == 4


def test_views_of_views() -> None:
    def fn(x: Any, y: Any) -> Any:
        z = x * 2
        return x, x.t(), x.t()[0], z, z.reshape(4), y

    x, view, part, z, other, y = groups(fn, torch.rand(2, 2), torch.rand(2))
    assert x == view == part
    assert z == other
    assert len({x, z, y}) == 3


def test_operations_in_place_return_what_they_write() -> None:
    def fn(x: Any) -> None:
        x.mul_(2)

    program = operations(fn, torch.rand(2))
    (op,) = [op for op in program if written_arguments(op)]
    assert written_arguments(op) == ["x"] == shared_arguments(op)
    memory = SharedMemory(program)
    assert [memory.group(name) for name in op.out_names] == [memory.group("x")]


def test_memory_that_operations_may_have_kept() -> None:
    """Opaque operations share memory with each other."""

    def fn(x: Any, y: Any, z: Any) -> Any:
        return x, torch.ops.aten.alias(x), y, torch.ops.aten.alias(y), z

    x, a, y, b, z = groups(fn, *[torch.rand(2) for _ in range(3)])
    assert x == a == y == b != z


def test_long_chains() -> None:
    def fn(x: Any) -> Any:
        y = x
        for _ in range(300):
            y = y.t()
        return x, y * 2, y.view(-1)

    x, new, y = groups(fn, torch.rand(2, 2))
    assert x == y != new
