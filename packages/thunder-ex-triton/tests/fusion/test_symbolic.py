# SPDX-License-Identifier: Apache-2.0
"""Regions of unknown sizes: one kernel for many lengths, whatever the layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder_ex_triton.fusion import iteration_space, region, symbolic

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make(*shape: int) -> torch.Tensor:
    """A random tensor that requires grad."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE).requires_grad_()


def many(x: Any, r: Any, w: Any) -> Any:
    """What sizes may be needed for."""
    h = x + r
    y = F.layer_norm(h, w.shape, w)
    mean = h.transpose(0, 1).mean(-1)
    turned = torch.cat((h[1:], h[:1]), 0) * 3
    return y.reshape(-1).tanh() * 2, mean, turned, F.pad(h, (0, 0, 2, 1)) * 2, h.sum(0), h * x.shape[0]


def test_one_kernel_for_many_lengths() -> None:
    """No trace and no text more for further lengths, forward and backward."""
    jitted = thunder.jit(many, executors=["triton"], cache="symbolic values")
    texts = set()
    for n in (6, 7, 16, 33, 3):
        args = make(n, 32), make(n, 32), make(32)
        expected, found = many(*args), jitted(*args)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(sum((t * t).sum() for t in out), args) for out in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
        texts.add(region.load.cache_info().misses)
    assert thunder.cache_misses(jitted) == 1
    assert len(texts) == 1
    assert all(f.executor == "triton" for f in thunder.examine.fusions(jitted))
    assert "for any sizes" in thunder.examine.fusions(jitted)[0].source


def test_more_columns_than_a_grid_has_blocks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of so many columns are torch's. The program is not traced again."""
    jitted = thunder.jit(lambda x: (x * 2).sum(0), executors=["triton"], cache="symbolic values")
    monkeypatch.setattr(iteration_space, "MOST_BLOCKS", 2)
    for n in (40, 50, 2048, 2049, 3000):
        torch.testing.assert_close(jitted(make(3, n)), make(3, n).mul(2).sum(0))
    assert thunder.cache_misses(jitted) == 1
    (found,) = (op.sym.fn for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.is_fusion)
    assert len(found._programs) == 3


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "softmax of rows": (lambda x: F.softmax(x * 2, -1), lambda n: (make(4, n),)),
    "variance of rows": (lambda x: x.var(-1) * 2, lambda n: (make(4, n),)),
    "largest": (lambda x: (x - x.amax(-1, keepdim=True)).exp(), lambda n: (make(n, n + 3),)),
    "transposed": (lambda x, y: y + x.mT * 2, lambda n: (make(n, 5), make(5, n))),
    "parts of a product": (lambda x: torch.cat([t * 2 for t in x.chunk(3, -1)][::-1], -1), lambda n: (make(2, n, 12),)),
    "flattened": (lambda x, w: (x.view(-1, 8) * w).exp().view(x.shape), lambda n: (make(2, n, 8), make(8))),
    "heads": (lambda x: (x.view(2, -1, 4, 8).transpose(1, 2) * 2).contiguous(), lambda n: (make(2, n, 32),)),
    "a broadcast": (lambda x, y: x[:, None] * y[None], lambda n: (make(n), make(n + 1))),
    "dropout": (lambda x: F.dropout(x, 0.5) * 0 + x, lambda n: (make(n, 8),)),
}


