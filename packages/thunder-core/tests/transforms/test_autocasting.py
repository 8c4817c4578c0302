# SPDX-License-Identifier: Apache-2.0
"""autocast as a transform does what torch's context around the call does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder.transforms import autocast

PROGRAMS: dict[str, Callable[..., Any]] = {
    "products": lambda x, w: F.linear(x, w) @ w,
    "loss": lambda x, w: F.mse_loss(F.linear(x, w), x),
    "softmax": lambda x, w: torch.softmax(x @ w, -1),
    "float": lambda x, w: (x @ w).float() + x,
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None] @ w, x[None], x[None]),
    "widest": lambda x, w: torch.cat([x @ w, x]),
    "norm": lambda x, w: F.layer_norm(x @ w, (8,)).sum(),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_torch(name: str, dtype: torch.dtype) -> None:
    """Results in the same dtype, gradients in that of the leaves."""
    fn = PROGRAMS[name]
    torch.manual_seed(0)
    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    f = thunder.jit(fn, transforms=[autocast(dtype)])
    with torch.autocast("cpu", dtype):
        expected = fn(x, w)
    found = f(x, w)
    torch.testing.assert_close(found, expected)
    found.float().sum().backward()
    gradient, w.grad = w.grad, None
    expected.float().sum().backward()
    assert gradient.dtype is torch.float32
    torch.testing.assert_close(gradient, w.grad, rtol=3e-2, atol=3e-2)


def test_in_the_trace_and_from_the_cache() -> None:
    """The casts are operations; the second call finds the program, and one under torch's own context another."""
    f = thunder.jit(lambda x, w: x @ w, transforms=[autocast()])
    x, w = torch.randn(2, 3), torch.randn(3, 2)
    for _ in range(2):
        assert f(x, w).dtype is torch.bfloat16
    assert thunder.cache_misses(f) == 1
    assert "ltorch.to(x, dtypes.bfloat16)" in str(thunder.last_traces(f)[0])
    assert not torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", torch.float16):
        assert f(x, w).dtype is torch.bfloat16


def test_contexts_of_the_program_go_first() -> None:
    """A part that switches it off runs in full precision."""

    def fn(x: Any, w: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            y = x @ w
        return y, x @ w

    off, on = thunder.jit(fn, transforms=[autocast()])(torch.randn(2, 3), torch.randn(3, 2))
    assert (off.dtype, on.dtype) == (torch.float32, torch.bfloat16)


def test_inside_another_traced_function() -> None:
    """It holds for its own function only."""
    inner = thunder.jit(lambda x, w: x @ w, transforms=[autocast()])
    f = thunder.jit(lambda x, w: (inner(x, w), x @ w))
    a, b = f(torch.randn(2, 3), torch.randn(3, 2))
    assert (a.dtype, b.dtype) == (torch.bfloat16, torch.float32)


def test_dtypes() -> None:
    """Autocast has two."""
    with pytest.raises(ValueError, match=r"autocast requires torch\.bfloat16 or torch\.float16, not torch\.float32"):
        autocast(torch.float32)


def test_a_tensor_given_twice_where_the_program_compares_identities() -> None:
    """Such a program is captured twice, each time under contexts of its own."""
    x = torch.randn(4, 4)
    jitted = thunder.jit(lambda a, b: a @ b if a is b else a + b, transforms=[autocast(torch.bfloat16)])
    assert jitted(x, x).dtype == torch.bfloat16
    torch.testing.assert_close(jitted(x, torch.ones(4, 4)), x + 1)
