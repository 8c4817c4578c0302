# SPDX-License-Identifier: Apache-2.0
"""The many ways in which torch lets one ask for a new tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder

CALLS = {
    "sizes": lambda x: (torch.zeros(2, 3), torch.ones((2,)), torch.zeros([]), torch.ones(()), torch.zeros(size=(2,))),
    "torch.Size": lambda x: (torch.zeros(x.shape), torch.ones(*x.shape), torch.full(x.size(), 2.0)),
    "fill values": lambda x: (torch.full((2,), True), torch.full([2], 1j), torch.full((2,), 3), torch.full((2,), 2.5)),
    "negative zeros": lambda x: (torch.full((2,), -0.0).reciprocal(), torch.full_like(x, -0.0).reciprocal(),
                                 torch.full((2,), complex(1, -0.0)).imag.reciprocal()),
    "arange": lambda x: (
        torch.arange(5), torch.arange(0), torch.arange(0, 5), torch.arange(1, 6, 2), torch.arange(0.0, 1, 0.3),
        torch.arange(end=4), torch.arange(start=1, end=4), torch.arange(0, 10, step=3), torch.arange(5, 0, -2),
        torch.arange(1, 2.5, 0.3, dtype=torch.int32), torch.arange(4, dtype=torch.bfloat16),
    ),
    "spaces": lambda x: (
        torch.linspace(0, 1, 5), torch.linspace(3, -2, 4, dtype=torch.float64), torch.logspace(0, 1, 3),
        torch.linspace(0, 100, 7, dtype=torch.int32), torch.linspace(0, 1, 1), torch.logspace(0, 4, 5, base=2),
    ),
    "eye": lambda x: (torch.eye(3), torch.eye(2, 3, dtype=torch.int32), torch.eye(0)),
    "like": lambda x: (
        torch.zeros_like(x), torch.ones_like(x, dtype=torch.int32), torch.full_like(x, 2), torch.fill(x, 3.0),
        torch.zeros_like(x.mT, memory_format=torch.preserve_format),
    ),
    "new": lambda x: (
        x.new_zeros(2, 3), x.new_ones((2,)), x.new_full((2,), 3), x.new_zeros(size=(2,)), x.new_tensor([1, 2]),
        x.new_tensor([x[0, 0], 2]), x.new_tensor(x), x.to(torch.int32).new_full((2,), 7, dtype=torch.float64),
    ),
    "data": lambda x: (
        torch.tensor([1.0, 2.0]), torch.tensor(3), torch.tensor([[1, 2], [3, 4]], dtype=torch.float64),
        torch.scalar_tensor(3.0), torch.tensor(True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_values(name: str) -> None:
    """Shape, dtype, values and strides."""
    call: Any = CALLS[name]
    x = torch.rand(3, 4)
    for i, (ours, theirs) in enumerate(zip(thunder.jit(call)(x), call(x))):
        assert ours.dtype is theirs.dtype and ours.stride() == theirs.stride(), f"{name} {i}"
        assert torch.equal(ours, theirs), f"{name} {i}"


def test_without_values() -> None:
    """What is empty has everything but values."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.empty(2, 3), torch.empty_like(x), x.new_empty(3), torch.empty((2,), dtype=torch.int64),
            torch.empty_strided((2, 3), (1, 2)),
        )  # fmt: skip

    x = torch.rand(3, 4)
    for ours, theirs in zip(thunder.jit(program)(x), program(x)):
        assert (ours.shape, ours.dtype, ours.stride()) == (theirs.shape, theirs.dtype, theirs.stride())


def test_defaults_are_torchs() -> None:
    """The default dtype when the function runs, not when it was first traced."""
    jitted = thunder.jit(lambda: (torch.zeros(2), torch.arange(0.5, 2), torch.full((1,), 2.5)))
    for default in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(default)
        try:
            assert {x.dtype for x in jitted()} == {default}
        finally:
            torch.set_default_dtype(torch.float32)


def test_bounds_that_are_tensors() -> None:
    """How long a range is may depend on the values of inputs, integers or not."""
    jitted = thunder.jit(lambda n: torch.arange(n) + 1, sharp_edges="error")
    for n in (3, 5, 2.5, 3.5, 7.0):
        torch.testing.assert_close(jitted(torch.tensor(n)), torch.arange(n) + 1)
    assert thunder.cache_misses(jitted) == 2  # one for each dtype
