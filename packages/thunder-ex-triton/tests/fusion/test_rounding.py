# SPDX-License-Identifier: Apache-2.0
"""Values that a kernel stores in half precision are rounded for all operations that read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import thunder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16


def halves(*shape: int, seed: int = 0, dtype: torch.dtype = HALF) -> torch.Tensor:
    """Return numbers whose sums are seldom numbers of half precision."""
    draw = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=draw) * 3 + 1).to(DEVICE, dtype)


# Functions whose results are a value in half precision, and values that follow from this value exactly.
MOVED: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda y: (y, y.float()),
    "transposed": lambda y: (y.t().contiguous(), y.float()),
    "reshaped": lambda y: (y.reshape(-1), y.float()),
    "sums of rows": lambda y: (y, y.float().sum(-1)),
    "sums of columns": lambda y: (y, y.float().sum(0)),
    "differences": lambda y: (y, y.float() - y.float().amax(-1, keepdim=True)),
    "scans": lambda y: (y, y.float().cumsum(-1)),
    "parts": lambda y: (y, torch.cat((y.float()[1:], y.float()[:1]))),
    "written": lambda y: (y, y.double()),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 33), (3, 40000)], ids=["rows", "long rows"])
@pytest.mark.parametrize("name", MOVED)
def test_what_is_read_is_what_is_stored(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a, b = halves(*shape, dtype=dtype), halves(*shape, seed=1, dtype=dtype)
    jitted = thunder.jit(lambda a, b: MOVED[name](a + b), executors=["triton"])
    for found, expected in zip(jitted(a, b), MOVED[name](a + b)):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * shape[-1])
    assert any(op.sym.is_fusion for op in thunder.last_traces(jitted)[-1].bound_symbols)


OPERATIONS: list[Callable[..., Any]] = [
    lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - 0.3 * b, lambda a, b: a.exp() / b, lambda a, b: -a,
    lambda a, b: torch.maximum(a, b) + 0.1, lambda a, b: a.mean(-1, keepdim=True) + b,
]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5))
def test_chains(steps: list[tuple[Callable[..., Any], int, int]]) -> None:
    """If each value is returned, each operation reads what eager mode reads."""

    def program(*values: Any) -> Any:
        found = list(values)
        for operation, i, j in steps:
            found.append(operation(found[i % len(found)], found[j % len(found)]))
        return found[len(values) :]

    given_values = halves(4, 20), halves(4, 20, seed=1)
    found = thunder.jit(program, executors=["triton"])(*given_values)
    for i, (mine, eager) in enumerate(zip(found, program(*given_values))):
        operation, *places = steps[i]
        operands = [(*given_values, *found)[k % (2 + i)] for k in places]
        torch.testing.assert_close(mine, operation(*[x.double() for x in operands]).to(HALF), rtol=1e-3, atol=1e-6)
        assert mine.stride() == eager.stride()


def test_a_residual_that_is_kept() -> None:
    """The norm of a sum has the gradient of the sum that is saved."""

    def block(x: Any, r: Any, w: Any) -> Any:
        h = x + r
        return h, F.layer_norm(h, (64,), w)

    args = [halves(8, 64, seed=i).mul(40).requires_grad_() for i in range(2)] + [halves(64, seed=3).requires_grad_()]
    found, expected = thunder.jit(block, executors=["triton"])(*args), block(*args)
    assert torch.equal(found[0], expected[0])
    right = F.layer_norm(found[0].detach().double(), (64,), args[2].double())
    assert (found[1] - right).abs().max() <= 1e-3 * right.abs().max()


def test_a_batch_norm_after_a_bias() -> None:
    """In each channel, the rounding of the sum of a convolution and a bias has one direction. The gradient is fine."""
    torch.manual_seed(1)
    m = nn.Sequential(nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.SiLU()).to(DEVICE, HALF)
    x = torch.randn(3, 16, 12, 12, generator=torch.Generator().manual_seed(3)).to(DEVICE, HALF) + 3
    (thunder.jit(m)(x).double().square().mean() * 100).backward()
    bias = m[0].bias.grad
    assert bias.abs().max() <= 1e-3  # zero in exact arithmetic; 1e-2 if the mean is that of other values