@pytest.mark.parametrize("name", CASES)
def test_shapes(name: str) -> None:
    """Each is a fusion of unknown sizes, right for all of them."""
    f, inputs = CASES[name]
    jitted = thunder.jit(f, executors=["triton"], cache="symbolic values")
    for n in (5, 8, 12):
        args = inputs(n)
        expected, found = f(*args), jitted(*args)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
        gradients = [torch.autograd.grad(out.square().sum(), args) for out in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    assert thunder.cache_misses(jitted) == 1
    assert thunder.examine.fusions(jitted)


def test_layouts_of_inputs() -> None:
    """Each layout has its program, for any size; strides that follow from no size are parameters."""
    jitted = thunder.jit(lambda x, y: x * 2 + y, executors=["triton"], cache="symbolic values")
    for n in (4, 6, 9):
        wide = torch.randn(n, 24, device=DEVICE)
        turned, spread = torch.randn(8, n, device=DEVICE).T, wide[:1, :8].expand(n, 8)
        for x in (wide[:, :8], wide[:, 8:16], turned, wide[:, ::3], spread):
            y = torch.randn(n, 8, device=DEVICE)
            torch.testing.assert_close(jitted(x, y), x * 2 + y)
    assert thunder.cache_misses(jitted) == 4


def test_layouts_in_backward_programs() -> None:
    """What is saved, and what arrives, may lie anywhere too."""
    jitted = thunder.jit(lambda x, y: (x * y).exp() * y, executors=["triton"], cache="symbolic values")
    for n in (4, 7):
        x, y = make(n, 24)[:, ::3], make(n, 16).detach()[:, ::2]
        out = jitted(x, y)
        g = torch.ones(n, 16, device=DEVICE)[:, ::2] * 2
        (mine,), (right,) = (torch.autograd.grad(o, x, g) for o in (out, (x * y).exp() * y))
        torch.testing.assert_close(mine, right)


def test_sizes_written_in_two_ways_are_one() -> None:
    """A product of sizes that is expanded to the number that it is: guarded to be equal, and not spread like 1."""
    f = lambda x: x.repeat(1, 2).flatten().int().expand(2, 48) * 2  # noqa: E731
    jitted = thunder.jit(f, executors=["triton"], cache="symbolic values")
    for shape in ((4, 6), (3, 8)):
        x = torch.arange(24.0, device=DEVICE).view(shape)
        torch.testing.assert_close(jitted(x), f(x))
    assert thunder.examine.fusions(jitted)


def test_sizes_that_follow_from_others() -> None:
    """Of a size that is one less, or twice as much, the size itself is found."""

    def f(x: Any, w: Any) -> Any:
        h = x.unfold(0, 2, 1) @ w
        return torch.cat((h, h.exp()), 0).clamp(0, 5), (h.reshape(-1) * 2).view(2, -1)

    jitted = thunder.jit(f, executors=["triton"], cache="symbolic values")
    for n in (5, 9):
        x, w = torch.randn(8, n, device=DEVICE).T, torch.randn(2, 2, device=DEVICE)
        torch.testing.assert_close(jitted(x, w), f(x, w))
    trace = thunder.last_traces(jitted)[-1]
    assert [op.sym.name for op in trace.bound_symbols if op.sym.name in ("cat", "clamp", "exp", "mul")] == []


def test_constants_beside_tensors() -> None:
    """A constant of a size that is unknown is compared and combined like any tensor."""
    f = lambda x: (torch.full_like(x, 3).minimum(x.sign()), torch.ones_like(x).logical_and(x))  # noqa: E731
    jitted = thunder.jit(f, executors=["triton"], cache="symbolic values")
    for n in (3, 8):
        x = make(n).detach()
        torch.testing.assert_close(jitted(x), f(x))
    assert thunder.examine.fusions(jitted)


def test_sizes_become_symbolic_by_themselves() -> None:
    """When a size has changed twice."""
    jitted = thunder.jit(lambda x: F.gelu(x, approximate="tanh") * 2, executors=["triton"])
    for n in range(3, 12):
        x = make(n, 8)
        torch.testing.assert_close(jitted(x), F.gelu(x, approximate="tanh") * 2)
    assert thunder.cache_misses(jitted) <= 3


def test_results_with_symbolic_sizes_of_arguments_without() -> None:
    """The gradient of a converted value has the sizes of the value before, which are known to be those of its own."""

    def f(x: Any, y: Any, z: Any) -> Any:
        h = torch.minimum(z.expand(4, 17), y) + x
        return h, h.to(torch.bfloat16) * 2

    jitted = thunder.jit(f, executors=["triton"], cache="symbolic values")
    x = torch.randn(17, device=DEVICE).expand(4, 17).requires_grad_()
    y = torch.ones(4, 17, device=DEVICE, dtype=torch.uint8)
    z = torch.randn(17, device=DEVICE, dtype=torch.float64).expand(4, 17)
    factors = [torch.randn(4, 17, device=DEVICE).to(out.dtype) for out in f(x, y, z)]
    found, expected = (torch.autograd.grad(g(x, y, z), x, factors) for g in (jitted, f))
    torch.testing.assert_close(found, expected)


def test_rows_longer_than_a_tile() -> None:
    """Check that the sizes of a call select the kernel: one that loops over the chunks of a row, or not."""
    f = lambda x: F.softmax(x * 2, -1)  # noqa: E731
    jitted = thunder.jit(f, executors=["triton"], cache="symbolic values")
    for n in (40, 33_000, 41):
        x = make(2, n).detach()
        torch.testing.assert_close(jitted(x), f(x))
    assert thunder.cache_misses(jitted) == 1


def test_kernels_are_compiled_while_the_program_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call takes what another thread has begun, for the sizes that were traced."""
    begun: list[Any] = []
    monkeypatch.setattr(symbolic, "interpreting", lambda: False)
    monkeypatch.setattr(region.Program, "compiled_ahead", lambda self, dtypes: begun.append((self, dtypes)) or self)
    called: list[Any] = []
    call = region.Program.__call__
    monkeypatch.setattr(region.Program, "__call__", lambda self, *inputs: called.append(self) or call(self, *inputs))
    f = lambda x: (x * x.shape[0]).sum(-1) * 2 + x.shape[1]  # noqa: E731
    jitted = thunder.jit(f, executors=["triton"], cache="symbolic values")
    for n in (5, 8):
        x = torch.randn(n, 7, device=DEVICE)
        torch.testing.assert_close(jitted(x), f(x))
    ((program, dtypes),) = begun
    assert called[0] is program and called[1] is not program
    assert dtypes == [torch.float32]


def test_numbers_have_the_dtype_of_tensors() -> None:
    """Small integers wrap, doubles are not rounded, and numbers are rounded to half precision, as in eager mode."""
    cases: list[tuple[Callable[..., Any], torch.dtype, Any]] = [
        (lambda x, n: (x * 2 * n > 0, x.clamp(max=n) * 2 * 100 > 0), torch.int8, 64),
        (lambda x, n: (torch.full_like(x, n) * x * 1, x * 1 >= n), torch.float64, 0.1),
        (lambda x, n: (x * 1 == n, x * 1 >= n, n < x * 1, x * 1 != n), torch.float16, 0.1),
    ]
    for f, dtype, number in cases:
        x = torch.tensor([0.1, 1.0, 2.0, 60.0], device=DEVICE).to(dtype)
        for cache in ("constant values", "symbolic values"):
            found = thunder.jit(f, executors=["triton"], cache=cache)(x, number)
            torch.testing.assert_close(found, f(x, number), rtol=0, atol=0)
