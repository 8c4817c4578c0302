# SPDX-License-Identifier: Apache-2.0
"""Random numbers inside fusions: of which kind they are, that they repeat, and that backward draws the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.toolkit import conformance
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
    jitted = conformance.assert_residual_dropout_norm(jit, device)
    assert names(thunder.last_traces(jitted)[-1]) == ["nvfuser_seeds", "nvFusion0"]
    assert names(thunder.last_backward_traces(jitted)[-1]) == ["nvFusion0"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_dropout(device: str, dtype: torch.dtype) -> None:
    conformance.assert_dropout(jit, device, dtype)


def test_seeds_are_of_torchs_generator(device: str) -> None:
    conformance.assert_seeds_are_torchs(jit, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distributions(device: str, dtype: torch.dtype) -> None:
    jitted = conformance.assert_distributions(jit, device, dtype)
    assert names(thunder.last_traces(jitted)[-1]) == ["nvfuser_seeds", "nvFusion0"]


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
