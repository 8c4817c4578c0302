# SPDX-License-Identifier: Apache-2.0
"""Random numbers inside fusions: of which kind they are, that they repeat, and that backward draws the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import thunder
from thunder_ex_nvfuser import random

pytestmark = pytest.mark.filterwarnings("error:nvfuser")


def jit(f: Any, **options: Any) -> Any:
    """With the fusion executor alone."""
    return thunder.jit(f, executors=["nvfuser"], **options)


def names(trace: Any) -> list[str]:
    """The operations of a program."""
    return [op.sym.name for op in trace.bound_symbols if op.sym.fn is not None or op.sym.is_fusion]


def ones(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor that requires grad."""
    return torch.ones(shape, device=device, dtype=dtype, requires_grad=True)


def test_residual_dropout_norm(device: str) -> None:
    """Is one fusion, and so is its gradient; no mask is kept."""

    def f(x: Any, r: Any, w: Any) -> Any:
        h = x + F.dropout(r, 0.25)
        return F.layer_norm(h, w.shape, w), h

    jitted = jit(f)
    noise = torch.linspace(-2, 2, 192, device=device).reshape(6, 32).requires_grad_()
    x, w = ones(6, 32, device=device), ones(32, device=device)
    out, h = jitted(x, noise, w)
    assert names(thunder.last_traces(jitted)[-1]) == ["nvfuser_seeds", "nvFusion0"]
    assert not any(p.dtype is thunder.dtypes.bool8 for p in thunder.last_traces(jitted)[-1].output[1])
    kept = (h - 1 != 0).detach()
    torch.testing.assert_close((h - 1)[kept], (noise / 0.75)[kept], rtol=1e-5, atol=1e-5)
    expected = F.layer_norm((x + noise * kept / 0.75).detach(), (32,), w)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    h.sum().backward()
    torch.testing.assert_close(noise.grad, kept / 0.75)
    assert names(thunder.last_backward_traces(jitted)[-1]) == ["nvFusion0"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_dropout(device: str, dtype: torch.dtype) -> None:
    """The share that it drops, another mask at each call, and a gradient with the mask of its call."""
    x = ones(64, 64, device=device, dtype=dtype)
    jitted = jit(lambda x: F.dropout(x * 2, 0.3) * 1)
    first, second = jitted(x), jitted(x)
    for out in (first, second):
        assert abs((out == 0).double().mean().item() - 0.3) < 0.04
        torch.testing.assert_close(out.unique().double().cpu(), torch.tensor([0, 2 / 0.7]).double(), rtol=1e-2, atol=0)
    assert not torch.equal(first, second)
    for out in (first, second):
        (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
        torch.testing.assert_close(gradient, out)


def test_seeds_are_of_torchs_generator(device: str) -> None:
    """It is advanced, and what follows from a seed repeats; two draws of a program are not one."""
    jitted = jit(lambda x: F.dropout(x, 0.5) + F.dropout(x, 0.5))
    x = ones(40, 8, device=device)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append((jitted(x), jitted(x), torch.rand(4, device=device)))
    (a, b, _), (c, d, _), (e, _, _) = results
    assert torch.equal(a, c)
    assert torch.equal(b, d)
    assert not torch.equal(a, b)
    assert not torch.equal(a, e)
    assert torch.equal(results[0][2], results[1][2])
    assert set(a.unique().tolist()) == {0, 2, 4}
    torch.manual_seed(-1)  # a seed of 64 bits
    negative = jitted(x)
    torch.manual_seed(-1)
    assert torch.equal(negative, jitted(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distributions(device: str, dtype: torch.dtype) -> None:
    """Means, variances and bounds are those of the distributions."""

    def f(x: Any) -> Any:
        even = torch.rand_like(x) * 1
        between = torch.empty_like(x).uniform_(-1, 3) * 1
        normal = torch.randn_like(x) * 2 + 1
        exponential = torch.empty_like(x).exponential_(2.0) * 1
        bernoulli = torch.empty_like(x).bernoulli_(0.2) * 1
        return [t + x for t in (even, between, normal, exponential, bernoulli)]

    jitted = jit(f)
    torch.manual_seed(0)
    found = [t.double() for t in jitted(torch.zeros(50, 200, device=device, dtype=dtype))]
    assert names(thunder.last_traces(jitted)[-1]) == ["nvfuser_seeds", "nvFusion0"]
    for t, mean, variance in zip(found, (0.5, 1, 1, 0.5, 0.2), (1 / 12, 4 / 3, 4, 0.25, 0.16)):
        assert abs(t.mean() - mean) < 0.05
        assert abs(t.var() / variance - 1) < 0.06
    assert found[0].min() >= 0
    assert found[0].max() < 1
    assert found[1].min() >= -1
    assert found[1].max() < 3


def test_numbers_do_not_hang_on_the_fusion(device: str) -> None:
    """Of one seed an element is the same in every program, drawn by itself or fused, transposed or summed up."""
    (seed,) = random.drawn_seeds(1, thunder.devices.Device(device))
    operator = thunder.extend.get_executor("nvfuser").opmap["nvfuser_uniform"]
    where = thunder.devices.Device(device)
    x = torch.zeros(6, 10, device=device)
    alone = jit(lambda seed: operator(seed, (6, 10), where))(seed)
    assert 0 <= alone.min() < alone.max() < 1
    fused = jit(lambda seed, x: x + operator(seed, (6, 10), where))
    torch.testing.assert_close(fused(seed, x), alone, rtol=0, atol=0)
    assert names(thunder.last_traces(fused)[-1]) == ["nvFusion0"]
    turned = jit(lambda seed, x: x.t() + operator(seed, (6, 10), where).t() * 1)
    torch.testing.assert_close(turned(seed, x), alone.t(), rtol=0, atol=0)
    total = jit(lambda seed, x: (x + operator(seed, (6, 10), where)).sum(0))
    torch.testing.assert_close(total(seed, x), alone.sum(0))
    assert "fd.ops.uniform(" in thunder.examine.fusions(fused)[0].source
    compile(thunder.examine.fusions(fused)[0].source, "<source>", "exec")


def test_checkpoints_draw_the_same(device: str) -> None:
    """What is computed again in backward has the mask of forward."""

    def f(x: Any) -> Any:
        return checkpoint(lambda x: F.dropout(x.sin(), 0.5).cos() * x, x, use_reentrant=False)

    x = ones(30, 20, device=device)
    jitted = jit(f)
    out = jitted(x)
    kept = (out - 1).abs() > 1e-6  # cos(0) * 1
    (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
    s = torch.sin(torch.ones((), device=device)) * 2
    slope = s.cos() - s.sin() * 2 * torch.cos(torch.ones((), device=device))
    torch.testing.assert_close(gradient, torch.where(kept, slope, 1.0), rtol=1e-4, atol=1e-4)


def test_symbolic_sizes(device: str) -> None:
    """One trace serves all lengths, with other seeds at each call."""
    jitted = jit(lambda x: F.dropout(x * 2, 0.5), cache="symbolic values")
    for n in (5, 9, 12, 9):
        x = ones(4, n, device=device)
        out = jitted(x)
        assert out.shape == x.shape
        assert set(out.unique().tolist()) <= {0, 4}
        (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
        torch.testing.assert_close(gradient, out)
    assert thunder.cache_misses(jitted) == 1


def test_draws_are_left_to_torch(device: str) -> None:
    """By the option, with a generator, where nothing is fused with them."""
    x = ones(20, 8, device=device)
    torch.manual_seed(3)
    found = jit(lambda x: F.dropout(x, 0.5) * 2, nvfuser_random=False)(x)
    torch.manual_seed(3)
    torch.testing.assert_close(found, F.dropout(x, 0.5) * 2)
    jitted = jit(lambda: torch.rand(3, device=device))
    jitted()
    assert "nvfuser_seeds" not in names(thunder.last_traces(jitted)[-1])
